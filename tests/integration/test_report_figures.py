"""Figures show what the run folders hold: value by value, and place by place in the picture."""

import csv
import io
import json
import statistics

import pytest
import vl_convert

from autofedavg.core.evaluation import case_means, compare, summarise
from autofedavg.report.draw import VERSION
from autofedavg.report.figures import all_figures
from autofedavg.report.figures.vega import thinned
from autofedavg.report.read import read_results
from folders import METHODS, write_study


def figures_of(*paths) -> dict:
    made = all_figures(read_results(paths))
    return {figure.name: figure for part in made.values() for figure in part}


def lines_of(run) -> list[dict]:
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("figures") / "study", seeds=(0, 1))


def test_the_alpha_curve_is_that_of_rounds_jsonl(tiny_home) -> None:
    figure = figures_of(tiny_home)["alpha"]
    wanted = {
        (line["t"], site): alpha
        for line in lines_of(tiny_home / "n-dirichlet" / "seed-0")
        for site, alpha in zip(("I", "II", "III"), line["alpha"], strict=True)
    }
    in_csv = {
        (int(row["t"]), row["site"]): float(row["alpha"])
        for row in csv.DictReader(io.StringIO(figure.csv()))
    }
    drawn = {(row["t"], row["site"]): row["alpha"] for row in figure.spec["data"]["values"]}
    assert in_csv == wanted
    assert drawn == wanted


def test_the_alpha_curve_is_drawn_where_its_axis_says(tiny_home) -> None:
    """The lines' points, read back from the picture by the axis' own labels."""
    figure = figures_of(tiny_home)["alpha"]
    scene = vl_convert.vegalite_to_scenegraph(figure.printed(), vl_version=VERSION)
    labels, points = [], []
    _walk(scene["scenegraph"], labels, points)
    ticks = {float(item["text"]): item["y"] for item in labels if item["x"] < 0}
    (low, at_low), (high, at_high) = min(ticks.items()), max(ticks.items())
    read_back = sorted(
        low + (item["y"] - at_low) / (at_high - at_low) * (high - low) for item in points
    )
    wanted = sorted(row["alpha"] for row in figure.spec["data"]["values"])
    assert len(read_back) == len(wanted) > 0
    assert read_back == pytest.approx(wanted, abs=0.005)


def _walk(item, labels: list, points: list) -> None:
    if isinstance(item, list):
        for one in item:
            _walk(one, labels, points)
    elif isinstance(item, dict):
        if item.get("role") == "axis-label":
            labels += item["items"]
        elif item.get("marktype") == "symbol" and item.get("role") == "mark":
            points += item["items"]
        for one in item.values():
            _walk(one, labels, points)


def test_validation_is_the_mean_over_repeats_with_their_band(study) -> None:
    figure = figures_of(study)["validation"]
    runs = [lines_of(study / "fedavg" / f"seed-{seed}") for seed in (0, 1)]
    drawn = {row["t"]: row for row in figure.spec["data"]["values"] if row["row"] == "FEDAVG"}
    for t, lines in enumerate(zip(*runs, strict=True), 1):
        scores = [100 * line["validation"]["mean"] for line in lines]
        assert drawn[t]["score"] == pytest.approx(statistics.fmean(scores))
        assert (drawn[t]["least"], drawn[t]["greatest"]) == (min(scores), max(scores))
    assert len(figure.data) == 3 * 2 * 5


def test_a_round_that_one_repeat_lacks_has_no_mean(study, tmp_path) -> None:
    short = write_study(tmp_path / "short", seeds=(0, 1))
    path = short / "fedavg" / "seed-1" / "rounds.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    for run in path.parents[1].iterdir():
        (run / "status.json").write_text('{"state": "interrupted"}')
    figure = figures_of(short)["validation"]
    rounds = [row["t"] for row in figure.spec["data"]["values"] if row["row"] == "FEDAVG"]
    assert sorted(rounds) == [1, 2, 3]


def test_beta_stands_beside_the_triangle_at_every_round(study) -> None:
    figure = figures_of(study)["simplex-n-dirichlet"]
    lines = lines_of(study / "n-dirichlet" / "seed-0")
    words = {item["t"]: item["text"] for item in figure.spec["datasets"]["words"]}
    assert words[0] == "round 0: beta = (6.00, 6.00, 6.00)"
    for line in lines:
        shown = ", ".join(f"{beta:.2f}" for beta in line["beta"])
        assert words[line["t"]] == f"round {line['t']}: beta = ({shown})"
    slider = figure.spec["params"][0]
    assert (slider["bind"]["min"], slider["bind"]["max"], slider["value"]) == (0, 5, 5)
    assert len(figure.still["hconcat"]) == 3  # rounds 0, 1 and 5: 0.1 and 1/6 of 5 are both 1
    assert figure.caption.endswith("From seed 0.")


def test_round_0_is_where_the_weights_start(tmp_path) -> None:
    """Of 10, 20 and 30 training cases: the mode of beta is n_k/n, and its sum 18."""
    method = METHODS["n-dirichlet"] | {"start": "sizes"}
    figure = figures_of(write_study(tmp_path / "study", {"d": method}))["simplex-d"]
    words = {item["t"]: item["text"] for item in figure.spec["datasets"]["words"]}
    assert words[0] == "round 0: beta = (3.50, 6.00, 8.50)"


def test_other_numbers_of_sites_get_intervals(tmp_path) -> None:
    study = write_study(tmp_path / "s", sites=("A", "B", "C", "D"))
    figure = figures_of(study)["simplex-n-dirichlet"]
    last = lines_of(study / "n-dirichlet" / "seed-0")[-1]
    shown = [row for row in figure.data if row["t"] == 5]
    assert [row["alpha"] for row in shown] == last["alpha"]
    assert [row["beta"] for row in shown] == last["beta"]
    assert all(row["low"] < row["quarter"] < row["three"] < row["high"] for row in shown)


