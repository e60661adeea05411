"""What a site keeps from round to round outlives its process: theta, and personal models."""

import os
import time
from pathlib import Path

import pytest
import torch
from tests_tiny import TINY

from autofedavg import cli, read_study
from autofedavg.core.errors import FederationError
from autofedavg.engines.remote.server import host
from autofedavg.engines.remote.stored_states import DAYS, StoredStates
from autofedavg.experiment.folder import Ledger
from autofedavg.federation.messages import NoReply
from autofedavg.federation.personal import KeptStates
from deployed import InProcessTransport, assert_same_run, job_of

ROWS = {
    "fedavg": "name = 'fedavg'",
    "blind": "name = 'auto-fedavg', learning = 'blind', sketch = 256",
    "ditto": "name = 'ditto'",
}
RUN = "0123456789abcdef" * 2


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """The state folder of all sites."""
    monkeypatch.setenv("AUTOFEDAVG_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def job_for(row: str, folder: Path):
    study = folder / "study.toml"
    head = TINY[: TINY.index("[[run]]")].replace('baseline = "fedavg"\n', "")
    study.write_text(f'{head}[[run]]\nname = "{row}"\nmethod = {{ {ROWS[row]} }}\n')
    return job_of(read_study(study), row)


def lost_in(t: int):
    """No site is heard of in this round's validation, so the run fails there."""

    def spoil(verb, site, answer):
        asked = len(rounds.setdefault((verb, site), []))
        rounds[verb, site].append(verb)
        return NoReply("gone") if verb == "evaluate" and asked >= t - 1 else answer

    rounds = {}
    return spoil


def cut_short(job, runs: Path) -> Path:
    """A run that ends after two of three rounds; its processes are gone."""
    with pytest.raises(FederationError):
        host(job, InProcessTransport(job, spoil=lost_in(3)), runs)
    assert len(Ledger(job.folder(runs)).rounds()) == 2
    return job.folder(runs)


def events_of(run: Path) -> list[str]:
    return [event["what"] for line in Ledger(run).rounds() for event in line["events"]]


@pytest.mark.parametrize("row", ["blind", "ditto"])
def test_a_job_that_is_submitted_again_continues_as_if_no_process_had_ended(row, home, tmp_path):
    job = job_for(row, tmp_path)
    whole = host(job, InProcessTransport(job), tmp_path / "whole")
    run = cut_short(job, tmp_path / "cut")
    assert host(job, InProcessTransport(job), tmp_path / "cut") == run
    assert_same_run(whole, run)
    assert "restarted" not in events_of(run)


def test_a_run_of_the_same_job_in_another_folder_is_another_run(home, tmp_path):
    job = job_for("blind", tmp_path)
    run = cut_short(job, tmp_path / "cut")
    whole = host(job, InProcessTransport(job), tmp_path / "whole")
    host(job, InProcessTransport(job), tmp_path / "cut")
    assert_same_run(whole, run)
    assert len([*(home / "I" / "kept").iterdir()]) == 2


@pytest.mark.parametrize("spoilt", ["removed", "changed"])
def test_a_site_that_lost_its_disk_says_so_and_the_report_too(spoilt, home, tmp_path, capsys):
    job = job_for("blind", tmp_path)
    run = cut_short(job, tmp_path / "cut")
    for path in (home / "II" / "kept").rglob("*.state"):
        path.unlink() if spoilt == "removed" else path.write_bytes(path.read_bytes()[:-1] + b"!")
    host(job, InProcessTransport(job), tmp_path / "cut")
    assert events_of(run).count("restarted") == 1
    assert cli._main(["report", str(run)]) == 0
    said = "II had lost what it had kept from round to round, and started again in round 3"
    assert said in " ".join(capsys.readouterr().out.split())


def test_only_this_user_reads_it_and_only_what_is_needed_stays(home, tmp_path):
    job = job_for("blind", tmp_path)
    host(job, InProcessTransport(job), tmp_path / "runs")
    for site in job.sites:
        folders = [home / site, home / site / "kept", *(home / site / "kept").iterdir()]
        assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}
        files = [path for path in (home / site / "kept").rglob("*") if path.is_file()]
        assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
        assert len(files) == 2  # of the last round, and of the one before, for a server that died


def test_rows_without_such_states_write_nothing(home, tmp_path):
    job = job_for("fedavg", tmp_path)
    host(job, InProcessTransport(job), tmp_path / "runs")
    assert not [*home.rglob("kept")]


def test_old_folders_go_when_a_new_run_begins(tmp_path):
    old, new = (StoredStates(tmp_path / "site", run, KeptStates()) for run in (RUN, RUN[::-1]))
    for stored in (old, new):
        stored._kept.keep({"theta": torch.zeros(1)})
    old.save()
    before = time.time() - (DAYS + 1) * 86400
    os.utime(tmp_path / "site" / "kept" / RUN, (before, before))
    (tmp_path / "site" / "kept" / "mine").mkdir()
    os.utime(tmp_path / "site" / "kept" / "mine", (before, before))
    new.save()
    assert {path.name for path in (tmp_path / "site" / "kept").iterdir()} == {RUN[::-1], "mine"}


def test_a_disk_that_takes_nothing_stops_no_run(home, tmp_path, caplog):
    home.mkdir()
    (home / "I").write_text("in the way")
    job = job_for("blind", tmp_path)
    run = host(job, InProcessTransport(job), tmp_path / "runs")
    assert Ledger(run).status() == "finished"
    assert "cannot be written" in caplog.text
