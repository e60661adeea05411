"""Ranks over studies against answers worked out by hand, published constants and SciPy."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from autofedavg.report.ranks import (
    alike,
    critical_difference,
    friedman,
    mean_ranks,
    ranks_of,
)

# Demsar (2006), Table 5a: two-tailed Nemenyi test, 5 % level, by the number of rows.
CONSTANTS = {2: 1.960, 3: 2.343, 4: 2.569, 5: 2.728, 6: 2.850, 7: 2.949, 8: 3.031, 9: 3.102,
             10: 3.164}  # fmt: skip
scores = st.integers(2, 6).flatmap(
    lambda k: st.lists(
        st.lists(st.integers(0, 8).map(lambda n: n / 8), min_size=k, max_size=k),
        min_size=1,
        max_size=6,
    )
)


def test_the_highest_score_has_rank_one_and_equal_ones_share_the_mean() -> None:
    assert ranks_of([[0.3, 0.9, 0.5], [0.4, 0.4, 0.1], [0.2, 0.2, 0.2]]) == [
        [3.0, 1.0, 2.0],
        [1.5, 1.5, 3.0],
        [2.0, 2.0, 2.0],
    ]
    assert mean_ranks([[3.0, 1.0, 2.0], [1.5, 1.5, 3.0]]) == [2.25, 1.25, 2.5]


def test_friedman_by_hand() -> None:
    """Rank sums 5, 8 and 11: 12 / (4 3 4) (25 + 64 + 121) - 3 4 4 = 4.5; p = exp(-4.5 / 2)."""
    found = friedman([[1, 2, 3], [1, 2, 3], [1, 3, 2], [2, 1, 3]])
    assert found.statistic == pytest.approx(4.5)
    assert found.p == pytest.approx(math.exp(-2.25))


def test_friedman_with_ties_by_hand() -> None:
    """6.125 before the correction; one tie of two divides it by 1 - 6 / (4 24)."""
    found = friedman([[1.5, 1.5, 3], [1, 2, 3], [1, 2, 3], [2, 1, 3]])
    assert found.statistic == pytest.approx(6.125 / 0.9375)


def test_rows_that_are_equal_everywhere_do_not_differ() -> None:
    assert friedman([[2.0, 2.0, 2.0]] * 4) == (0.0, 1.0)


@pytest.mark.parametrize(("studies", "rows"), [(2, 5), (5, 2), (1, 1)])
def test_there_is_no_test_of_few_studies_or_rows(studies, rows) -> None:
    assert friedman([list(range(1, rows + 1))] * studies) is None


@pytest.mark.parametrize(("rows", "constant"), CONSTANTS.items())
def test_the_critical_difference_has_the_published_constants(rows, constant) -> None:
    for studies in (3, 11):
        found = critical_difference(rows, studies)
        assert found / math.sqrt(rows * (rows + 1) / (6 * studies)) == pytest.approx(
            constant, abs=1.1e-3
        )


@given(scores)
def test_ranks_are_complete_and_turn_scores_around(studies) -> None:
    for values, ranks in zip(studies, ranks_of(studies), strict=True):
        k = len(values)
        assert sum(ranks) == k * (k + 1) / 2
        for a in range(k):
            for b in range(k):
                assert (values[a] > values[b]) == (ranks[a] < ranks[b])
                assert (values[a] == values[b]) == (ranks[a] == ranks[b])


@given(scores)
def test_ranks_depend_on_the_order_of_scores_alone(studies) -> None:
    """Studies have other metrics and scales; reversed rows have reversed ranks."""
    grown = [[math.exp(3 * x) - 7 for x in study] for study in studies]
    assert ranks_of(grown) == ranks_of(studies)
    assert ranks_of([study[::-1] for study in studies]) == [r[::-1] for r in ranks_of(studies)]


@given(scores)
def test_friedman_is_scipys(studies) -> None:
    ranks = ranks_of(studies)
    found = friedman(ranks)
    if found and found.statistic:
        assert found == pytest.approx(stats.friedmanchisquare(*zip(*studies, strict=True)))


@given(st.lists(st.integers(4, 40).map(lambda n: n / 4), min_size=2, max_size=9).map(sorted),
       st.floats(0.1, 4))  # fmt: skip
@example([1.0, 2.0], 1.0)  # just as far apart as the critical difference: they differ
def test_groups_join_exactly_the_rows_that_are_near(means, critical) -> None:
    groups = alike(means, critical)
    for a in range(len(means)):
        for b in range(a + 1, len(means)):
            together = any(first <= a and b <= last for first, last in groups)
            assert together == (means[b] - means[a] < critical)
    for one in groups:
        assert not any(
            other != one and other[0] <= one[0] and one[1] <= other[1] for other in groups
        )
