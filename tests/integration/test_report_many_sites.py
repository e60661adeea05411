"""Tables of many sites, and of runs that were tested round by round."""

from pathlib import Path

import pytest

from autofedavg.core.scores import ScoreRow, Scores
from autofedavg.report.formats import to_text
from autofedavg.report.over_rounds import rounds_table
from autofedavg.report.over_rounds import tested_table as over_rounds
from autofedavg.report.repeats import MANY, Repeat, Results, Row
from autofedavg.report.tables import scores_table, sites_table, weights_table

SITES = {f"site-{k}": 10 + k for k in range(MANY + 1)}


def repeat(seed: int, gain: float, curve=(), fold=None, sites=SITES) -> Repeat:
    scores = [
        ScoreRow("global", site, "test", f"{site}-{c}-{fold}", "dice", 0.5 + gain * (k + 1))
        for k, site in enumerate(sites)
        for c in range(2)
    ]
    alpha = [1 / len(sites)] * len(sites)
    rounds = [
        {"t": t, "alpha": alpha} | ({} if score is None else {"test": {"mean": score}})
        for t, score in enumerate(curve or (None,), 1)
    ]
    config = {"method": {"name": "fedavg"}}
    return Repeat(Path("x"), seed, fold, "finished", config, {}, rounds, Scores(scores))


def tables_of(*rows: Row, sites=SITES):
    results = Results("A title", rows, "base", sites)
    makers = (scores_table, sites_table, over_rounds, rounds_table, weights_table)
    made = [make(results) for make in makers]
    return {table.name: table for table in made if table}


def alone(seed: int, gain: float, sites=SITES) -> Repeat:
    """Every site's own model: 50 % elsewhere, and at home more by its number times `gain`."""
    scores = [
        ScoreRow(f"local-{k}", site, "test", f"{site}-{c}", "dice", 0.5 + gain * n * (k == site))
        for n, k in enumerate(sites)
        for site in sites
        for c in range(2)
    ]
    config = {"method": {"name": "local-only"}}
    return Repeat(Path("x"), seed, None, "finished", config, {}, [], Scores(scores))


def test_many_sites_stand_below_each_other() -> None:
    tables = tables_of(
        Row("base", "Base", (repeat(0, 0.01),), "dice"),
        Row("other", "Other", (repeat(0, 0.02),), "dice"),
    )
    assert tables["scores"].heads == ("global test avg", "local avg", "local gen")
    assert [len(cells) for _, cells in tables["scores"].rows] == [3, 3]
    sites = tables["sites"]
    assert sites.heads == ("Base", "Other")
    assert [label for label, _ in sites.rows] == [f"{name} (n={n})" for name, n in SITES.items()]
    values = [[round(cell.value) for cell in cells] for _, cells in sites.rows]
    assert values == [[50 + k + 1, 50 + 2 * (k + 1)] for k in range(len(SITES))]
    assert all(other.best and not base.best for _, (base, other) in sites.rows)
    assert tables["weights"].heads == ("Base", "Other")
    assert [label for label, _ in tables["weights"].rows] == list(SITES)
    assert max(map(len, to_text(tables["sites"]).splitlines())) < 80


def test_few_sites_stand_side_by_side() -> None:
    few = dict(list(SITES.items())[:MANY])
    tables = tables_of(Row("base", "Base", (repeat(0, 0.01, sites=few),), "dice"), sites=few)
    assert "sites" not in tables
    assert len(tables["scores"].heads) == MANY + 3


def test_models_of_many_sites_stand_as_their_mean() -> None:
    repeats = (alone(0, 0.01), alone(1, 0.02))
    tables = tables_of(
        Row("local", "Local only", repeats, "dice"),
        Row("base", "Base", (repeat(0, 0.01),), "dice"),
    )
    (label, cells), _ = tables["scores"].rows
    assert label == "Local only - mean"
    average, local_avg, local_gen = cells
    K, at_home = len(SITES), 1.5 * sum(range(len(SITES)))  # of both seeds, all sites together
    assert average.value == pytest.approx(50 + at_home / K**2)
    assert average.show_spread
    assert average.spread == pytest.approx(at_home / 3 / K**2 * 2**0.5)
    assert local_avg.value == pytest.approx(50 + at_home / K)
    assert local_gen.value == pytest.approx(50)
    assert average.source == ("local", None)
    assert tables["sites"].heads == ("Base",)  # of global models


