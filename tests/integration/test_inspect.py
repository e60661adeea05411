"""Inspections of real data, and the study that is written for a list."""

import os
from pathlib import Path

import numpy as np
import pytest

from autofedavg.studies.study_file import study_path
from autofedavg.tasks.imaging.cache import data_home
from autofedavg.tasks.inspection.look import inspect
from autofedavg.tasks.lists.starting import starting_study
from autofedavg.tasks.lists.task import Datalist
from volumes import save_nifti

ROOT = Path(__file__).parents[2]


def lgg_home() -> Path | None:
    beside = ROOT.parent / "shared" / "data" / "lgg_flair_3d"
    return next((p for p in (data_home("lgg_flair_3d"), beside) if p.is_dir()), None)


@pytest.mark.data
@pytest.mark.skipif(lgg_home() is None, reason="lgg_flair_3d is not in AUTOFEDAVG_DATA")
def test_the_lower_grade_gliomas(tmp_path) -> None:
    task = Datalist(
        datalist=str(study_path("study-lgg").with_suffix(".csv")), root=str(lgg_home()), fold=0
    )
    found = inspect(task)
    text = found.text()
    assert "109 cases of 4 sites" in text
    head = next(line for line in text.splitlines() if line.split() == ["CS", "DU", "FG", "HT"])
    assert head
    assert "unknown" in text
    (shift,) = found.shifts
    for table in (np.array(shift.before), np.array(shift.after)):
        assert table.shape == (4, 4)
        assert (table[~np.eye(4, dtype=bool)] > 0.01).all()
        assert (np.diag(table) == 0).all()
        np.testing.assert_array_equal(table, table.T)
    page = found.write(tmp_path)[0].read_text(encoding="utf-8")
    assert page.count("<img ") == 12


def test_the_starting_study_runs_as_it_is(tmp_path, command) -> None:
    rows = ["site,image,label"]
    random = np.random.RandomState(0)
    for site in "ab":
        for k in range(4):
            label = np.zeros((16, 16, 8), np.uint8)
            label[4:9, 4:9, 2:6] = 1
            image = (random.normal(100, 10, label.shape) + 50 * label).astype(np.float32)
            for what, values in (("image", image), ("label", label)):
                save_nifti(tmp_path / f"{site}{k}_{what}.nii.gz", values)
            rows.append(f"{site},{site}{k}_image.nii.gz,{site}{k}_label.nii.gz")
    (tmp_path / "list.csv").write_text("\n".join(rows))
    study = tmp_path / "first.toml"
    text = starting_study(tmp_path / "list.csv").replace("S = 10", "S = 1")
    study.write_text(text, encoding="utf-8")
    short = ("--set", "rounds=1", "--set", "training.iterations=1")
    home = {**os.environ, "AUTOFEDAVG_CACHE": str(tmp_path / "cache")}
    done = command("run", study, *short, "--out", tmp_path / "runs", env=home)
    assert done.returncode == 0, done.stderr
    ended = sorted((tmp_path / "runs" / "list").glob("*/seed-0/status.json"))
    assert [path.parts[-3] for path in ended] == ["fedavg", "fedavg-even", "n-dirichlet"]
    assert all('"finished"' in path.read_text() for path in ended)
    assert (tmp_path / "list.split-0.json").exists()
