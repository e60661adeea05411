"""The paper's columns and its dagger, from per-case scores."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from autofedavg.core.evaluation import (
    Paired,
    Summary,
    case_means,
    compare,
    loss_ends,
    mean_and_spread,
    site_means,
    summarise,
)
from autofedavg.core.scores import Mean, MeanRow, ScoreRow, Scores


def row(model, site, case, value, split="test", metric="dice"):
    return ScoreRow(model, site, split, case, metric, value)


ROWS = [
    row("global", "B", "1", 0.5),
    row("global", "A", "1", 0.8),
    row("global", "A", "2", 0.6),
    row("local-A", "A", "1", 0.9),
    row("local-A", "A", "2", 0.7),
    row("local-A", "B", "1", 0.2),
    row("local-B", "A", "1", 0.4),
    row("local-B", "B", "1", 0.6),
]
NOISE = [
    row("global", "A", "1", 0.0, split="validation"),
    row("global", "A", "1", 99.0, metric="hausdorff"),
]


def test_global_test_avg_is_the_mean_over_sites_of_the_mean_over_cases():
    summary = summarise(Scores([*ROWS, *NOISE]), "dice")
    assert summary.by_site == pytest.approx({"A": 0.7, "B": 0.5})
    assert list(summary.by_site) == ["A", "B"]
    assert summary.global_test_avg == pytest.approx(0.6)


def test_local_avg_is_the_diagonal_and_local_gen_the_rest():
    summary = summarise(Scores([*ROWS, *NOISE]), "dice")
    assert summary.matrix["A"] == pytest.approx({"A": 0.8, "B": 0.2})
    assert summary.matrix["B"] == pytest.approx({"A": 0.4, "B": 0.6})
    assert summary.local_avg == pytest.approx(0.7)
    assert summary.local_gen == pytest.approx(0.3)


def test_worst_site_and_personal_models_on_their_own_cases():
    own = [row("personal-A", "A", "1", 0.9), row("personal-A", "A", "2", 0.8)]
    own += [row("personal-B", "B", "1", 0.7)]
    plain, summary = (summarise(Scores([*ROWS, *more]), "dice") for more in ([], own))
    assert plain.worst_site == summary.worst_site == pytest.approx(0.5)
    assert summary.personal == pytest.approx({"A": 0.85, "B": 0.7})
    assert summary.personal_avg == pytest.approx(0.775)
    assert summary.personal_worst == pytest.approx(0.7)
    assert (plain.personal, plain.personal_avg, plain.personal_worst) == ({}, None, None)
    assert (summary.by_site, summary.matrix) == (plain.by_site, plain.matrix)


def test_a_site_s_name_may_begin_with_local():
    summary = summarise(Scores([row("local-local-A", "local-A", "1", 0.5)]), "dice")
    assert list(summary.matrix) == ["local-A"]
    assert summary.local_avg == 0.5


def test_what_was_not_run_has_no_number():
    nothing = summarise(Scores(), "dice")
    assert nothing == Summary({}, {})
    assert (nothing.global_test_avg, nothing.local_avg, nothing.local_gen) == (None, None, None)
    alone = summarise(Scores([row("local-A", "A", "1", 0.5)]), "dice")
    assert (alone.global_test_avg, alone.local_avg, alone.local_gen) == (None, 0.5, None)
    elsewhere = summarise(Scores([row("local-A", "B", "1", 0.5)]), "dice")
    assert (elsewhere.local_avg, elsewhere.local_gen) == (None, 0.5)


def test_cases_are_averaged_over_repeats():
    repeats = [
        Scores([row("global", "A", "1", 0.2), row("local-A", "A", "1", 0.9)]),
        Scores([row("global", "A", "1", 0.6), *NOISE]),
    ]
    assert case_means(repeats, "dice") == pytest.approx({("A", "1"): 0.4})
    assert case_means(repeats, "dice", "local-A") == {("A", "1"): 0.9}


def paired(differences, sites=None):
    keys = [(sites[i] if sites else "A", f"{i:02d}") for i in range(len(differences))]
    baseline = dict.fromkeys(keys, 0.5)
    return {key: 0.5 + d for key, d in zip(keys, differences, strict=True)}, baseline


GAINS = [0.11, 0.02, 0.23, -0.04, 0.15, 0.06, 0.37, 0.08, 0.19, 0.31]


def test_the_test_is_scipy_s_wilcoxon():
    method, baseline = paired(GAINS)
    expected = stats.wilcoxon([v - 0.5 for v in method.values()], zero_method="wilcox")
    found = compare(method, baseline)
    assert found.p == pytest.approx(expected.pvalue)
    assert found.gain == pytest.approx(np.mean(GAINS))
    assert found.n == 10
    assert found.dagger


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=30))
def test_the_test_is_symmetric(differences):
    method, baseline = paired(differences)
    assume(any(method[key] != baseline[key] for key in method))
    one, other = compare(method, baseline), compare(baseline, method)
    assert 0 <= one.p <= 1
    assert one.p == pytest.approx(other.p)
    assert one.gain == pytest.approx(-other.gain)
    assert not (one.dagger and other.dagger)


@pytest.mark.parametrize(
    ("p", "gain", "dagger"),
    [
        (0.049, 0.01, True),
        (0.05, 0.01, False),
        (0.2, 0.5, False),
        (0.001, -0.1, False),
        (0.001, 0.0, False),
    ],
)
def test_a_dagger_needs_a_gain_and_a_p_below_five_percent(p, gain, dagger):
    assert Paired(p, gain, 10).dagger is dagger


def test_no_pair_differs():
    method, baseline = paired([0.0] * 5)
    assert compare(method, baseline) == Paired(1.0, 0.0, 5, 0)


def test_one_pair_that_differs_proves_nothing():
    method, baseline = paired([0.0, 0.1, 0.0])
    assert compare(method, baseline).p > 0.05


def test_only_cases_scored_by_both_are_paired():
    method, baseline = paired(GAINS)
    baseline.pop(("A", "00"))
    method.pop(("A", "01"))
    baseline[("B", "77")] = 0.1
    assert compare(method, baseline).n == 8


def test_one_site_or_all_cases_pooled():
    method, baseline = paired(GAINS, sites=["A"] * 6 + ["B"] * 4)
    assert compare(method, baseline, "B").n == 4
    assert compare(method, baseline, "B").gain == pytest.approx(np.mean(GAINS[6:]))
    assert compare(method, baseline).n == 10


def test_nothing_in_common_is_no_test():
    method, baseline = paired(GAINS)
    assert compare(method, {}) is None
    assert compare(method, baseline, "C") is None


def test_spread_needs_two_repeats():
    assert mean_and_spread([0.4]) == (0.4, None)
    mean, spread = mean_and_spread([0.2, 0.4, 0.9])
    assert mean == pytest.approx(0.5)
    assert spread == pytest.approx(np.std([0.2, 0.4, 0.9], ddof=1))


def test_a_lower_average_over_sites_is_no_gain_whatever_the_pooled_cases_say() -> None:
    """Decision 24: a large site that gains cannot put a dagger on a lower printed average."""
    baseline = {("large", f"{k}"): 0.5 for k in range(40)} | {
        ("small", f"{k}"): 0.5 for k in range(3)
    }
    method = {key: 0.51 + 0.0001 * int(key[1]) if key[0] == "large" else 0.3 for key in baseline}
    found = compare(method, baseline)
    assert found.p < 0.05
    assert found.gain < 0
    assert not found.dagger
    assert compare(method, baseline, "large").dagger


def test_no_dagger_where_the_test_leans_the_other_way() -> None:
    """Forty cases a little worse and six much better: the average rises, the test says worse."""
    baseline = {("A", f"a{c}"): 0.6 for c in range(40)} | {("B", f"b{c}"): 0.3 for c in range(6)}
    method = {
        key: value + (0.3 if key[0] == "B" else -0.01 - 0.0001 * n)
        for n, (key, value) in enumerate(baseline.items())
    }
    found = compare(method, baseline)
    assert found.gain > 0
    assert found.p < 0.05
    assert found.leans == -1
    assert not found.dagger
    assert compare(method, baseline, "B").leans == 1


HUGE = 1.7e308  # two of them have no sum


def test_what_earlier_versions_let_through_has_a_mean() -> None:
    """A raw OverflowError came out of `report`."""
    rows = [
        ScoreRow(model, site, "test", f"{site}-{i}", "dice", value)
        for model in ("global", "local-A", "local-B")
        for site in "AB"
        for i, value in enumerate((HUGE, HUGE))
    ]
    summary = summarise(Scores(rows), "dice")
    assert summary.global_test_avg == summary.local_avg == summary.local_gen == HUGE
    assert set(case_means([Scores(rows)] * 2, "dice").values()) == {HUGE}
    assert mean_and_spread([HUGE, HUGE, HUGE]) == (pytest.approx(HUGE), 0.0)
    assert mean_and_spread([HUGE, -HUGE]) == (0.0, math.inf)
    pairs = {("A", str(i)): HUGE for i in range(3)}
    assert compare(pairs, dict.fromkeys(pairs, 0.0)).gain == pytest.approx(HUGE)
    losses = {"A": [HUGE] * 8, "B": [HUGE] * 8}
    assert loss_ends(losses, {"A": 1e9, "B": 5.0}) == (8, pytest.approx(HUGE), pytest.approx(HUGE))


# --- means that sites disclosed -------------------------------------------------------------------

CASES = st.lists(st.lists(st.floats(-1, 1), min_size=1, max_size=9), min_size=1, max_size=4)


@given(CASES)
def test_means_of_folds_count_by_their_cases(folds):
    """What is pooled from the folds' means is the mean of all their cases."""
    cases, means = [], []
    for fold, values in enumerate(folds):
        cases += [row("global", "A", f"{fold}-{i}", value) for i, value in enumerate(values)]
        mean = sum(values) / len(values)
        means.append(MeanRow("global", "A", "test", "dice", mean, len(values)))
    whole, pooled = (dict(site_means(Scores(rows), "dice")) for rows in (cases, means))
    ((group, mean),) = whole.items()
    assert pooled[group] == (pytest.approx(mean.value, abs=1e-12), mean.cases)
    one, other = (summarise(Scores(rows), "dice") for rows in (cases, means))
    assert other.global_test_avg == pytest.approx(one.global_test_avg, abs=1e-12)
    assert not case_means([Scores(means)], "dice")


def test_a_single_mean_is_kept_to_the_bit():
    rows = [MeanRow("global", "A", "test", "dice", 0.1 + 0.2, 7), MeanRow(*"abcd", 0.5, 1)]
    assert dict(site_means(Scores(rows), "dice")) == {
        ("global", "A", "test", "dice"): Mean(0.1 + 0.2, 7)
    }


@pytest.mark.parametrize("losses", [{}, {"A": [1.0]}, {"A": [None, 2.0]}, {"A": [None, None]}])
def test_there_is_nothing_to_compare_without_first_and_last_losses(losses):
    assert loss_ends(losses) is None
