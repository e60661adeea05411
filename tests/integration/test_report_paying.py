"""What a report says of calls of LearnAggWeight that paid, from rounds.jsonl by hand."""

import csv
import io
import json

import pytest

from autofedavg.core.errors import RunError
from autofedavg.report.build import report_tables
from autofedavg.report.costs import extra_traffic
from autofedavg.report.figures import all_figures
from autofedavg.report.figures.paying import paying_figure
from autofedavg.report.paying import paying_table
from autofedavg.report.read import read_results
from folders import METHODS, write_study

AUTO = METHODS["n-dirichlet"] | {"t0": "auto"}
CALLS = {
    1: {"gain": 0.5, "error": 0.1, "paid": True, "next": 2},
    2: {"gain": 0.3, "error": 0.1, "paid": True, "next": 5},
    5: {"gain": -0.1, "error": 0.1, "paid": False, "next": 20},
}


def judged(home, row, seed, calls) -> None:
    """Gives rounds of a run their verdicts; other rounds made no call."""
    path = home / row / f"seed-{seed}" / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line.pop("verdict", None)
        line["learned"] = line["t"] in calls
        line |= {"verdict": calls[line["t"]]} if line["t"] in calls else {}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def study(tmp_path):
    """Ten rounds of two repeats each; the second row returns to sizes."""
    methods = {"fedavg": METHODS["fedavg"], "auto": AUTO, "back": AUTO | {"when_idle": "sizes"}}
    home = write_study(tmp_path / "study", methods, seeds=(0, 1), rounds=10)
    back = {1: {"gain": 0.0, "error": 0.2, "paid": False, "next": 4, "over_sizes": -0.1,
                "over_sizes_error": 0.1, "to_sizes": True}}  # fmt: skip
    for seed in (0, 1):
        judged(home, "auto", seed, CALLS)
        judged(home, "back", seed, back)
    return home


def test_the_table_counts_calls_and_those_that_paid(study):
    (auto, cells), (back, others) = paying_table(read_results([study])).rows
    assert (auto, back) == ("AUTO", "BACK")
    texts = ["6 in 20 rounds", "30 %", "4 of 6", "0.23", "round 2", "0"]
    assert [cell.text for cell in cells] == texts
    assert cells[0].value == 6
    assert [cell.text for cell in others] == ["2 in 20 rounds", "10 %", "0 of 2", "0", "none", "2"]


def test_the_last_call_that_paid_is_the_latest_of_any_finished_repeat(study):
    judged(study, "auto", 1, {1: CALLS[1]})
    label, cells = paying_table(read_results([study])).rows[0]
    assert (label, cells[4].text) == ("AUTO", "round 2")  # of the first seed
    status = study / "auto" / "seed-0" / "status.json"
    status.write_text(json.dumps({"schema": 1, "state": "interrupted"}))
    _, cells = paying_table(read_results([study])).rows[0]
    assert [cell.text for cell in cells[:1] + cells[4:5]] == ["1 in 10 rounds", "round 1"]


def test_the_figure_marks_every_call_by_whether_it_paid(study):
    figure = paying_figure(read_results([study]))
    rows = list(csv.DictReader(io.StringIO(figure.csv())))
    mine = [(row["t"], row["call"]) for row in rows if (row["row"], row["seed"]) == ("AUTO", "0")]
    assert mine == [("1", "paid"), ("2", "paid"), ("5", "did not pay")]
    assert {row["call"] for row in rows if row["row"] == "BACK"} == {"did not pay: to sizes"}
    low, high = (float(rows[0][end]) for end in ("low", "high"))
    assert (low, high) == pytest.approx((0.3, 0.7))
    assert figure.about == "AUTO: 4 of 6 calls paid; BACK: 0 of 2 calls paid."


def test_both_are_part_of_the_report(study):
    results = read_results([study])
    assert "paying" in [table.name for table in report_tables(results)["weights"]]
    assert "paying" in [figure.name for figure in all_figures(results)["weights"]]


def test_rows_whose_interval_is_a_number_have_neither(tmp_path):
    results = read_results([write_study(tmp_path / "study")])
    assert paying_table(results) is None
    assert paying_figure(results) is None


def test_the_formula_counts_the_mixtures_that_judge_a_call(tmp_path):
    """S = 4 models and as many gradients a call, and two more models, or three with sizes."""
    server = AUTO | {"learning": "server", "S": 4}
    methods = {"two": server, "three": server | {"when_idle": "sizes"}, "none": server | {"t0": 1}}
    home = write_study(tmp_path / "study", methods, rounds=10)
    for row in methods:
        judged(home, row, 0, CALLS)
    found = {row.name: extra_traffic(row)[1] for row in read_results([home], "two").rows}
    assert found == pytest.approx({"two": 1.5, "three": 1.65, "none": 1.2})


@pytest.mark.parametrize("wrong", [{"paid": 1}, {"gain": "much"}, {"next": -1}, {"error": None}])
def test_a_verdict_that_no_run_writes_is_refused(study, wrong):
    judged(study, "auto", 0, {1: CALLS[1] | wrong})
    with pytest.raises(RunError, match="verdict"):
        read_results([study])