def test_layers_are_named_and_in_order(study) -> None:
    figure = figures_of(study)["layers-l-softmax"]
    lines = lines_of(study / "l-softmax" / "seed-0")
    drawn = {(row["t"], row["site"], row["layer"]): row["alpha"] for row in figure.data}
    for line in lines:
        for site, per_layer in zip("ABC", line["alpha"], strict=True):
            for p, alpha in enumerate(per_layer, 1):
                assert drawn[line["t"], site, f"layer {p}"] == alpha


def test_a_layer_wise_run_notes_its_layers(tiny, say, tmp_path) -> None:
    code, _, err = say(
        "run", tiny, "--only", "n-dirichlet", "--set", "method.weights=layer", "--out", tmp_path
    )
    assert code == 0, err
    run = tmp_path / "tiny" / "n-dirichlet" / "seed-0"
    names = json.loads((run / "environment.json").read_text())["layers"]
    assert len(names) == len(lines_of(run)[-1]["alpha"][0])
    labels = {row["layer"] for row in figures_of(run)["layers-n-dirichlet"].data}
    assert labels == {f"{p} {name}" for p, name in enumerate(names, 1)}


def test_matrices_are_those_of_the_summaries(study) -> None:
    figure = figures_of(study)["matrices"]
    results = read_results([study])
    for row in results.rows:
        found = [summarise(scores, "dice").matrix for scores in row.whole.values()]
        for cell in (cell for cell in figure.data if cell["row"] == row.label):
            wanted = [100 * matrix[cell["model"]][cell["tested on"]] for matrix in found]
            assert cell["score"] == pytest.approx(statistics.fmean(wanted))
    assert len(figure.data) == 4 * 9


def test_differences_and_their_test(study) -> None:
    figure = figures_of(study)["differences"]
    results = read_results([study])
    scores = {row.name: case_means(list(row.whole.values()), "dice") for row in results.rows}
    for item in figure.data:
        key = (item["site"], item["case"])
        name = item["row"].lower()
        assert item["value"] == pytest.approx(100 * (scores[name][key] - scores["fedavg"][key]))
    test = compare(scores["n-dirichlet"], scores["fedavg"])
    said = next(part for part in figure.about.split("; ") if part.startswith("N-DIRICHLET"))
    assert said == f"N-DIRICHLET: mean {100 * test.gain:+.2f}, p = {test.p:.3f}, n = {test.n}"
    assert {item["row"] for item in figure.data} == {"N-DIRICHLET", "L-SOFTMAX"}


def test_the_interval_study_takes_rows_that_differ_in_t0_alone(tmp_path, study) -> None:
    dirichlet = METHODS["n-dirichlet"]
    methods = {
        "fedavg": METHODS["fedavg"],
        "t1": dirichlet,
        "t5": {**dirichlet, "t0": 5},
        "other": {**dirichlet, "t0": 5, "beta0": 3.0, "learn_on": "train"},
    }
    interval = write_study(tmp_path / "s", methods, seeds=(0, 1))
    figure = figures_of(interval)["interval"]
    assert [(item["row"], item["value"]) for item in figure.data] == [("T1", 1), ("T5", 5)]
    results = read_results([interval])
    averages = [100 * s.global_test_avg for s in results.row("t5").summaries]
    assert figure.data[1]["score"] == pytest.approx(statistics.fmean(averages))
    assert figure.data[1]["high"] - figure.data[1]["score"] == pytest.approx(
        statistics.stdev(averages)
    )
    assert "settings" not in figures_of(interval)
    assert not {"interval", "settings"} & set(figures_of(study))


def test_traffic_is_what_was_counted_and_the_formula_the_papers(study) -> None:
    figure = figures_of(study)["traffic"]
    found = {(item["row"], item["kind"]): item["MB"] for item in figure.data}
    calls = lines_of(study / "n-dirichlet" / "seed-0")[0]["calls"]
    training = (calls["local_train"]["down"] + calls["local_train"]["up"]) / 1e6
    assert found["N-DIRICHLET", "training"] == pytest.approx(training)
    assert found["N-DIRICHLET", "learning weights"] == pytest.approx(
        sum(calls[k][way] for k in ("share_models", "update_beta") for way in ("down", "up")) / 1e6
    )
    # K = 3, t0 = 1: (K - 1)/(2 t0) = 1, twice FedAvg's.
    assert found["N-DIRICHLET", "formula"] == pytest.approx(2 * training)
    assert ("FEDAVG", "formula") not in found


def test_seconds_of_a_round_add_up(study) -> None:
    found = {}
    for item in figures_of(study)["time"].data:
        found.setdefault(item["row"], {})[item["kind"]] = item["seconds"]
    assert found["N-DIRICHLET"] == pytest.approx(
        {
            "training": 1.0,
            "learning weights": 0.5,
            "moving models": 0.1,
            "evaluating": 0.4,
            "server and disk": 0.5,
        }
    )
    assert all(sum(split.values()) == pytest.approx(2.5) for split in found.values())


def test_many_rounds_are_thinned_and_the_last_one_kept() -> None:
    data = [{"t": t, "site": site} for t in range(1, 1001) for site in "AB"]
    drawn, stride = thinned(data, most=100)
    assert len(drawn) <= 100
    assert drawn[-1]["t"] == 1000
    assert {row["t"] % stride for row in drawn} == {1000 % stride}
    assert thinned(data, most=2000) == (data, 1)
