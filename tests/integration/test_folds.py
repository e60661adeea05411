"""Cross-validation: a study's folds are run apart and pooled in its table."""

import csv
import json
import shutil
import statistics

import numpy as np
import pytest
from PIL import Image

from autofedavg import cli, read_study
from autofedavg.errors import ConfigError, RunError
from autofedavg.experiment.store import RunFolder
from autofedavg.report.classes import classes_table
from autofedavg.report.read import read_results
from autofedavg.report.tables import scores_table

STUDY = """
[study]
folds = [0, 1, 2]

[base]
rounds = 1

[base.task]
name = "datalist"
datalist = "list.csv"

[base.task.classes]
disc = [1]
bar = [2]

[base.task.pipeline]
roi = [16, 16]
channels = [4, 8]
strides = [[2, 2]]

[base.training]
iterations = 1
batch_size = 2

[[run]]
name = "fedavg"
method = { name = "fedavg" }

[[run]]
name = "even"
method = { name = "fedavg", weights = "even" }
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Two sites of six flat pictures with two classes, in three folds; the study run once."""
    home = tmp_path_factory.mktemp("folds")
    draw = np.random.default_rng(0)
    with (home / "list.csv").open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(("site", "case", "image", "label", "fold"))
        for number in range(12):
            label = np.zeros((16, 16), np.uint8)
            label[3:8, 3:8], label[10:12, 2:14] = 1, 2
            image = draw.integers(0, 60, (16, 16)).astype(np.uint8) + 80 * label
            Image.fromarray(image).save(home / f"{number}.png")
            Image.fromarray(label).save(home / f"{number}-label.png")
            place = (f"{number}.png", f"{number}-label.png")
            table.writerow((f"site-{number % 2}", f"case-{number}", *place, number // 2 % 3))
    (home / "study.toml").write_text(STUDY)
    assert cli._main(["run", str(home / "study.toml"), "--out", str(home / "runs")]) == 0
    return home


def test_every_case_is_tested_once_over_the_folds(home) -> None:
    for row in ("fedavg", "even"):
        tested = [
            (score.site, score.case)
            for fold in range(3)
            for score in RunFolder(
                home / "runs" / "study" / row / f"fold-{fold}" / "seed-0"
            ).scores()
            if score.model == "global" and score.metric == "dice"
        ]
        assert sorted(tested) == sorted((f"site-{n % 2}", f"case-{n}") for n in range(12))


def test_the_table_pools_the_folds_of_a_seed(home) -> None:
    results = read_results([home / "runs"])
    assert results.title == "study"
    table = scores_table(results)
    values = {}
    for fold in range(3):
        run = RunFolder(home / "runs" / "study" / "fedavg" / f"fold-{fold}" / "seed-0")
        for score in run.scores():
            if score.model == "global" and score.metric == "dice":
                values.setdefault(score.site, []).append(100 * score.value)
    means = [statistics.fmean(values[site]) for site in ("site-0", "site-1")]
    cells = dict(table.rows)["fedavg"]
    assert [cell.value for cell in cells[:2]] == pytest.approx(means)
    assert cells[2].value == pytest.approx(statistics.fmean(means))
    assert any("folds 0, 1, 2" in note for note in table.notes)
    assert any("per row: 1;" in note for note in table.notes)


def test_classes_have_a_table_of_their_own(home, capsys) -> None:
    table = classes_table(read_results([home / "runs"]))
    assert table.heads == ("bar", "disc")
    assert cli._main(["report", str(home / "runs"), "--json"]) == 0
    printed = {made["name"]: made for made in json.loads(capsys.readouterr().out)}
    shown = printed["classes"]["rows"][0]["columns"]["disc"]["value"]
    scores = [
        [
            100 * score.value
            for fold in range(3)
            for score in RunFolder(
                home / "runs" / "study" / "fedavg" / f"fold-{fold}" / "seed-0"
            ).scores()
            if (score.model, score.metric, score.site) == ("global", "dice:disc", site)
        ]
        for site in ("site-0", "site-1")
    ]
    assert shown == pytest.approx(statistics.fmean(map(statistics.fmean, scores)))


def test_a_seed_that_lacks_a_fold_is_not_counted_and_said(home, tmp_path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(home / "runs", runs)
    shutil.rmtree(runs / "study" / "even" / "fold-1")
    table = scores_table(read_results([runs]))
    assert all(cell.value is None for cell in dict(table.rows)["even"])
    assert any("even, seed 0: not counted, for not all its folds" in note for note in table.notes)
    assert cli._main(["resume", str(runs / "study")]) == 0
    assert all(
        cell.value is not None for cell in dict(scores_table(read_results([runs])).rows)["even"]
    )


def test_folds_may_be_chosen_and_wrong_ones_are_told(home, tmp_path) -> None:
    study = read_study(home / "study.toml", folds=[1])
    assert [(run.name, fold, run.task.fold) for run, fold, _ in study.jobs()] == [
        ("fedavg", 1, 1),
        ("even", 1, 1),
    ]
    with pytest.raises(ConfigError, match="a fold is listed twice"):
        read_study(home / "study.toml", folds=[1, 1])
    bad = tmp_path / "bad.toml"
    bad.write_text('[study]\nfolds = [0]\n[[run]]\nname = "a"\n'
                   'task = { name = "synthetic" }\nmethod = { name = "fedavg" }\n')  # fmt: skip
    with pytest.raises(ConfigError, match="folds are listed, and the task of row 'a' has none"):
        read_study(bad)


def test_one_fold_alone_cannot_be_mixed_with_another_split_of_it(home, tmp_path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(home / "runs", runs)
    path = runs / "study" / "even" / "fold-1" / "seed-0" / "environment.json"
    about = json.loads(path.read_text())
    about["data"]["split_sha256"] = "another"
    path.write_text(json.dumps(about))
    with pytest.raises(RunError, match="the split of the data differs"):
        read_results([runs])
