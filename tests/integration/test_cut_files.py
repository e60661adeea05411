"""Finished runs with a file cut off at the end of a line: every reader refuses them."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from autofedavg.experiment.archive import archive
from autofedavg.experiment.archive_reader import as_folder
from folders import write_study

Cut = Callable[[Path], None]
DIGEST = "scores_sha256"


def head(name: str, kept: int) -> Cut:
    """The first lines of a file alone."""

    def cut(run: Path) -> None:
        lines = (run / name).read_bytes().splitlines(keepends=True)
        (run / name).write_bytes(b"".join(lines[:kept]))

    return cut


def tail(run: Path) -> None:
    lines = (run / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (run / "rounds.jsonl").write_bytes(b"".join(lines[1:]))


CUTS: dict[str, tuple[str, Cut]] = {
    "scores": ("scores.csv", head("scores.csv", -4)),
    "all scores": ("scores.csv", head("scores.csv", 1)),
    "no scores": ("scores.csv", lambda run: (run / "scores.csv").unlink()),
    "one round": ("rounds.jsonl", head("rounds.jsonl", 1)),
    "no round": ("rounds.jsonl", head("rounds.jsonl", 0)),
    "no file of rounds": ("rounds.jsonl", lambda run: (run / "rounds.jsonl").unlink()),
    "not the first round": ("rounds.jsonl", tail),
}


@pytest.fixture
def home(tmp_path) -> Path:
    return write_study(tmp_path / "study", sites=("A", "B"), cases=3, rounds=3)


@pytest.mark.parametrize(("name", "cut"), CUTS.values(), ids=CUTS)
def test_a_finished_run_that_was_cut_off_is_refused(home, tmp_path, say, name, cut) -> None:
    run, other = home / "fedavg" / "seed-0", home / "n-dirichlet" / "seed-0"
    cut(run)
    for asked in (
        ("report", home),
        ("compare", run, other),
        ("archive", home, "--out", tmp_path / "out"),
    ):
        code, out, err = say(*asked)
        assert (code, out) == (1, ""), asked
        assert f"error: {run / name}: " in err
        assert "; put it back from a copy, or leave this run out" in err
    assert not (tmp_path / "out").exists()


def test_an_error_says_what_is_wrong(home, say) -> None:
    run = home / "fedavg" / "seed-0"
    tail(run)
    said = say("report", run)[2]
    assert "the run finished with rounds 1 to 3, and this file has 2" in said
    head("scores.csv", 2)(home / "n-dirichlet" / "seed-0")
    said = say("report", home / "n-dirichlet")[2]
    assert "its contents do not match the hash in status.json" in said


def test_a_run_that_goes_on_may_have_any_number_of_rounds(home, say) -> None:
    run = home / "fedavg" / "seed-0"
    head("rounds.jsonl", 1)(run)
    (run / "scores.csv").unlink()
    (run / "status.json").write_text('{"schema": 1, "state": "interrupted"}')
    code, out, err = say("report", home)
    assert (code, err) == (0, "")
    assert "FEDAVG, seed 0: interrupted, not counted." in out


def test_a_folder_without_the_digest_is_read(home, say) -> None:
    """Of an earlier version, whose status.json says nothing of scores.csv."""
    wanted = say("report", home)
    for status in home.rglob("status.json"):
        content = json.loads(status.read_text())
        assert len(content.pop(DIGEST)) == 64
        status.write_text(json.dumps(content))
    assert say("report", home) == wanted


def test_the_digest_holds_in_archives_and_of_packed_scores(home, tmp_path, say) -> None:
    wanted = say("report", home)
    archive([home], tmp_path / "one")
    assert say("report", tmp_path / "one" / "study.zip") == wanted
    archive([tmp_path / "one" / "study.zip"], tmp_path / "two")
    assert say("report", tmp_path / "two" / "study.zip") == wanted
    packed = tmp_path / "packed" / "study"
    shutil.copytree(as_folder(tmp_path / "one" / "study.zip"), packed)
    for scores in packed.rglob("scores.csv"):
        scores.with_name("scores.csv.gz").write_bytes(gzip.compress(scores.read_bytes()))
        scores.unlink()
    assert say("report", packed) == wanted
    head("rounds.jsonl", 2)(packed / "fedavg" / "seed-0")
    assert say("report", packed)[0] == 1
