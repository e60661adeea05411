"""The curves of runs that were tested as they went, and what is between them and the baseline."""

import csv
import io
import json
import re
import shutil
import statistics

import pytest
import vl_convert

from autofedavg.report.draw import VERSION
from autofedavg.report.figures import all_figures, rows, vega
from autofedavg.report.figures.vega import thinned
from autofedavg.report.over_rounds import rounds_table
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


def test_a_round_in_which_a_repeat_was_not_tested_has_no_score(home):
    def skipped(row, seed, t):
        return None if (row, seed, t) == ("fedavg", 1, 2) else curve(row, seed, t)

    write_tests(home, skipped)
    table = rounds_table(read_results([home]))
    cells = dict(table.rows)
    assert table.heads == ("1", "2", "3", "5")
    assert [cell.value is None for cell in cells["FEDAVG"]] == [False, True, False, False]
    assert all(cell.value is not None for cell in cells["N-DIRICHLET"])


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
    assert "what is between a row and FEDAVG in the repeats that both have" in figure.caption
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


def panels_of(figure):
    """The scale of the scores' panel, and of the differences'."""
    return [panel["layer"][-1]["encoding"]["y"]["scale"] for panel in figure.spec["vconcat"]]


def test_the_first_rounds_of_a_long_run_do_not_set_the_scale(tmp_path):
    """Of 40 rounds those from the fourth on; differences keep zero in sight."""
    home = write_study(tmp_path / "study", ROWS, rounds=40)
    write_tests(home, lambda row, seed, t: curve(row, seed, t) + (t == 1 and row != "fedavg") / 5)
    figure = rows.tested_figure(read_results([home]))
    assert "some of the first ones lie beyond" in figure.caption
    scores, apart = (scale["domain"] for scale in panels_of(figure))
    assert scores == pytest.approx(
        [100 * curve("l-softmax", 0, 4), 100 * curve("n-dirichlet", 0, 40)]
    )
    assert apart == pytest.approx([-2.0, 1.0])
    for panel in figure.spec["vconcat"]:
        assert panel["layer"][-1]["mark"]["clip"] is True
    short = write_study(tmp_path / "short", ROWS)
    write_tests(short, curve)
    figure = rows.tested_figure(read_results([short]))
    assert "lie beyond" not in figure.caption
    assert not any("domain" in scale for scale in panels_of(figure))


def test_a_row_far_below_does_not_flatten_the_others(tmp_path):
    """It is drawn above, among the scores, and the caption says so."""
    names = ("n-softmax", "fedavg-even", "far")
    home = write_study(tmp_path / "study", ROWS | dict.fromkeys(names, METHODS["fedavg"]))
    below = {"n-softmax": 0.01, "fedavg-even": -0.01, "far": -0.05}

    def scores(row, seed, t):
        return 0.5 + below[row] if row in below else curve(row, seed, 1) + 0.2

    write_tests(home, scores)
    figure = rows.tested_figure(read_results([home]))
    assert "Only above, being far off: FAR." in figure.caption
    assert "FAR" in {row for row, _ in drawn(figure, "score")}
    assert "FAR" not in {row for row, _ in drawn(figure, "difference")}
    assert {row for row, _ in drawn(figure, "difference")} == {
        "N-DIRICHLET", "L-SOFTMAX", "N-SOFTMAX", "FEDAVG-EVEN",
    }  # fmt: skip
    assert {item["difference"] for item in figure.data if item["row"] == "FAR"}
    below["far"] = -0.035  # less than twice as far as L-SOFTMAX, 2 points below
    write_tests(home, scores)
    figure = rows.tested_figure(read_results([home]))
    assert "far off" not in figure.caption
    assert "FAR" in {row for row, _ in drawn(figure, "difference")}


@pytest.mark.parametrize("near", [0.001, 0.0])
def test_a_row_that_crosses_the_baseline_is_not_far_off(tmp_path, near):
    """Nor is any where all others are the baseline itself."""
    names = ("n-softmax", "fedavg-even", "wild")
    home = write_study(tmp_path / "study", ROWS | dict.fromkeys(names, METHODS["fedavg"]))

    def scores(row, seed, t):
        if row == "wild":
            return 0.5 + (0.05 * (-1) ** t if near else 0.05)
        return 0.5 + near * (row != "fedavg")

    write_tests(home, scores)
    assert "far off" not in rows.tested_figure(read_results([home])).caption


