"""What a single setting does: which rows stand on one line, and on which axis."""

import re

import pytest
import vl_convert

from autofedavg.report.draw import VERSION
from autofedavg.report.figures import all_figures
from autofedavg.report.read import read_results
from autofedavg.report.tables import mean_global
from folders import METHODS, write_study

DIRICHLET = {**METHODS["n-dirichlet"], "S": 10, "beta_rate": 0.1, "smoothing": 0.0}


def figures_of(home) -> dict:
    made = all_figures(read_results([home]))
    return {figure.name: figure for part in made.values() for figure in part}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    methods = {
        "fedavg": METHODS["fedavg"],
        "base": DIRICHLET,
        "s-100": {**DIRICHLET, "S": 100},
        "s-1": {**DIRICHLET, "S": 1},
        "fast": {**DIRICHLET, "beta_rate": 0.2},
        "smooth": {**DIRICHLET, "smoothing": 0.5},
        "smoother": {**DIRICHLET, "smoothing": 5.0},
        "train": {**DIRICHLET, "learn_on": "train", "S": 3},  # two things: on no line
        "softmax": {**METHODS["l-softmax"], "S": 10},
        "softmax-s-20": {**METHODS["l-softmax"], "S": 20},
    }
    return write_study(tmp_path_factory.mktemp("settings") / "study", methods, seeds=(0, 1))


def test_rows_that_differ_in_one_number_stand_on_one_line(home) -> None:
    figure = figures_of(home)["settings"]
    found: dict[tuple[str, str], list] = {}
    for point in figure.data:
        place = found.setdefault((point["setting"], point["line"]), [])
        place.append((point["value"], point["row"]))
    assert found == {
        ("method.S", "BASE"): [(1, "S-1"), (10, "BASE"), (100, "S-100")],
        ("method.S", "SOFTMAX"): [(10, "SOFTMAX"), (20, "SOFTMAX-S-20")],
        ("method.beta_rate", "BASE"): [(0.1, "BASE"), (0.2, "FAST")],
        ("method.smoothing", "BASE"): [(0.0, "BASE"), (0.5, "SMOOTH"), (5.0, "SMOOTHER")],
    }


def test_scores_are_those_of_the_table(home) -> None:
    results = read_results([home])
    wanted = {row.label: mean_global(row) for row in results.rows}
    figure = figures_of(home)["settings"]
    assert figure.data
    for point in figure.data:
        assert point["score"] == pytest.approx(wanted[point["row"]])
        assert point["low"] < point["score"] < point["high"]
        assert point["repeats"] == 2
    assert f"{wanted['FAST']:.2f}" in figure.about
    assert "Dashed: FEDAVG." in figure.caption


def test_every_panel_has_the_axis_that_its_values_ask_for(home) -> None:
    figure = figures_of(home)["settings"]
    panels = figure.printed()["concat"]
    scales = {
        encoding["x"]["title"]: encoding["x"]["scale"].get("type", "linear")
        for panel in panels
        for encoding in (panel["layer"][-1]["encoding"],)
    }
    assert scales == {"S": "log", "beta_rate": "linear", "smoothing": "symlog"}
    domains = [layer["encoding"]["y"]["scale"]["domain"] for p in panels for layer in p["layer"]]
    assert all(domain == domains[0] for domain in domains)
    picture = vl_convert.vegalite_to_svg(figure.printed(), vl_version=VERSION)
    assert "beta_rate" in picture
    shown = set(re.findall(r">([^<>]+)</text>", picture))
    assert {"1", "100", "0.1", "0.2", "0.5", "5", "0"} <= shown  # every value at its tick


def test_rows_without_a_global_model_are_on_no_line(tmp_path) -> None:
    local = METHODS["local-only"]
    methods = {"local-only": {**local, "S": 1}, "local-2": {**local, "S": 2}}
    home = write_study(tmp_path / "s", methods)
    assert not {"interval", "settings"} & set(figures_of(home))


def test_no_line_for_a_row_that_none_is_tested_against(tmp_path) -> None:
    methods = {"a": DIRICHLET, "b": {**DIRICHLET, "S": 2}}
    figure = figures_of(write_study(tmp_path / "s", methods))["settings"]
    assert "Dashed" not in figure.caption
    assert [point["low"] == point["high"] for point in figure.data] == [True, True]