def test_models_of_few_sites_stand_one_by_one() -> None:
    few = dict(list(SITES.items())[:MANY])
    table = tables_of(Row("local", "Local only", (alone(0, 0.01, few),), "dice"), sites=few)
    assert [label for label, _ in table["scores"].rows] == [f"Local only - {k}" for k in few]


def test_the_last_and_the_best_round() -> None:
    first, second = (0.2, 0.7, 0.6), (0.3, 0.4, None, 0.5)
    repeats = (repeat(0, 0.01, first), repeat(1, 0.01, second))
    table = tables_of(
        Row("base", "Base", repeats, "dice"), Row("no", "No", (repeat(0, 0),), "dice")
    )
    ((label, (last, best, when)),) = table["tested"].rows  # a row without such scores is left out
    assert label == "Base"
    assert last.value == pytest.approx(100 * (0.6 + 0.5) / 2)
    assert best.value == pytest.approx(100 * (0.7 + 0.5) / 2)
    assert best.show_spread
    assert when.text == "3"


def test_folds_are_averaged_and_a_seed_without_all_of_them_is_not_counted() -> None:
    repeats = (
        repeat(0, 0.01, (0.2, 0.4), fold=0),
        repeat(0, 0.01, (0.8, 0.6), fold=1),
        repeat(1, 0.01, (0.9, 0.9), fold=0),
    )
    ((_, (last, best, _)),) = tables_of(Row("base", "Base", repeats, "dice", (0, 1)))["tested"].rows
    assert last.value == pytest.approx(50)
    assert best.value == pytest.approx(60)
    assert last.spread is None


def test_nothing_is_said_of_runs_that_were_not_tested_round_by_round() -> None:
    assert "tested" not in tables_of(Row("base", "Base", (repeat(0, 0.01),), "dice"))


def test_scores_after_so_many_rounds() -> None:
    curves = [tuple((t + seed) / 100 for t in range(1, 13)) for seed in (0, 2)]
    gap = (0.5, None, 0.6)
    table = tables_of(
        Row("base", "Base", tuple(map(repeat, (0, 1), (0.01, 0.01), curves)), "dice"),
        Row("gap", "Gap", (repeat(0, 0.01, gap), repeat(1, 0.01, (0.3, 0.4, 0.5))), "dice"),
        Row("once", "Once", (repeat(0, 0.01, (0.9,)),), "dice"),
    )["rounds"]
    assert table.heads == ("1", "2", "3", "5", "7", "10", "12")  # the last one too
    (_, base), (name, other) = table.rows  # one that was tested once has its number elsewhere
    assert [cell.value for cell in base] == pytest.approx([2, 3, 4, 6, 8, 11, 13])
    assert base[0].show_spread
    assert base[0].spread == pytest.approx(2**0.5)
    assert name == "Gap"
    assert other[0].value == pytest.approx(40)
    assert other[1].value is None  # not all seeds were tested there
    assert other[0].best
    assert not base[0].best
    assert base[3].best


def test_folds_count_together_after_so_many_rounds() -> None:
    repeats = (repeat(0, 0.01, (0.2, 0.4), fold=0), repeat(0, 0.01, (0.8, 0.6), fold=1))
    ((_, cells),) = tables_of(Row("base", "Base", repeats, "dice", (0, 1)))["rounds"].rows
    assert [cell.value for cell in cells] == pytest.approx([50, 50])
    assert cells[0].spread is None


def test_rounds_that_were_not_tested_have_no_column() -> None:
    curve = (None, None, None, None, 0.5, None, None, None, None, 0.6)
    table = tables_of(Row("base", "Base", (repeat(0, 0.01, curve),), "dice"))["rounds"]
    assert table.heads == ("5", "10")
