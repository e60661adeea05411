"""Intervals of paired differences over seeds, against SciPy's tests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from autofedavg.report.seed_gains import Gain, Interval, gain_over, holm, verdict

gains = st.lists(st.integers(-400, 400).map(lambda n: n / 100), min_size=2, max_size=6)


def test_one_study_is_students_interval_by_hand() -> None:
    """Mean 2, deviation 1, three seeds: 4.3027 / sqrt(3) to either side."""
    found = gain_over([[1.0, 2.0, 3.0]])
    assert (found.mean, found.n) == (2.0, 3)
    assert (found.interval.low, found.interval.high) == pytest.approx((-0.4841, 4.4841), abs=1e-4)
    assert found.interval.p == pytest.approx(0.07418, abs=1e-5)


@given(gains.filter(lambda values: len(set(values)) > 1))
def test_one_study_is_the_paired_t_test(values) -> None:
    found, test = gain_over([values]), stats.ttest_1samp(values, 0.0)
    ends = test.confidence_interval(0.95)
    wanted = (ends.low, ends.high, test.pvalue)
    assert tuple(found.interval) == pytest.approx(wanted, rel=1e-6, abs=1e-9)


@given(gains, gains)
def test_two_studies_are_welchs_test(one, other) -> None:
    """The mean of two means is half the difference of the first and the second turned around."""
    if len({*one}) == 1 or len({*other}) == 1:
        return
    found = gain_over([one, other])
    test = stats.ttest_ind(one, [-x for x in other], equal_var=False)
    ends = test.confidence_interval(0.95)
    wanted = (ends.low / 2, ends.high / 2, test.pvalue)
    assert tuple(found.interval) == pytest.approx(wanted, rel=1e-6, abs=1e-9)
    assert found.n == len(one) + len(other)


def test_a_difference_that_is_the_same_in_all_seeds_has_no_width() -> None:
    assert gain_over([[0.0, 0.0]]) == Gain(0.0, 2, Interval(0.0, 0.0, 1.0))
    assert gain_over([[1.0, 1.0, 1.0]]) == Gain(1.0, 3, Interval(1.0, 1.0, 0.0))


def test_a_single_seed_has_a_mean_and_no_seed_nothing() -> None:
    assert gain_over([[1.5]]) == Gain(1.5, 1)
    assert gain_over([[1.0, 2.0], [4.5]]) == Gain(3.0, 3)
    assert gain_over([[], [1.0]]) is None
    assert gain_over([]) is None


def test_the_verdict_names_what_stays_after_correction() -> None:
    """0.02 in three tests is 0.06 after correction."""
    found = {
        "up": Gain(1.0, 3, Interval(0.5, 1.5, 0.001)),
        "down": Gain(-1.0, 3, Interval(-1.5, -0.5, 0.002)),
        "maybe": Gain(0.5, 3, Interval(0.1, 0.9, 0.06)),
        "once": Gain(9.0, 1),
    }
    assert holm(found) == pytest.approx({"up": 0.003, "down": 0.004, "maybe": 0.06})
    assert "above Base: up, and below Base: down." in verdict(found, "Base")
    found = {name: Gain(0.5, 3, Interval(0.1, 0.9, 0.02)) for name in ("a", "b", "c")}
    assert "above Base: none, and below Base: none." in verdict(found, "Base")
    assert "nothing is tested" in verdict({"once": Gain(9.0, 1)}, "Base")
