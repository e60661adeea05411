"""The curves of runs that were tested as they went, and what is between them and the baseline."""

import csv
import io
import json
import statistics

import pytest
import vl_convert

from autofedavg.report.draw import VERSION
from autofedavg.report.figures import all_figures, rows
from autofedavg.report.read import read_results
from folders import METHODS, write_study

ROWS = {name: METHODS[name] for name in ("fedavg", "n-dirichlet", "l-softmax")}


def write_tests(home, scores) -> None:
    """Writes scores(row, seed, t) as the mean test score of every round; None: not tested."""
    for path in home.glob("*/seed-*/rounds.jsonl"):
        row, seed = path.parts[-3], int(path.parts[-2].removeprefix("seed-"))
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            score = scores(row, seed, line["t"])
            if score is not None:
                line["test"] = {"mean": score, "sites": {}}
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def curve(row, seed, t):
    better = {"fedavg": 0.0, "n-dirichlet": 0.01, "l-softmax": -0.02}[row]
    return round(0.8 - 0.5 / t + better * (seed + 1), 6)


def drawn(figure, value):
    return {
        (item["row"], item["t"]): item for item in figure.spec["data"]["values"] if value in item
    }


@pytest.fixture
def home(tmp_path):
    return write_study(tmp_path / "study", ROWS, seeds=(0, 1))


def test_scores_are_means_over_repeats_and_differences_those_of_the_same_seed(home):
    write_tests(home, curve)
    figure = rows.tested_figure(read_results([home]))
    scores, apart = drawn(figure, "score"), drawn(figure, "difference")
    for t in range(1, 6):
        for row in ROWS:
            mine = [100 * curve(row, seed, t) for seed in (0, 1)]
            assert scores[row.upper(), t]["score"] == pytest.approx(statistics.fmean(mine))
        assert apart["N-DIRICHLET", t]["difference"] == pytest.approx(1.5)
        assert (apart["L-SOFTMAX", t]["least"], apart["L-SOFTMAX", t]["greatest"]) == (
            pytest.approx(-4.0),
            pytest.approx(-2.0),
        )
    assert {row for row, _ in apart} == {"N-DIRICHLET", "L-SOFTMAX"}
    assert "what is between a row and FEDAVG with the same seed" in figure.caption
    assert "The band spans the repeats." in figure.caption
    lines = list(csv.DictReader(io.StringIO(figure.csv())))
    assert len(lines) == 3 * 2 * 5
    assert {row["difference"] for row in lines if row["row"] == "FEDAVG"} == {"0.0"}


def test_a_row_that_was_tested_once_has_no_curve(home):
    write_tests(
        home, lambda row, seed, t: None if row == "l-softmax" and t < 5 else curve(row, seed, t)
    )
    figure = rows.tested_figure(read_results([home]))
    assert {item["row"] for item in figure.data} == {"FEDAVG", "N-DIRICHLET"}


@pytest.mark.parametrize("scores", [lambda *_: None, lambda row, seed, t: 0.5 if t == 5 else None])
def test_where_none_was_tested_twice_there_is_no_figure(home, scores):
    write_tests(home, scores)
    assert rows.tested_figure(read_results([home])) is None


def test_without_a_baseline_there_are_scores_alone(tmp_path):
    home = write_study(tmp_path / "study", {"n-dirichlet": METHODS["n-dirichlet"]})
    write_tests(home, curve)
    figure = rows.tested_figure(read_results([home]))
    assert len(figure.spec["vconcat"]) == 1
    assert "what is between" not in figure.caption


def test_the_first_rounds_of_a_long_run_do_not_set_the_scale(tmp_path):
    """Of 40 rounds the first three: from 30 % up to 67.5, where all later ones lie above."""
    home = write_study(tmp_path / "study", ROWS, rounds=40)
    write_tests(home, curve)
    figure = rows.tested_figure(read_results([home]))
    assert "the first ones lie beyond" in figure.caption
    for panel in figure.spec["vconcat"]:
        line = panel["layer"][-1]
        assert line["mark"]["clip"] is True
    least, most = figure.spec["vconcat"][0]["layer"][-1]["encoding"]["y"]["scale"]["domain"]
    assert least == pytest.approx(100 * curve("l-softmax", 0, 4))
    assert most == pytest.approx(100 * curve("n-dirichlet", 0, 40))
    short = write_study(tmp_path / "short", ROWS)
    write_tests(short, curve)
    assert "lie beyond" not in rows.tested_figure(read_results([short])).caption


def test_it_is_drawn_among_the_others(home):
    write_tests(home, curve)
    made = all_figures(read_results([home]))["training"]
    assert [figure.name for figure in made] == ["validation", "tested", "loss"]
    svg = vl_convert.vegalite_to_svg(made[1].printed(), vl_version=VERSION)
    assert "points above FEDAVG" in svg
    assert "test score, %" in svg
