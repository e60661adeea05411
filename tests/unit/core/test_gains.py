"""The mean gain over sites, and its interval."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from autofedavg.core.gains import Gain, gain_of

numbers = st.floats(-1, 1)
sites = st.dictionaries(st.sampled_from("ABCD"), st.lists(numbers, min_size=2), min_size=1)


def test_one_site_has_the_interval_of_a_paired_t_test():
    cases = [0.1, -0.2, 0.4, 0.05, 0.3]
    low, high = stats.ttest_1samp(cases, 0).confidence_interval(0.95)
    found = gain_of({"A": cases})
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-12)


def test_two_sites_have_the_interval_of_welch():
    """The mean of two means is half of their difference, with one of them negated."""
    one, two = [0.1, -0.2, 0.4, 0.05], [0.02, 0.0, 0.05, 0.01, 0.03, 0.2]
    low, high = stats.ttest_ind(one, [-x for x in two], equal_var=False).confidence_interval(0.95)
    found = gain_of({"A": one, "B": two})
    assert (2 * found.low, 2 * found.high) == pytest.approx((low, high), rel=1e-12)


@given(sites)
def test_the_mean_is_that_over_sites_however_many_cases_each_has(differences):
    found = gain_of(differences)
    assert found.mean == pytest.approx(
        statistics.fmean(map(statistics.fmean, differences.values())), abs=1e-12
    )
    assert math.isfinite(found.margin)
    assert found.margin >= 0


def test_cases_that_all_gain_the_same_leave_no_doubt():
    assert gain_of({"A": [0.5, 0.5], "B": [0.25, 0.25, 0.25]}) == Gain(0.375, 0.0)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    random = np.random.default_rng(0)
    spreads, hits, tries = {"A": (1.0, 4), "B": (0.2, 12), "C": (3.0, 6)}, 0, 1500
    for _ in range(tries):
        drawn = {k: random.normal(0.3, sd, n).tolist() for k, (sd, n) in spreads.items()}
        found = gain_of(drawn)
        hits += found.low <= 0.3 <= found.high
    assert 0.93 <= hits / tries <= 0.985
