"""A site's ledger on disk: whole, shared by processes, and the limit of the site's file."""

import fcntl
import json
import math
import os
import resource
from pathlib import Path

import pytest

from autofedavg.core.accountant import epsilon
from autofedavg.core.bank import Layout
from autofedavg.core.errors import ConfigError
from autofedavg.core.seeds import Seeds
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.policy import Refused
from autofedavg.engines.remote.site_files import SitePrivacy, SiteState, read_site_file
from autofedavg.engines.remote.site_ledger import FileLedger, site_privacy
from autofedavg.experiment.config import parse_run
from autofedavg.federation.ledger import BudgetError, Entry, Limit
from synced import synced_to
from toy import toy_problem

FIRST = Entry("job", "local_train", 1, 0, "train", 0.1, 2.0, 50, "digest-1")


def next_one(t: int) -> Entry:
    return FIRST._replace(t=t, digest=f"digest-{t}")


def test_what_one_process_spends_the_next_one_knows(tmp_path: Path):
    path = tmp_path / "privacy.jsonl"
    before = os.umask(0)
    try:
        FileLedger(path, Limit()).spend(FIRST)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text()) == FIRST._asdict()
    again = FileLedger(path, Limit())
    assert again.epsilon() == epsilon(0.1, 2.0, 50, 1e-3)
    again.spend(FIRST)
    assert path.read_text().count("\n") == 1


def test_processes_share_a_ledger(tmp_path: Path):
    path = tmp_path / "privacy.jsonl"
    one, other = (FileLedger(path, Limit(epsilon(0.1, 2.0, 120, 1e-3))) for _ in range(2))
    one.spend(next_one(1))
    other.spend(next_one(2))
    with pytest.raises(BudgetError, match="budget is spent"):
        one.spend(next_one(3))
    one.spend(next_one(2))
    assert path.read_text().count("\n") == 2


def test_a_line_is_on_the_disk_before_anything_is_released(tmp_path: Path, monkeypatch):
    """A machine that loses power after an answer has left still knows that it was paid for."""
    path = tmp_path / "privacy.jsonl"
    found = synced_to(monkeypatch)
    ledger = FileLedger(path, Limit())
    ledger.spend(FIRST)
    first = json.dumps(FIRST._asdict()).encode() + b"\n"
    assert found == [(path.name, first), (tmp_path.name, b"")]  # the new file's name, too
    ledger.spend(next_one(2))
    both = first + json.dumps(next_one(2)._asdict()).encode() + b"\n"
    assert found[2:] == [(path.name, both)]


def test_a_request_whose_line_could_not_be_written_is_not_known_when_it_comes_again(
    tmp_path: Path, monkeypatch
):
    """Else it would be answered as a repeated one, with nothing on the disk."""

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "privacy.jsonl"
    ledger = FileLedger(path, Limit())
    ledger.spend(FIRST)
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(ConfigError, match=r"No space left on device.*nothing is released"):
                ledger.spend(next_one(2))
        assert ledger.epsilon() == epsilon(0.1, 2.0, 50, 1e-3)
    ledger.spend(next_one(2))
    assert [json.loads(line)["t"] for line in path.read_text().splitlines()] == [1, 2]


def test_a_line_that_fits_only_in_part_is_taken_back(tmp_path: Path):
    path = tmp_path / "privacy.jsonl"
    ledger = FileLedger(path, Limit())
    ledger.spend(FIRST)
    whole = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 10, hard))
    try:
        with pytest.raises(ConfigError, match="nothing is released"):
            ledger.spend(next_one(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == whole
    ledger.spend(next_one(2))
    assert [json.loads(line)["t"] for line in path.read_text().splitlines()] == [1, 2]


def test_one_process_at_a_time_decides_what_may_be_spent(tmp_path: Path, monkeypatch):
    path = tmp_path / "privacy.jsonl"
    ledger, keep = FileLedger(path, Limit()), FileLedger._keep

    def watched(self: FileLedger, entry: Entry) -> None:
        with path.open("rb") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        keep(self, entry)

    monkeypatch.setattr(FileLedger, "_keep", watched)
    ledger.spend(FIRST)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # and lets go of it


@pytest.mark.parametrize("cut", [1, 30, 100])
def test_half_a_line_is_cut_off_and_the_rest_holds(tmp_path: Path, cut: int):
    path = tmp_path / "privacy.jsonl"
    FileLedger(path, Limit()).spend(FIRST)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:cut].replace(b"digest-1", b"digest-2"))
    ledger = FileLedger(path, Limit())
    assert path.read_bytes() == whole
    ledger.spend(next_one(2))
    assert [json.loads(line)["t"] for line in path.read_text().splitlines()] == [1, 2]


def test_a_damaged_ledger_is_refused(tmp_path: Path):
    path = tmp_path / "privacy.jsonl"
    path.write_text('{"job": 1}\n')
    with pytest.raises(ConfigError, match="what was released cannot be taken back"):
        FileLedger(path, Limit())
    path.unlink()
    FileLedger(path, Limit()).spend(next_one(1))
    whole = json.loads(path.read_text())
    for wrong in (
        {"sigma": math.nan}, {"sigma": math.inf}, {"sigma": 0.0}, {"sigma": None}, {"q": 2.0},
        {"q": "a"}, {"steps": -5}, {"steps": 1.5}, {"steps": True}, {"t": "1"}, {"job": 3},
    ):  # fmt: skip
        path.write_text(f"{json.dumps({**whole, **wrong})}\n")
        with pytest.raises(ConfigError, match=r"line 1 after byte 0 is damaged \("):
            FileLedger(path, Limit(1.0))
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="cannot be written"):
        FileLedger(path, Limit())


