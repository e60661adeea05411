"""Run folders that version 0.1 wrote: they are reported, compared, applied, archived and resumed.

tests/data/version-0.1.zip holds a study of two rows on generated hospitals: `fedavg` is finished,
`n-dirichlet` was interrupted after the second of three rounds. `uninterrupted/` holds the numbers
of the same run without the interruption, also of version 0.1.
"""

import csv
import json
import zipfile
from pathlib import Path

import pytest

from autofedavg import cli, resume
from autofedavg.experiment.archive import archive
from autofedavg.experiment.folder import Ledger
from autofedavg.report.provenance import settings_table
from autofedavg.report.read import read_results

FOLDERS = Path(__file__).parents[1] / "data" / "version-0.1.zip"
TIMED = ("time", "calls", "bytes_down", "bytes_up")  # differ, or are counted by other rules


@pytest.fixture
def old(tmp_path) -> Path:
    with zipfile.ZipFile(FOLDERS) as packed:
        packed.extractall(tmp_path / "old")  # our own
    return tmp_path / "old" / "interrupted"


def test_reports_read_it(old, capsys) -> None:
    assert cli._main(["report", str(old)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Written by version 0.1")
    assert "FedAvg " in out
    row = read_results([old]).row("fedavg")
    assert row.repeats[0].origin("method.weights").startswith("paper Sec. 3.1")
    assert row.repeats[0].origin("rounds") == "study"
    assert cli._main(["compare", str(old / "fedavg"), str(old / "n-dirichlet")]) == 0
    assert "method.constraint" in capsys.readouterr().out


def test_it_is_resumed_to_the_same_numbers(old) -> None:
    resume(old)
    assert read_results([old]).missing == ()
    run, whole = old / "n-dirichlet" / "seed-0", old.parent / "uninterrupted/n-dirichlet/seed-0"
    assert Ledger(run).finished
    mine, other = Ledger(run).rounds(), Ledger(whole).rounds()
    assert [line["t"] for line in mine] == [line["t"] for line in other] == [1, 2, 3]
    for one, two in zip(mine, other, strict=True):
        for key in two.keys() - {*TIMED}:
            assert flat(one[key]) == pytest.approx(flat(two[key]), abs=1e-4), key
    ours, theirs = (
        [*csv.reader((path / "scores.csv").read_text().splitlines())] for path in (run, whole)
    )
    assert [line[:-1] for line in ours] == [line[:-1] for line in theirs]
    values = ([float(line[-1]) for line in lines[1:]] for lines in (ours, theirs))
    assert next(values) == pytest.approx(next(values), abs=1e-3)


def flat(value) -> list:
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in flat(value[key])]
    if isinstance(value, list):
        return [leaf for inner in value for leaf in flat(inner)]
    return [value]


def test_settings_that_did_nothing_then_and_are_refused_now_do_not_stop_it(old, tmp_path) -> None:
    idle = {'layer = "module"': 'layer = "tensor"', "test_every = 0": "test_every = 99"}
    run = old / "n-dirichlet" / "seed-0"
    text = (run / "config.toml").read_text()
    for before, after in idle.items():
        assert before in text
        text = text.replace(before, after)
    (run / "config.toml").write_text(text)
    resume(old)
    assert Ledger(run).finished
    out = ["--format", "torchscript", "--out", str(tmp_path / "model")]
    assert cli._main(["export-model", str(run), *out]) == 0


def test_its_models_are_found(old, tmp_path) -> None:
    out = tmp_path / "model"
    run = old / "fedavg" / "seed-0"
    assert cli._main(["export-model", str(run), "--format", "torchscript", "--out", str(out)]) == 0


def test_it_is_archived_with_its_origins(old, tmp_path) -> None:
    archive([old / "fedavg"], tmp_path / "out")
    (packed,) = (tmp_path / "out").iterdir()
    before, after = (settings_table(read_results([path])) for path in (old / "fedavg", packed))
    assert before.rows == after.rows


def test_origins_come_from_their_file_and_not_from_comments(tiny_home, tmp_path) -> None:
    archive([tiny_home], tmp_path)
    (packed,) = tmp_path.glob("*.zip")
    bare = tmp_path / "bare.zip"
    with zipfile.ZipFile(packed) as whole, zipfile.ZipFile(bare, "w") as copy:
        for name in whole.namelist():
            lines = whole.read(name).decode().splitlines(keepends=True)
            if name.endswith("config.toml"):
                lines = [line.partition("  #")[0].rstrip("\n") + "\n" for line in lines]
            copy.writestr(name, "".join(lines))
    before, after = (settings_table(read_results([path])) for path in (tiny_home, bare))
    assert before.rows == after.rows
    origins = json.loads((tiny_home / "fedavg/seed-0/origins.json").read_text())["origins"]
    assert origins["training.batch_size"] == "study"
    assert origins["training.optimiser"] == "paper Sec. 4.2.1"


def test_a_checkpoint_that_does_not_say_its_round_is_named(old, capsys) -> None:
    run = old / "n-dirichlet" / "seed-0"
    last = run / "checkpoints" / "last-2.json"
    facts = json.loads(last.read_text())
    del facts["t"]
    last.write_text(json.dumps(facts))
    assert cli._main(["resume", str(run)]) == 1
    err = capsys.readouterr().err
    assert f"{last}: this checkpoint cannot be resumed from (KeyError: 't')" in err
