"""Rows that have not all the seeds of the baseline: what they are compared with."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofedavg.core.evaluation import case_means, compare
from autofedavg.experiment.folder import Ledger
from autofedavg.report.differences import corrected, differences_table
from autofedavg.report.figures import all_figures, seeds
from autofedavg.report.page import drawn
from autofedavg.report.read import read_results
from autofedavg.report.seed_gains import Gain, Interval, counted, seeds_table
from autofedavg.report.summary import in_short
from autofedavg.report.tables import scores_table
from folders import METHODS, write_study, written_anew


def test_means_of_sites_are_compared_on_the_seeds_that_both_have_too(tmp_path) -> None:
    """Sites disclosed means alone: N-Dirichlet has seeds 0 and 1, FedAvg 1 and 2."""
    rows = ("fedavg", "n-dirichlet")
    methods = {row: METHODS[row] for row in rows}
    missing = [("fedavg", 0), ("n-dirichlet", 2)]
    home = write_study(tmp_path / "study", methods, seeds=(0, 1, 2), missing=missing)
    for run in home.glob("*/seed-*"):
        seed, better = int(run.name[-1]), 0.01 * (run.parent.name != "fedavg")
        lines = [f"global,{site},test,dice,{0.1 * seed + better + 0.5},6" for site in "ABC"]
        text = "\n".join(["model,site,split,metric,value,cases", *lines])
        (run / "scores.csv").write_text(f"{text}\n")
    written_anew(home)
    table = differences_table(read_results([home]))
    (cells,) = (cells for label, cells in table.rows if label == "N-DIRICHLET")
    assert [cell.text for cell in cells[:4]] == ["+1.00"] * 4


def test_rows_with_other_seeds_are_compared_on_those_that_both_have(tmp_path) -> None:
    """N-Dirichlet has seed 0 alone, L-Softmax none of FedAvg's: all of both then."""
    absent = {"n-dirichlet": (1, 2), "l-softmax": (0, 1), "fedavg": (2,)}
    others = [(row, seed) for row, seeds in absent.items() for seed in seeds]
    home = write_study(tmp_path / "study", seeds=(0, 1, 2), missing=others)
    results = read_results([home])
    cells = dict(differences_table(results).rows)

    def means(row, *seeds):
        found = [Ledger(home / row / f"seed-{seed}").scores() for seed in seeds]
        return case_means(found, "dice")

    pairs = {
        "N-DIRICHLET": (means("n-dirichlet", 0), means("fedavg", 0)),
        "L-SOFTMAX": (means("l-softmax", 2), means("fedavg", 0, 1)),
    }
    scores = dict(scores_table(results).rows)
    for row, (own, against) in pairs.items():
        for at, site in enumerate(("A", "B", "C", None)):
            test = compare(own, against, site)
            assert cells[row][at].test == test
            assert cells[row][at].value == pytest.approx(100 * test.gain)
            assert scores[row][at].test == test
    (figure,) = (f for f in all_figures(results)["cases"] if f.name == "differences")
    drawn = [item["value"] for item in figure.data if item["row"] == "N-DIRICHLET"]
    own, against = pairs["N-DIRICHLET"]
    assert sorted(drawn) == pytest.approx(sorted(100 * (own[key] - against[key]) for key in own))
    said = next(line for line in in_short(results) if line.startswith("N-DIRICHLET"))
    assert f"{cells['N-DIRICHLET'][3].value:+.2f} points against FEDAVG" in said
    assert "the repeats (seeds) that both have" in differences_table(results).notes[0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_s_correction_keeps_the_order_and_never_flatters(found):
    tests = {str(k): p for k, p in enumerate(found)}
    made = corrected(tests)
    ranked = sorted(tests, key=lambda name: tests[name])
    assert [made[name] for name in ranked] == sorted(made.values())
    assert all(tests[name] <= p <= 1 for name, p in made.items())
    assert made[ranked[0]] == min(1.0, len(found) * tests[ranked[0]])
    assert made[ranked[-1]] >= tests[ranked[-1]]


def test_the_table_names_the_rows_that_stay_below_after_it(tmp_path):
    home = write_study(tmp_path / "study", cases=40)
    rows = {"fedavg": 0.0, "n-dirichlet": 0.05, "l-softmax": 0.0}
    for row, gain in rows.items():
        path = home / row / "seed-0" / "scores.csv"
        head, *lines = path.read_text().splitlines()
        kept = [line.rsplit(",", 1)[0] for line in lines]
        values = [0.5 + 0.001 * (k % 7) + gain + 0.01 * (row == "l-softmax") * (-1) ** k
                  for k in range(len(lines))]  # fmt: skip
        written = [f"{name},{value}" for name, value in zip(kept, values, strict=True)]
        path.write_text("\n".join([head, *written]) + "\n")
    written_anew(home)
    messages = differences_table(read_results([home])).notes
    sure = "Corrected for the 2 rows (Holm), differences over all sites with p below 0.05: {}."
    assert sure.format("N-DIRICHLET") in messages


def test_the_figure_over_seeds_has_the_tables_numbers_and_says_who_outlives_correction(tmp_path):
    home = write_study(tmp_path / "study", seeds=(0, 1, 2))
    for seed in (0, 1, 2):  # one row is FedAvg, and a little better with every seed
        head, *lines = (home / f"fedavg/seed-{seed}/scores.csv").read_text().splitlines()
        split = (line.rpartition(",") for line in lines)
        better = [f"{case},{float(value) + 0.1 + seed / 1000}" for case, _, value in split]
        (home / f"n-dirichlet/seed-{seed}/scores.csv").write_text("\n".join([head, *better, ""]))
    written_anew(home)
    results = read_results([home])
    (figure,) = (f for f in all_figures(results)["cases"] if f.name == "seeds")
    rows = dict(seeds_table(results).rows)
    assert [item["row"] for item in figure.data] == list(rows)
    for item in figure.data:
        seeds, mean, low, high, *_ = rows[item["row"]]
        shown = (item["seeds"], item["points"], item["low"], item["high"])
        assert shown == (seeds.value, mean.value, low.value, high.value)
    assert {item["row"]: item["test"] for item in figure.data} == {
        "N-DIRICHLET": "p below 0.05 after correction",
        "L-SOFTMAX": "not significant",
    }
    assert figure.about in in_short(results)
    assert ": 1 significantly above FEDAVG, none below." in figure.about


def test_a_row_far_beyond_the_others_does_not_squeeze_them(tmp_path, monkeypatch) -> None:
    pytest.importorskip("vl_convert", reason="the extra 'report' is not installed")
    results = read_results([write_study(tmp_path / "study", seeds=(0, 1))])
    near = {name: Gain(1, 3, Interval(-2, 3 + n, 0.3)) for n, name in enumerate("abc")}
    same = {name: Gain(0, 3, Interval(0, 0, 1.0)) for name in "defg"}  # no extent of their own
    gains = {**near, **same, "low": Gain(-40.5, 3, Interval(-45, -36, 0.001))}
    gains["high"] = Gain(50.25, 3, Interval(40, 60, 0.001))
    shown = {}
    for name, some in (("all", gains), ("near", {**near, **same}), ("same", same)):
        monkeypatch.setattr(seeds, "seed_gains", lambda _, some=some: some)
        figure = seeds.seeds_figure(results)
        shown[name] = (drawn(figure).svg, figure.caption)
        assert [item["row"] for item in figure.data] == list(some)  # the table of data has all
    svg, caption = shown["all"]
    assert svg.count("off the axis") >= 2
    assert "-40.50, off the axis" in svg
    assert "+50.25, off the axis" in svg
    assert "number at the edge" in caption
    for name in ("near", "same"):
        assert "off the axis" not in shown[name][0]
        assert "at the edge" not in shown[name][1]


def test_one_seed_has_no_figure_over_seeds(tmp_path) -> None:
    results = read_results([write_study(tmp_path / "study")])
    assert "seeds" not in [figure.name for figure in all_figures(results)["cases"]]
    assert not any(line.startswith("Over seeds") for line in in_short(results))


def test_how_many_rows_outlive_correction_is_counted() -> None:
    far, near = Interval(1, 3, 0.001), Interval(-1, 3, 0.3)
    gains = {"a": Gain(2, 3, far), "b": Gain(1, 3, near), "c": Gain(-2, 3, far)}
    said = "Over seeds, with Holm's correction for {} significantly above FedAvg, {} below."
    assert counted(gains, "FedAvg") == said.format("3 rows: 1", 1)
    assert counted({"b": gains["b"]}, "FedAvg") == said.format("1 row: none", "none")


def test_of_a_single_row_nothing_is_corrected(tmp_path, say) -> None:
    home = write_study(tmp_path / "study", seeds=(0, 1, 2))
    code, _, err = say(
        "report", home / "fedavg", home / "l-softmax", "--out", tmp_path / "out", "--no-examples"
    )
    assert code == 0, err
    notes = (tmp_path / "out" / "tables" / "seeds.txt").read_text()
    assert "One row is tested, so nothing is corrected; with p below 0.05, above FEDAVG: " in notes
    assert "1 rows" not in notes
