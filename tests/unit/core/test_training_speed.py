"""The report's table of training speed: what the settings and the seconds tell, or nothing."""

import json

import pytest

from autofedavg.report.costs import speed_table
from autofedavg.report.read import read_results
from folders import METHODS, write_study

SIZES = (10, 20, 30)  # the made-up sites' training cases; a batch is four


def speeds(home, training, rows=("fedavg", "n-dirichlet"), task="made-up"):
    """Label -> steps a round, ms a step, cases a second; with these settings of training."""
    study = write_study(home, {row: METHODS[row] for row in rows}, rounds=4)
    for config in study.rglob("config.toml"):
        lines = "\n".join(f"{key} = {value}" for key, value in training.items())
        text = config.read_text().replace("[training]\n", f"[training]\n{lines}\n")
        config.write_text(text.replace("made-up", task))
    table = speed_table(read_results([study]))
    return {label: [cell.value for cell in cells] for label, cells in table.rows} if table else {}


def test_epochs_are_counted_with_their_short_batches(tmp_path) -> None:
    steps = 2 * (3 + 5 + 8)
    wanted = [steps, pytest.approx(1e3 / steps), pytest.approx(2 * sum(SIZES))]
    assert speeds(tmp_path / "study", {"epochs": 2, "iterations": 0}) == {
        "FEDAVG": wanted, "N-DIRICHLET": wanted,
    }  # fmt: skip


def test_iterations_are_the_same_for_every_site(tmp_path) -> None:
    wanted = [3 * 7, pytest.approx(1e3 / 21), pytest.approx(3 * 7 * 4)]
    assert speeds(tmp_path / "study", {"epochs": 0, "iterations": 7})["FEDAVG"] == wanted


def test_a_site_that_did_not_train_is_not_counted(tmp_path) -> None:
    write_study(tmp_path / "study", {"fedavg": METHODS["fedavg"]}, rounds=4)
    for path in (tmp_path / "study").rglob("rounds.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        del lines[2]["loss"]["C"]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for config in (tmp_path / "study").rglob("config.toml"):
        text = config.read_text()
        config.write_text(text.replace("[training]\n", "[training]\niterations = 9\n"))
    (row,) = speed_table(read_results([tmp_path / "study"])).rows
    assert row[1][0].value == pytest.approx((27 + 18 + 27) / 3)
    assert [cell.text for cell in row[1]] == ["24", "41.7", "96"]


def test_what_settings_do_not_tell_is_left_out(tmp_path) -> None:
    assert speeds(tmp_path / "one", {}) == {}
    assert speeds(tmp_path / "two", {"epochs": 2}, task="loaders") == {}
    methods = {"fedavg": METHODS["fedavg"], "fedma": {"name": "fedma"}}
    study = write_study(tmp_path / "three", methods, rounds=3)
    for config in study.rglob("config.toml"):
        config.write_text(config.read_text().replace("[training]\n", "[training]\nepochs = 1\n"))
    assert [label for label, _ in speed_table(read_results([study])).rows] == ["FEDAVG"]
