"""`report`, `compare` and `archive` of runs that are not finished."""

from pathlib import Path

import pytest

from autofedavg.experiment.folder_writer import RunFolder
from folders import METHODS, write_study

ROWS = {name: METHODS[name] for name in ("fedavg", "n-dirichlet")}


@pytest.fixture
def home(tmp_path) -> Path:
    return write_study(tmp_path / "study", ROWS, rounds=3)


def stop(run: Path, state: str = "running") -> Path:
    """A run that has written its first round alone."""
    lines = (run / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (run / "rounds.jsonl").write_bytes(lines[0])
    (run / "scores.csv").unlink()
    (run / "status.json").write_text(f'{{"schema": 1, "state": "{state}"}}')
    return run


def test_a_killed_run_is_not_said_to_be_running(home, tmp_path, say) -> None:
    run = stop(home / "fedavg" / "seed-0")
    _, out, _ = say("report", home)
    assert "FEDAVG, seed 0: killed, not counted; `autofedavg resume` continues it." in out
    said = say("archive", home, "--out", tmp_path / "out")[2]
    assert f"{run}: this run is not finished, but killed; finish it with `autofedavg re" in said
    assert "FEDAVG, seed 0, killed" in say("compare", run, home / "n-dirichlet")[1]
    for name in ("kept-sites-1", "kept-global-1"):
        RunFolder(run).save(name, {}, {})
    assert "not finished, but killed" in say("ceiling", run)[2]


def test_a_run_whose_process_lives_is_running(home, tmp_path, say) -> None:
    run = stop(home / "fedavg" / "seed-0")
    with RunFolder(run).lock():
        _, out, _ = say("report", home)
        assert "FEDAVG, seed 0: running, not counted." in out
        said = say("archive", home, "--out", tmp_path / "out")[2]
        assert "this run is not finished, but running" in said


@pytest.mark.parametrize("format", ["text", "markdown"])
def test_without_a_score_nothing_is_said_of_scores(home, say, format) -> None:
    for row in ROWS:
        stop(home / row / "seed-0", "interrupted")
    code, out, _ = say("report", home, "--format", format)
    assert code == 0
    assert "FEDAVG, seed 0: interrupted, not counted." in out
    for said in ("tested are", "Repeats (seeds)", "best per column", "† better than"):
        assert said not in out
    assert "n counts all cases of a site. There are no test scores." in out


def test_a_row_without_a_score_is_counted_beside_others(home, say) -> None:
    stop(home / "fedavg" / "seed-0", "interrupted")
    out = say("report", home)[1]
    assert "tested are 6 of A, 6 of B, 6 of C." in out
    assert "Repeats (seeds) per row: 1 of N-DIRICHLET; 0 of FEDAVG;" in out
