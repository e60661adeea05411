"""What a report says of the loss that the weights are learned by: from rounds.jsonl, by hand."""

import csv
import io
import json
import statistics

import pytest

from autofedavg.report.build import report_tables
from autofedavg.report.figures import vega
from autofedavg.report.figures.curves import learning_figure
from autofedavg.report.formats import to_csv
from autofedavg.report.over_rounds import learning_table
from autofedavg.report.read import read_results
from folders import METHODS, write_study


def rewritten(home, row, seed, change) -> None:
    """Changes every round of a run."""
    path = home / row / f"seed-{seed}" / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line | change(line["t"])) + "\n" for line in lines))


def learning(values):
    return lambda t: {"learning_loss": values(t)} if t % 2 == 0 else {}


@pytest.fixture
def study(tmp_path):
    """Calls in rounds 2 and 4 of twelve steps; in the second one B does not answer."""
    home = write_study(tmp_path / "study", seeds=(0, 1))
    falls = [1.0, 0.9, 0.8, *[0.7] * 6, 0.5, 0.4, 0.3]
    calls = {
        2: {"A": falls, "B": [2 * value for value in falls], "C": falls},
        4: {"A": falls[::-1], "B": [None] * 12, "C": [None, 0.8, 1.0, *[0.5] * 9]},
    }
    for seed in (0, 1):
        rewritten(home, "n-dirichlet", seed, learning(calls.get))
    return home


def test_first_and_last_quarter_of_the_steps_over_sites_and_calls(study):
    """First (0.9 + 1.8 + 0.9) / 3 and (0.4 + 0.9) / 2, last (0.4 + 0.8 + 0.4) / 3 and 0.7."""
    table = learning_table(read_results([study]))
    ((label, (steps, first, last, change, lower)),) = table.rows
    assert label == "N-DIRICHLET"
    assert steps.text == "12"
    wanted = statistics.fmean([1.2, 0.65]), statistics.fmean([1.6 / 3, 0.7])
    assert (first.value, last.value) == pytest.approx(wanted)
    assert change.value == pytest.approx(wanted[1] - wanted[0])
    assert (lower.value, lower.text) == (2, "2 of 4")  # of both seeds
    assert to_csv(table).splitlines()[1].endswith(",2,,")


def test_the_figure_has_two_lines_through_the_calls(study):
    figure = learning_figure(read_results([study]))
    drawn = {(row["t"], row["steps"]): row["loss"] for row in figure.spec["data"]["values"]}
    assert drawn == pytest.approx(
        {
            (2, "first steps"): 1.2,
            (2, "last steps"): 1.6 / 3,
            (4, "first steps"): 0.65,
            (4, "last steps"): 0.7,
        }
    )
    rows = list(csv.DictReader(io.StringIO(figure.csv())))
    assert len(rows) == 8  # of both seeds
    assert "N-DIRICHLET: 0.6500, then 0.7000" in figure.about
    assert "Means over repeats." in figure.caption


def test_sites_count_by_their_cases_where_the_objective_has_them_so(tmp_path):
    """10, 20, 30 training cases: (10 x 1 + 20 x 1 + 30 x 4) / 60, then (10 x 4 + 50 x 1) / 60."""
    methods = {"fedavg": METHODS["fedavg"]}
    methods["by-size"] = METHODS["n-dirichlet"] | {"objective": "size"}
    home = write_study(tmp_path / "study", methods)
    told = {"A": [1.0, 4.0], "B": [1.0, 1.0], "C": [4.0, 1.0]}
    rewritten(home, "by-size", 0, learning(lambda t: told))
    ((_, (_, first, last, _, lower)),) = learning_table(read_results([home])).rows
    assert (first.value, last.value) == pytest.approx((2.5, 1.5))
    assert lower.text == "2 of 2"


def test_rows_that_learn_in_other_rounds_keep_some_of_their_own(tmp_path, monkeypatch):
    """One row learns in odd rounds, one in even ones: every second round of all has one alone."""
    methods = dict.fromkeys(("odd", "even"), METHODS["n-dirichlet"])
    home = write_study(tmp_path / "study", methods, rounds=20)
    for name, rest in (("odd", 1), ("even", 0)):
        told = {"learning_loss": {"A": [2.0, 1.0]}}
        rewritten(home, name, 0, lambda t, rest=rest, told=told: told if t % 2 == rest else {})
    monkeypatch.setattr(vega, "MOST_MARKS", 20)
    figure = learning_figure(read_results([home]))
    for name in ("ODD", "EVEN"):
        shown = [item for item in figure.spec["data"]["values"] if item["row"] == name]
        assert 4 <= len(shown) < 20
    assert "Not all calls of all rows are drawn" in figure.caption


@pytest.mark.parametrize("told", [{}, {"learning_loss": {"A": [1.0], "B": [1.0], "C": [1.0]}}])
def test_folders_of_earlier_versions_and_calls_of_one_step_have_neither(tmp_path, told):
    home = write_study(tmp_path / "study")
    rewritten(home, "n-dirichlet", 0, lambda t: told)
    results = read_results([home])
    assert learning_table(results) is None
    assert learning_figure(results) is None


def test_sites_that_never_answered_leave_nothing_to_tell(tmp_path):
    home = write_study(tmp_path / "study", {"n-dirichlet": METHODS["n-dirichlet"]})
    rewritten(home, "n-dirichlet", 0, learning(lambda t: {"A": [None, 1.0], "B": [1.0, None]}))
    assert learning_table(read_results([home])) is None


def test_a_run_writes_them_and_the_written_report_shows_them(tiny_home, tmp_path, say):
    """Two steps a call: the first and the last one."""
    path = tiny_home / "n-dirichlet" / "seed-0" / "rounds.jsonl"
    told = [json.loads(line)["learning_loss"] for line in path.read_text().splitlines()]
    assert all(len(values) == 2 for losses in told for values in losses.values())
    (table,) = (
        table
        for table in report_tables(read_results([tiny_home]))["weights"]
        if table.name == "learning"
    )
    ((_, (_, first, last, _, _)),) = table.rows
    for cell, at in ((first, 0), (last, -1)):
        every = [values[at] for losses in told for values in losses.values()]
        assert cell.value == pytest.approx(statistics.fmean(every))
    code, out, _ = say("report", tiny_home, "--no-examples", "--out", tmp_path / "page")
    assert code == 0
    assert "Loss that the weights" not in out  # what is printed stays short
    page = (tmp_path / "page" / "index.html").read_text()
    assert "Loss that the weights are learned by" in page
    assert (tmp_path / "page" / "tables" / "learning.csv").is_file()
    assert (tmp_path / "page" / "figures" / "learning.svg").is_file()
    for row in ("fedavg", "local-only"):
        assert "learning_loss" not in (tiny_home / row / "seed-0" / "rounds.jsonl").read_text()
