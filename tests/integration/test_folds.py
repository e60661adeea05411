"""Cross-validation: a study's folds are run apart and pooled in its table."""

import csv
import json
import shutil
import statistics
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from autofedavg import cli, read_study
from autofedavg.core.errors import ConfigError, RunError
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.report.cases import classes_table
from autofedavg.report.read import read_results
from autofedavg.report.tables import scores_table, weights_table
from folders import written_anew

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
    assert any("folds 0, 1, 2" in message for message in table.notes)
    assert any("per row: 1;" in message for message in table.notes)


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
    assert any(
        "even, seed 0: not counted, for not all its folds" in message for message in table.notes
    )
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


def test_the_option_is_named_where_it_is_the_option_that_does_not_fit(home, say, tmp_path) -> None:
    code, _, err = say("run", "demo", "--folds", "0", "--out", tmp_path)
    assert code == 2
    assert "demo.toml: --folds is given, and the task of row 'local-only' has none" in err
    assert "leave --folds out" in err
    assert "study.folds" not in err
    code, _, err = say(
        "run", home / "study.toml", "--folds", "0", "--set", "task.fold=1", "--out", tmp_path
    )
    assert code == 2
    assert "task.fold is set, and --folds is given; leave --folds out, or task.fold" in err


def test_one_fold_alone_cannot_be_mixed_with_another_split_of_it(home, tmp_path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(home / "runs", runs)
    path = runs / "study" / "even" / "fold-1" / "seed-0" / "environment.json"
    about = json.loads(path.read_text())
    about["data"]["split_sha256"] = "another"
    path.write_text(json.dumps(about))
    with pytest.raises(RunError, match="the split of the data differs"):
        read_results([runs])


def average(*paths) -> float:
    return dict(scores_table(read_results(list(paths))).rows)["fedavg"][2].value


def test_a_run_named_twice_counts_once(home) -> None:
    study = home / "runs" / "study"
    once = average(study)
    assert average(study, study / "fedavg" / "fold-0") == once
    assert average(*(study / "fedavg" / f"fold-{k}" for k in (0, 0, 1, 2)), study / "even") == once


def test_incomplete_folds_are_not_counted_wherever_the_report_is_made(
    home, tmp_path, monkeypatch
) -> None:
    shutil.copytree(home / "runs" / "study" / "fedavg", tmp_path / "alone")
    shutil.rmtree(tmp_path / "alone" / "fold-2")
    monkeypatch.chdir(tmp_path / "alone")
    results = read_results([Path()])
    assert dict(scores_table(results).rows)["fedavg"][2].value is None
    assert weights_table(results) is None


def test_a_run_without_folds_cannot_join_those_with(home, tmp_path, capsys) -> None:
    plain = tmp_path / "study.toml"
    plain.write_text(STUDY.replace("folds = [0, 1, 2]", ""))
    for name in ("list.csv", *(f"{n}{end}.png" for n in range(12) for end in ("", "-label"))):
        shutil.copy(home / name, tmp_path / name)
    assert cli._main(["run", str(plain), "--only", "fedavg", "--out", str(tmp_path / "out")]) == 0
    folded = ["run", str(plain), "--only", "fedavg", "--folds", "0,1,2"]
    assert cli._main([*folded, "--out", str(tmp_path / "out")]) == 1
    assert "is in this study folder without folds" in capsys.readouterr().err
    with pytest.raises(RunError, match="it is no fold of a cross-validation"):
        read_results([tmp_path / "out", home / "runs" / "study" / "fedavg"])


def test_folds_of_two_lists_are_not_pooled(home, tmp_path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(home / "runs", runs)
    for name in ("fedavg", "even"):
        path = runs / "study" / name / "fold-1" / "seed-0" / "environment.json"
        about = json.loads(path.read_text())
        about["data"]["folds_sha256"] = "another list"
        path.write_text(json.dumps(about))
    with pytest.raises(RunError, match="the list of folds differs"):
        read_results([runs])


def test_a_case_that_is_tested_twice_is_told(home, tmp_path) -> None:
    shutil.copytree(home / "runs", tmp_path / "runs")
    scores = tmp_path / "runs" / "study" / "fedavg" / "fold-0" / "seed-0" / "scores.csv"
    scores.write_text(scores.read_text() + scores.read_text().splitlines()[1] + "\n")
    written_anew(tmp_path)
    with pytest.raises(RunError, match="is tested twice by"):
        scores_table(read_results([tmp_path / "runs"]))


def test_resume_runs_what_was_asked_and_no_more(home, tmp_path) -> None:
    where = ["--only", "fedavg", "--out", str(tmp_path)]
    assert cli._main(["run", str(home / "study.toml"), *where, "--folds", "0,1"]) == 0
    assert cli._main(["run", str(home / "study.toml"), *where, "--folds", "0", "--seeds", "1"]) == 0
    assert cli._main(["resume", str(tmp_path / "study")]) == 0
    found = sorted(p.parent.relative_to(tmp_path / "study") for p in tmp_path.rglob("config.toml"))
    assert list(map(str, found)) == [
        "fedavg/fold-0/seed-0", "fedavg/fold-0/seed-1", "fedavg/fold-1/seed-0",
    ]  # fmt: skip


def test_what_cannot_be_run_is_told_before_anything_is(home, tmp_path, capsys) -> None:
    study = str(home / "study.toml")
    assert cli._main(["run", study, "--folds", "0,7", "--out", str(tmp_path)]) == 3
    assert "there is no fold 7: the list's folds are 0 to 2" in capsys.readouterr().err
    assert not list(tmp_path.rglob("config.toml"))
    with pytest.raises(ConfigError, match=r"task\.fold is set, and folds are listed"):
        read_study(study, ["task.fold=1"])
