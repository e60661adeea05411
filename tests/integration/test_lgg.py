"""The four-hospital study, on the real scans where they are at hand."""

import csv
import os
from collections import Counter
from pathlib import Path

import pytest

from autofedavg import cli, read_study
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.studies.study_file import study_path

ROOT = Path(__file__).parents[2]
LIST = study_path("study-lgg").with_suffix(".csv")
BUILTIN = LIST.parent


def data_home() -> Path:
    beside = ROOT.parent / "shared" / "data"
    return Path(os.environ.get("AUTOFEDAVG_DATA") or beside)


@pytest.fixture
def scans(monkeypatch) -> None:
    if not (data_home() / "lgg_flair_3d").is_dir():
        pytest.skip("the LGG scans are not here: set AUTOFEDAVG_DATA")
    monkeypatch.setenv("AUTOFEDAVG_DATA", str(data_home()))


def test_the_committed_folds_test_every_patient_once() -> None:
    with LIST.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert Counter(row["site"] for row in rows) == {"CS": 16, "DU": 45, "FG": 14, "HT": 34}
    patients = Counter(row["case"].rpartition("_")[0] for row in rows)
    assert set(patients.values()) == {1}  # one case a patient: a split by case is one by patient
    assert all(row["case"].split("_")[1] == row["site"] for row in rows)
    study = read_study("study-lgg")
    tested = Counter()
    for run, fold, seed in study.jobs():
        if run.name == "fedavg" and seed == 0:
            splits = run.task.splits
            for site, cases in splits.items():
                count = Counter(cases.values())
                assert count["test"] >= 2, (site, fold)
                assert count["validation"] >= 2
                assert count["train"] >= 8
                tested.update((site, case) for case, split in cases.items() if split == "test")
    assert len(tested) == 109
    assert set(tested.values()) == {1}


def test_nothing_is_resampled_where_the_spacing_is_unknown() -> None:
    for run in read_study("study-lgg").runs:
        assert run.task.pipeline.spacing == "keep"
        assert run.task.pipeline.normalise == "zscore"


@pytest.mark.data
@pytest.mark.slow
def test_a_short_run_improves_over_its_first_round(scans, tmp_path) -> None:
    """Few rounds, small crops and a narrow network, through the command."""
    small = {
        "training.precision": "float32",
        "rounds": 3,
        "training.iterations": 20,
        "training.schedule": "constant",
        "task.pipeline.roi": "[64,64,16]",
        "task.pipeline.overlap": 0.0,
        "task.pipeline.channels": "[8,16,32]",
        "task.pipeline.strides": "[[2,2,1],[2,2,2]]",
    }
    sets = [part for key, value in small.items() for part in ("--set", f"{key}={value}")]
    only = ["--only", "n-dirichlet", "--folds", "0", "--seeds", "0", "--set", "method.S=5"]
    assert cli._main(["run", "study-lgg", *only, *sets, "--out", str(tmp_path)]) == 0
    run = RunFolder(tmp_path / "study-lgg" / "n-dirichlet" / "fold-0" / "seed-0")
    scores = [line["validation"]["mean"] for line in run.rounds()]
    assert scores[-1] > 1.2 * scores[0]
    tested = {row.case for row in run.scores() if row.model == "global"}
    assert len(tested) == 4 + 9 + 3 + 7


SITES = {"CS": 16, "DU": 45, "FG": 14, "HT": 34}


def lines_of(folder: object) -> list[str]:
    return [f"{site}: none of its {2 * n} files is in {folder}" for site, n in SITES.items()]


@pytest.mark.parametrize("verb", ["check", "run"])
def test_without_its_data_a_study_says_what_to_do_in_a_line_for_each_site(
    verb, say, monkeypatch, tmp_path
) -> None:
    monkeypatch.setenv("AUTOFEDAVG_DATA", str(tmp_path / "nodata"))
    monkeypatch.chdir(tmp_path)
    code, _, err = say(verb, "study-lgg")
    assert code == 3
    first, *sites, last = err.splitlines()
    assert first.endswith("study-lgg.csv: 218 files are missing:")
    assert [line.strip() for line in sites] == lines_of(BUILTIN / "lgg_flair_3d")
    assert "set task.root to the folder the list's paths begin at, or AUTOFEDAVG_DATA to" in last
    assert f"({tmp_path / 'nodata' / 'lgg_flair_3d'} is none)" in last
    assert "docs/how-to/data.md says where to get the files" in last


def test_without_its_data_the_list_says_so_in_a_line_for_each_site(say) -> None:
    code, _, err = say("data", "datalist", BUILTIN / "study-lgg.csv")
    assert code == 3
    _, *sites, last = err.splitlines()
    assert [line.strip() for line in sites] == lines_of(BUILTIN)
    assert "set task.root to the folder the list's paths begin at; docs/how-to/data.md" in last