NOISY_THETA = {"theta_clip": 1.0, "theta_noise": 1.0}
NOISY = {**NOISY_THETA, "train_clip": 1.0, "train_noise": 1.0}


@pytest.mark.parametrize("learning", ["clients", "server", "blind"])
@pytest.mark.parametrize(
    ("covers", "privacy", "lacks"),
    [
        ("all", {}, "no privacy.train_noise and no privacy.theta_noise"),
        ("all", {"train_clip": 1.0, "train_noise": 1.0}, "no privacy.theta_noise"),
        ("all", NOISY_THETA, "no privacy.train_noise"),
        ("all", NOISY, ""),
        ("weights", {}, "no privacy.theta_noise"),
        ("weights", NOISY_THETA, ""),
    ],
)
def test_under_a_limit_nothing_leaves_without_noise(
    tmp_path: Path, learning, covers, privacy, lacks
):
    method = {"name": "auto-fedavg", "learning": learning}
    values = {"task": {"name": "synthetic"}, "method": method, "privacy": privacy}
    row = parse_run({"name": "row", "rounds": 3, **values}, "here")
    job = Job("study", row, 0, ("A", "B", "C"), "network")
    problem = toy_problem(3)
    allowed = SitePrivacy(epsilon=800.0, covers=covers)
    given = (allowed, SiteState(tmp_path, "A"), problem.sites["A"], Layout.of(problem.network()))
    if not lacks:
        assert site_privacy(job, "A", *given, "machine").ledger.limit.epsilon == 800.0
        return
    with pytest.raises(Refused, match=rf"limit is epsilon = 800, and this job has {lacks}$"):
        site_privacy(job, "A", *given, "machine")


@pytest.mark.parametrize(
    ("privacy", "allowed", "says"),
    [
        ({"epsilon": 0.5}, {}, r"run row, privacy\.epsilon: the row would spend more than epsilon"),
        ({"delta": 0.6}, {}, r"run row, privacy\.delta, site A: delta = 0\.6 is no protection"),
        (
            {},
            {"epsilon": 1.0},
            r"privacy limit is epsilon = 1 at delta = 0\.001, and with this",
        ),
    ],
)
def test_a_job_that_must_spend_too_much_is_refused_before_it_spends_anything(
    tmp_path: Path, privacy, allowed, says
):
    """Neither `export` nor the server knows the site's numbers of patients."""
    values = {"task": {"name": "synthetic"}, "method": {"name": "auto-fedavg"}}
    noisy = {**NOISY, "delta": 1e-3, **privacy}
    row = parse_run({"name": "row", "rounds": 3, "privacy": noisy, **values}, "here")
    problem = toy_problem(3)
    job, data = Job("study", row, 0, ("A", "B", "C"), "network"), problem.sites["A"]
    where = (SiteState(tmp_path, "A"), data, Layout.of(problem.network()), "machine")
    with pytest.raises(Refused, match=says):
        site_privacy(job, "A", SitePrivacy(**allowed), *where)
    if allowed:  # enough for it, and for it alone
        needed = job.row.budgets(where[2], {"A": data})["A"].epsilon + 1e-9
        steps = site_privacy(job, "A", SitePrivacy(epsilon=needed), *where)
        steps.ledger.spend(next_one(1)._replace(job=steps._job))
        assert site_privacy(job, "A", SitePrivacy(epsilon=needed), *where)  # resumed
        steps.ledger.spend(next_one(2)._replace(job="another"))
        with pytest.raises(Refused, match="it would have spent"):
            site_privacy(job, "A", SitePrivacy(epsilon=needed), *where)


def test_another_job_data_set_or_machine_is_another_job_of_the_ledger(tmp_path: Path):
    """Releases of one job may count in parallel, those of two never do."""

    def job_in_ledger(rounds: int = 3, machine: str = "cpu, data 1") -> str:
        values = {"task": {"name": "synthetic"}, "method": {"name": "auto-fedavg"}}
        row = parse_run({"name": "row", "rounds": rounds, "privacy": NOISY, **values}, "here")
        problem = toy_problem(3)
        layout = Layout.of(problem.network())
        job, data = Job("study", row, 0, ("A", "B", "C"), "network"), problem.sites["A"]
        state = SiteState(tmp_path, "A")
        steps = site_privacy(job, "A", SitePrivacy(), state, data, layout, machine)
        how = {"t": 1, "s": 1, "data": "validation", "mode": "eval"}
        return steps.weighing("differentiate", how, problem.initial(Seeds(0))[0]).entry.job

    names = [job_in_ledger(), job_in_ledger(rounds=4), job_in_ledger(machine="cpu, data 2")]
    assert len(set(names)) == 3
    assert job_in_ledger() == names[0]


def test_the_limit_is_in_the_sites_own_file(tmp_path: Path):
    file = tmp_path / "autofedavg.toml"
    file.write_text("[privacy]\nepsilon = 8.0\ndelta = 1e-4\n")
    found = read_site_file(file).privacy
    assert found.limit() == Limit(8.0, 1e-4, "refuse")
    assert found.covers == "all"
    assert SitePrivacy(replays="count").limit().replays == "count"
    file.write_text("[privacy]\nepsilonn = 8.0\n")
    with pytest.raises(ConfigError, match="did you mean epsilon"):
        read_site_file(file)