def test_a_long_run_above_its_baseline_is_drawn_with_the_line_of_zero(tmp_path):
    home = write_study(tmp_path / "study", ROWS, rounds=40)
    write_tests(home, lambda row, seed, t: 0.5 + (row != "fedavg") * (0.05 + (t == 1) / 5))
    figure = rows.tested_figure(read_results([home]))
    assert panels_of(figure)[1]["domain"] == pytest.approx([0.0, 5.0])
    zero = figure.spec["vconcat"][1]["layer"][0]
    assert (zero["mark"]["type"], zero["encoding"]["y"]) == ("rule", {"datum": 0})
    svg = vl_convert.vegalite_to_svg(figure.printed(), vl_version=VERSION)
    assert float(re.search(r'height="([\d.]+)"', svg)[1]) < 700


def test_a_row_that_has_just_begun_is_in_sight(tmp_path):
    """Its last value is within the scale, though of an early round; a single one has a dot."""
    home = write_study(tmp_path / "study", ROWS, rounds=60)
    write_tests(
        home, lambda row, seed, t: None if row == "l-softmax" and t > 2 else curve(row, seed, t)
    )
    figure = rows.tested_figure(read_results([home]))
    least, _ = panels_of(figure)[0]["domain"]
    assert least == pytest.approx(100 * curve("l-softmax", 0, 2))
    assert figure.spec["vconcat"][0]["layer"][-1]["mark"]["point"] is False
    path = home / "l-softmax" / "seed-0" / "rounds.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    path.with_name("status.json").write_text('{"state": "interrupted"}')
    made = {f.name: f for f in all_figures(read_results([home]))["training"]}
    assert made["validation"].spec["layer"][-1]["mark"]["point"]


def test_pairs_are_of_the_same_seed_and_fold(tmp_path):
    """FedAvg has other scores in every fold; a row lies one point above it in each."""
    home = write_study(tmp_path / "study", ROWS)
    for row in ROWS:
        for fold in (0, 1):
            target = home / row / f"fold-{fold}"
            shutil.copytree(home / row / "seed-0", target / "seed-0")
            config = target / "seed-0" / "config.toml"
            config.write_text(config.read_text().replace("[task]", f"[task]\nfold = {fold}"))
        shutil.rmtree(home / row / "seed-0")
    for path in home.glob("*/fold-*/seed-0/rounds.jsonl"):
        fold, row = int(path.parts[-3].removeprefix("fold-")), path.parts[-4]
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            mean = 0.5 + 0.2 * fold + 0.01 * line["t"] + 0.01 * (row != "fedavg")
            line["test"] = {"mean": mean, "sites": {}}
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (home / "study.json").unlink()
    figure = rows.tested_figure(read_results([home], "fedavg"))
    apart = drawn(figure, "difference")
    assert {key[0] for key in apart} == {"N-DIRICHLET", "L-SOFTMAX"}
    for item in apart.values():
        assert (item["least"], item["greatest"]) == pytest.approx((1.0, 1.0))


def test_both_panels_show_the_same_rounds_where_not_all_are_drawn(tmp_path):
    home = write_study(tmp_path / "study", ROWS, rounds=12)
    write_tests(home, curve)
    results = read_results([home])
    whole = rows.tested_figure(results)
    assert len(drawn(whole, "score")) == 36
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vega, "thinned", lambda data: thinned(data, 20))
        figure = rows.tested_figure(results)
    shown = [{t for _, t in drawn(figure, value)} for value in ("score", "difference")]
    assert shown[0] == shown[1]
    assert 1 < len(shown[0]) < 12
    for panel, value in zip(figure.spec["vconcat"], ("score", "difference"), strict=True):
        assert panel["transform"] == [{"filter": f"isValid(datum.{value})"}]


def test_it_is_drawn_among_the_others(home):
    write_tests(home, curve)
    made = all_figures(read_results([home]))["training"]
    assert [figure.name for figure in made] == ["validation", "tested", "loss"]
    svg = vl_convert.vegalite_to_svg(made[1].printed(), vl_version=VERSION)
    assert "points above FEDAVG" in svg
    assert "test score, %" in svg
