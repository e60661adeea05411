"""Rows and cases of a report are chosen by rule."""

import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofedavg.core.errors import RunError
from autofedavg.core.scores import ScoreRow, Scores
from autofedavg.report.picks import (
    GAIN,
    LOSS,
    MEDIAN,
    ONLY,
    pick_cases,
    pick_row,
    scored_cases,
    shared_seed,
)
from autofedavg.report.repeats import Repeat, Results, Row

few = st.sampled_from([-0.2, -0.1, 0.0, 0.1, 0.2])  # many ties
differences = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=2),
    few | st.floats(-1, 1, allow_nan=False),
    min_size=1,
    max_size=9,
)


@given(differences)
def test_cases_are_the_median_the_largest_gain_and_the_largest_loss(known) -> None:
    picks = pick_cases("I", known)
    assert len({pick.case for pick in picks}) == len(picks) <= 3
    assert all((p.site, p.difference) == ("I", known[p.case]) for p in picks)
    by_why = {pick.why: pick.case for pick in picks}
    if len(known) < 3:
        assert {pick.case for pick in picks} == set(known)
    if len(known) == 1:
        assert by_why.keys() == {ONLY}
        return
    top, bottom = max(known.values()), min(known.values())
    assert (GAIN in by_why) == (top > 0)
    assert (LOSS in by_why) == (bottom < 0)
    if top > 0:
        assert by_why[GAIN] == min(case for case in known if known[case] == top)
    if bottom < 0:
        assert by_why[LOSS] == min(case for case in known if known[case] == bottom)
    if len(known) > 2:
        assert MEDIAN in by_why
    values = known.values()
    medians = {statistics.median_low(values), statistics.median_high(values)}
    for pick in picks:
        assert pick.why != MEDIAN or pick.difference in medians


def test_of_an_even_number_the_lower_median_is_shown_and_names_break_ties() -> None:
    known = {"d": 0.1, "c": 0.1, "b": 0.2, "a": 0.3}
    assert [(p.case, p.why) for p in pick_cases("I", known)] == [("c", MEDIAN), ("a", GAIN)]


def repeat(seed=0, name="auto-fedavg", validation=(0.5,), tests=0.5, state="finished", **how):
    return Repeat(
        Path(f"/runs/{name}-{seed}"),
        seed,
        how.pop("fold", None),
        state,
        {"method": {"name": name}, "task": {"name": "synthetic"}, **how},
        {},
        [{"validation": {"mean": mean}} for mean in validation],
        Scores([ScoreRow(how.get("model", "global"), "I", "test", "a", "dice", tests)]),
    )


def row(name, *repeats, folds=(None,)) -> Row:
    return Row(name, name.upper(), repeats, "dice", folds)


BASE = row("fedavg", repeat(name="fedavg"))


def picked(*rows: Row) -> tuple[str, str]:
    results = Results("", (BASE, *rows), "fedavg", {"I": 1})
    chosen, rule = pick_row(results, BASE)
    return chosen.name, rule


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=5))
def test_the_row_is_chosen_by_validation_whatever_its_test_scores(scores) -> None:
    rows = [
        row(f"row-{k}", repeat(validation=(0.0, valid), tests=test))
        for k, (valid, test) in enumerate(scores)
    ]
    best = max(valid for valid, _ in scores)
    name, rule = picked(*rows)
    assert scores[int(name.removeprefix("row-"))][0] == best
    assert f"({100 * best:.2f})" in rule
    others = [
        replace(
            r, repeats=(replace(r.repeats[0], scores=Scores(s._replace(value=1 - s.value)
            for s in r.repeats[0].scores)),)
        )
        for r in rows
    ]  # fmt: skip
    assert picked(*others)[0] == name


def test_rows_of_other_methods_are_shown_only_without_ours() -> None:
    prox = row("fedprox", repeat(name="fedprox", validation=(0.9,)))
    other = row("even", repeat(name="fedavg", validation=(0.8,)))
    assert picked(prox, row("n", repeat(validation=(0.1,)))) == (
        "n",
        "N is the only row of Auto-FedAvg.",
    )
    name, rule = picked(other, prox)
    assert name == "fedprox"
    assert "2 rows beside the baseline" in rule


def test_the_models_that_were_selected_count_over_all_seeds() -> None:
    best = row("best", repeat(0, validation=(0.2, 0.8, 0.1)), repeat(1, validation=(0.2, 0.3)))
    last = row("last", repeat(validation=(0.9, 0.5), select="last"))
    assert picked(best, last)[0] == "best"
    assert "(55.00)" in picked(best, last)[1]
    blind = row("blind", repeat(validation=(None,), select="last"))
    assert picked(blind, row("blind-too", *blind.repeats)) == (
        "blind",
        "Of 2 rows of Auto-FedAvg, the first is shown: none was validated.",
    )
    assert picked(blind, last)[0] == "last"


def test_rows_without_a_finished_global_model_are_passed_over() -> None:
    local = row("local", repeat(model="local-I"))
    stopped = row("stopped", repeat(state="running", validation=(0.99,)))
    partly = row("partly", repeat(validation=(0.99,), fold=0), folds=(0, 1))
    assert picked(local, stopped, partly, row("n", repeat()))[0] == "n"
    with pytest.raises(RunError, match="no row beside the baseline is finished"):
        picked(local, stopped, partly)


def test_the_seed_is_the_lowest_that_both_have_finished() -> None:
    one = row("a", repeat(0, state="failed"), repeat(1), repeat(2), repeat(3))
    other = row("b", repeat(0), repeat(2), repeat(3))
    assert shared_seed(one, other) == 2
    assert shared_seed(one, row("c", repeat(7))) is None


def test_a_case_belongs_to_the_fold_that_tested_it() -> None:
    folds = [repeat(fold=0, tests=0.1), repeat(fold=1, tests=0.2)]
    (score,) = folds[1].scores
    folds[1] = replace(folds[1], scores=Scores([score._replace(case="b")]))
    known = scored_cases(row("n", *folds, folds=(0, 1)), 0)
    assert {key: (found.repeat.fold, found.score) for key, found in known.items()} == {
        ("I", "a"): (0, 0.1),
        ("I", "b"): (1, 0.2),
    }
    assert math.isclose(known["I", "b"].score, 0.2)
