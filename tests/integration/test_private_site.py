"""A site's process against a server that replays rounds, asks past the limit, or kills it."""

import time
from itertools import count
from pathlib import Path

import pytest
import torch

from autofedavg import read_study
from autofedavg.core.accountant import epsilon
from autofedavg.core.bank import Layout
from autofedavg.core.seeds import Seeds
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.site_files import read_site_file
from autofedavg.federation.messages import Message, arrays_of
from deployed import job_of
from hospitals import build_hospitals
from private_site import SiteProcess

SITE, STEPS, CLIP = "north", 3, 1.0
PRIVATE = ["privacy.train_clip=1.0", "privacy.train_noise=1.0"]
PRIVATE += ["privacy.theta_clip=1.0", "privacy.theta_noise=1.0", "rounds=4"]


@pytest.fixture
def world(tmp_path, monkeypatch):
    """The job's file, the site's file, its ledger, and the first model."""
    monkeypatch.setenv("AUTOFEDAVG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AUTOFEDAVG_STATE", str(tmp_path / "state"))
    study, files = build_hospitals(tmp_path / "world")
    job = job_of(read_study(study, PRIVATE), "auto-fedavg")
    path = tmp_path / "job.json"
    path.write_text(job.text())
    w0, _ = job.row.task.problem().initial(Seeds(0))
    return path, files[SITE], tmp_path / "state" / SITE / "privacy.jsonl", w0


@pytest.fixture
def begin(world):
    """Starts the site's process; all are killed at the end."""
    started = []

    def start(limit: float = 0.0, more: str = "") -> SiteProcess:
        path, file, _, _ = world
        text = file.read_text().partition("\n[privacy]")[0]
        file.write_text(f"{text}\n[privacy]\nepsilon = {limit}\n{more}")
        started.append(SiteProcess(path, SITE, file))
        said = started[-1].ask("hello", Message({}, {})).facts
        assert "error" not in said, said["error"]
        return started[-1]

    yield start
    for process in started:
        process.kill()


def training(model, t: int = 1) -> tuple[str, Message]:
    return "local_train", Message(arrays_of(model), {"t": t, "T": 4})


def lines(ledger: Path) -> int:
    return ledger.read_bytes().count(b"\n") if ledger.exists() else 0


def test_a_repeated_request_repeats_the_noise_over_a_kill(world, begin):
    *_, ledger, w0 = world
    site = begin()
    first = site.ask(*training(w0))
    assert first.facts["spent"][::3] == ["train", STEPS]
    assert torch.equal(site.ask(*training(w0)).arrays["values"], first.arrays["values"])
    site.kill()
    again = begin().ask(*training(w0))
    assert torch.equal(again.arrays["values"], first.arrays["values"])
    assert lines(ledger) == 1


def test_a_site_that_is_killed_in_the_middle_has_paid_once(world, begin):
    *_, ledger, w0 = world
    for t in (1, 2, 3):
        site = begin()
        site.post(*training(w0, t))
        until = time.monotonic() + 60
        while lines(ledger) < t and time.monotonic() < until:
            time.sleep(0.001)
        site.kill()
        assert "error" not in begin().ask(*training(w0, t)).facts
        assert lines(ledger) == t


def test_a_server_that_replays_a_round_is_refused(world, begin):
    *_, ledger, w0 = world
    site = begin()
    honest = site.ask(*training(w0))
    w0.values[0] += 1.0
    said = site.ask(*training(w0))
    assert "local_train of round 1 was answered before" in said.facts["error"]
    assert not said.arrays
    site.kill()
    assert "was answered before" in begin().ask(*training(w0)).facts["error"]
    assert lines(ledger) == 1
    counting = begin(more='replays = "count"\n').ask(*training(w0))
    assert lines(ledger) == 2
    moved = honest.arrays["values"] - counting.arrays["values"]
    assert float(moved[1:].abs().max()) > 1e-4  # other noise


def test_a_server_that_asks_past_the_limit_is_refused(world, begin):
    """The limit is enough for the job; a server asks for the same rounds of ever new models."""
    path, file, ledger, w0 = world
    job = Job.read(path.read_text(), "here")
    problem = read_site_file(file).placed(job.row.task, "here").problem()
    own = {SITE: problem.sites[SITE]}
    limit = job.row.budgets(Layout.of(problem.network()), own)[SITE].epsilon + 1e-6
    site = begin(limit, more='replays = "count"\n')
    _, q, sigma, steps = site.ask(*training(w0)).facts["spent"]
    paid = next(n for n in count(1) if epsilon(q, sigma, n * steps, 1e-3) > limit) - 1
    assert paid >= 4  # the job's own rounds
    for _ in range(paid - 1):
        w0.values[0] += 1.0
        assert "error" not in site.ask(*training(w0)).facts
    assert "error" not in site.ask(*training(w0)).facts  # the same answer once more
    w0.values[0] += 1.0
    said = site.ask(*training(w0)).facts["error"]
    assert "its privacy budget is spent" in said
    assert f"this site's limit is {limit:.6g}" in said
    assert lines(ledger) == paid


def test_a_site_takes_no_job_that_would_end_past_its_limit(world, begin):
    """It says so when it is asked to join: nothing is spent at any site."""
    *_, ledger, _ = world
    with pytest.raises(AssertionError, match="and with this job it would have spent"):
        begin(0.5)
    assert lines(ledger) == 0


def test_a_site_with_a_limit_takes_no_job_without_noise(world, tmp_path):
    path, file, _, _ = world
    study = tmp_path / "world" / "study.toml"
    path.write_text(job_of(read_study(study), "auto-fedavg").text())
    file.write_text(f"{file.read_text()}\n[privacy]\nepsilon = 8.0\n")
    site = SiteProcess(path, SITE, file)
    try:
        said = site.ask("hello", Message({}, {})).facts["error"]
    finally:
        site.kill()
    assert "limit is epsilon = 8, and this job has no privacy.train_noise" in said
    assert "theta_noise" in said
