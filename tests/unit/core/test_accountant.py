"""Epsilon of noisy sums: known answers, other accountants, and what must always hold."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autofedavg.core.accountant import (
    ORDERS,
    Mechanism,
    composed,
    divergences,
    epsilon,
    epsilon_of,
    noise_for,
    parallel,
)
from autofedavg.core.errors import ConfigError

COVID, SMALL, CIFAR = 4 / 124, 4 / 30, 64 / 3125


@pytest.mark.parametrize(
    ("q", "steps", "delta", "target", "sigma"),
    [  # docs/explanation/privacy.md
        (COVID, 90_000, 1e-3, 3, 11.1),
        (COVID, 90_000, 1e-3, 8, 5.1),
        (COVID, 90_000, 1e-3, 20, 2.6),
        (SMALL, 90_000, 1e-3, 3, 46),
        (SMALL, 90_000, 1e-3, 8, 21),
        (SMALL, 90_000, 1e-3, 20, 10.5),
        (1, 100, 1e-3, 3, 11.5),
        (1, 100, 1e-3, 8, 5.2),
        (1, 100, 1e-3, 20, 2.6),
        (CIFAR, 99 * 20 * 49, 1e-4, 3, 8.5),
        (CIFAR, 99 * 20 * 49, 1e-4, 8, 3.8),
        (CIFAR, 99 * 20 * 49, 1e-4, 20, 1.94),
        (4 / 31, 600, 1e-3, 3, 3.7),
        (4 / 31, 600, 1e-3, 8, 1.8),
        (1, 30, 1e-3, 3, 6.3),
        (1, 30, 1e-3, 8, 2.9),
    ],
)
def test_the_noise_that_a_wanted_epsilon_needs(q, steps, delta, target, sigma):
    found = noise_for(target, q, steps, delta)
    assert found == pytest.approx(sigma, rel=0.02)  # the table has two digits
    assert epsilon(q, found, steps, delta) <= target < epsilon(q, 0.998 * found, steps, delta)


@pytest.mark.parametrize("order", [2, 3, 7, 20])
@pytest.mark.parametrize(("q", "sigma"), [(0.01, 1.0), (0.2, 0.6), (0.5, 4.0), (0.9, 1.5)])
def test_whole_orders_have_a_binomial_sum(order, q, sigma):
    """Mironov, Talwar and Zhang 2019, Sec. 3.3."""
    terms = [
        math.comb(order, k) * (1 - q) ** (order - k) * q**k * math.exp(k * (k - 1) / 2 / sigma**2)
        for k in range(order + 1)
    ]
    (place,) = np.flatnonzero(np.isclose(ORDERS, order))
    found = divergences(Mechanism(q, sigma))[place]
    assert found == pytest.approx(math.log(math.fsum(terms)) / (order - 1), rel=1e-9, abs=1e-13)


def test_everybody_in_every_sample_is_the_plain_gaussian_mechanism():
    assert np.allclose(divergences(Mechanism(1.0, 2.0)), ORDERS / 8)
    almost = divergences(Mechanism(1 - 1e-12, 2.0))
    assert np.allclose(almost, ORDERS / 8, rtol=1e-9)


def test_against_dp_accounting():
    accounting = pytest.importorskip("dp_accounting", reason="the extra `privacy` is not installed")
    for q, sigma, steps, delta in [
        (COVID, 5.1, 9000, 1e-3),
        (0.3, 1.2, 50, 1e-5),
        (1, 3, 10, 1e-4),
    ]:
        event = accounting.GaussianDpEvent(sigma)
        if q < 1:
            event = accounting.PoissonSampledDpEvent(q, event)
        theirs = accounting.rdp.RdpAccountant().compose(event, steps).get_epsilon(delta)
        assert epsilon(q, sigma, steps, delta) == pytest.approx(theirs, rel=0.02)
        tight = accounting.pld.PLDAccountant().compose(event, steps).get_epsilon(delta)
        assert tight <= epsilon(q, sigma, steps, delta) * 1.001


NOISE = st.floats(0.5, 20)
CHANCE = st.floats(0.001, 1)
STEPS = st.integers(1, 1000)


@settings(max_examples=40, deadline=None)
@given(q=CHANCE, sigma=NOISE, steps=STEPS)
def test_more_noise_costs_less_and_more_steps_cost_more(q, sigma, steps):
    cost = epsilon(q, sigma, steps, 1e-4)
    assert 0 <= epsilon(q, 2 * sigma, steps, 1e-4) <= cost + 1e-12
    assert epsilon(q, sigma, 2 * steps, 1e-4) >= cost - 1e-12
    assert epsilon(q / 2, sigma, steps, 1e-4) <= cost + 1e-12
    assert epsilon(q, sigma, steps, 1e-3) <= cost + 1e-12


@settings(max_examples=30, deadline=None)
@given(one=st.tuples(CHANCE, NOISE, STEPS), other=st.tuples(CHANCE, NOISE, STEPS))
def test_other_patients_cost_no_more_than_the_worst_and_the_same_ones_at_least_that(one, other):
    spent = [{Mechanism(q, sigma): steps} for q, sigma, steps in (one, other)]
    alone = [epsilon_of(composed(s), 1e-4) for s in spent]
    apart = epsilon_of(parallel(spent), 1e-4)
    together = epsilon_of(sum(map(composed, spent)), 1e-4)
    assert max(alone) - 1e-12 <= apart <= together + 1e-12
    assert together <= sum(alone) + 1e-9 or max(alone) < 1  # RDP pays for delta once


def test_nothing_released_costs_nothing():
    assert epsilon_of(composed({}), 1e-3) == epsilon_of(parallel([]), 1e-3) == 0
    assert epsilon(0.1, 2.0, 0, 1e-3) == 0


def test_an_epsilon_that_no_noise_gives():
    with pytest.raises(ConfigError, match="no noise gives epsilon = 1e-09"):
        noise_for(1e-9, 0.5, 10**6, 1e-5)


def test_next_to_no_noise_is_no_protection():
    assert epsilon(0.01, 0.1, 1, 1e-5) > 4
