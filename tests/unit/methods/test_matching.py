"""BBP-MAP matching of units: rewards, assignments, and what they must recover."""

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autofedavg.methods.fedma.matching import Belief, global_units, match, rewards

NO_BIAS = Belief(bias=0.0)


def drawn(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    return scale * np.random.RandomState(seed).normal(size=shape)


def naive_rewards(units, counts, sums, belief, prior, K):
    """FedMA's formulas, unit by unit and coordinate by coordinate."""
    known = len(counts)
    new = min(len(units), max(belief.most - known, 1))
    table = np.zeros((len(units), known + new))
    for row, w in enumerate(units):
        for i in range(known):
            S = 1 / belief.sigma0 + counts[i] / belief.sigma
            gained = lost = 0.0
            for d in range(len(w)):
                gained += (w[d] / belief.sigma + sums[i][d]) ** 2 / (S + 1 / belief.sigma)
                lost += sums[i][d] ** 2 / S
            c = min(counts[i], 10)
            table[row, i] = gained - lost + math.log(c / (K - c))
        for t in range(1, new + 1):
            gained = lost = 0.0
            for d in range(len(w)):
                start = prior[d] / belief.sigma0
                gained += (w[d] / belief.sigma + start) ** 2 / (
                    1 / belief.sigma0 + 1 / belief.sigma
                )
                lost += start**2 * belief.sigma0
            extra = -2 * math.log(t) + 2 * math.log(belief.gamma / K)
            table[row, known + t - 1] = gained - lost + extra
    return table


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    known=st.integers(3, 6),
    wanted=st.integers(1, 3),
    K=st.sampled_from([13, 20]),
    gamma=st.floats(0.1, 20),
    sigma=st.floats(0.2, 3),
    sigma0=st.floats(0.2, 3),
    most=st.integers(1, 9),
)
def test_rewards_are_the_formulas(seed, known, wanted, K, gamma, sigma, sigma0, most):
    belief = Belief(gamma, sigma, sigma0, 0.3, most)
    counts = np.random.RandomState(seed).randint(1, 13, size=known).astype(float)
    units, sums = drawn(seed + 1, wanted, 4), drawn(seed + 2, known, 4)
    prior = belief.prior(4)
    assert prior.tolist() == [0, 0, 0, 0.3]
    found = rewards(units, counts, sums, belief, prior, K)
    np.testing.assert_allclose(
        found, naive_rewards(units, counts, sums, belief, prior, K), rtol=1e-9, atol=1e-9
    )


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), width=st.integers(1, 3), scale=st.sampled_from([0.3, 1.0, 4.0]))
def test_a_client_is_matched_as_well_as_any_assignment_could(seed, width, scale):
    first, second = drawn(seed, width, 3, scale=scale), drawn(seed + 1, width, 3, scale=scale)
    belief = Belief()
    prior = belief.prior(3)
    table = rewards(second, np.ones(width), prior + first, belief, prior, 2)
    best = max(
        sum(table[row, column] for row, column in enumerate(columns))
        for columns in permutations(range(table.shape[1]), width)
    )
    _, assigned = match([first, second], belief, 0, np.random.RandomState(0)).assignments
    assert sum(table[row, column] for row, column in enumerate(assigned)) == pytest.approx(best)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    K=st.integers(2, 6),
    width=st.integers(1, 6),
    sweeps=st.integers(0, 3),
)
def test_permuted_copies_are_found_and_shrunk_by_k_over_one_plus_k(seed, K, width, sweeps):
    base = drawn(seed, width, 12, scale=10.0)
    random = np.random.RandomState(seed)
    clients = [base[random.permutation(width)] for _ in range(K)]
    found = match(clients, NO_BIAS, sweeps, random)
    assert found.units.shape == base.shape
    for units, assigned in zip(clients, found.assignments, strict=True):
        np.testing.assert_allclose(found.units[assigned], units * K / (1 + K), rtol=1e-12)


def test_sixteen_clients_shrink_a_shared_unit_by_16_over_17():
    base = drawn(0, 4, 9, scale=10.0)
    found = match([base] * 16, NO_BIAS, 5, np.random.RandomState(0))
    np.testing.assert_allclose(found.units[found.assignments[0]], base * 16 / 17, rtol=1e-12)


def test_a_unit_that_one_client_has_alone_opens_a_new_one():
    shared, mine, yours = 10 * np.eye(3)
    clients = [np.stack([shared, mine]), np.stack([yours, shared])]
    found = match(clients, NO_BIAS, 5, np.random.RandomState(0))
    (a_shared, a_mine), (b_yours, b_shared) = found.assignments
    assert a_shared == b_shared
    assert len({a_shared, a_mine, b_yours}) == len(found.units) == 3
    np.testing.assert_allclose(found.units[a_shared], shared * 2 / 3)
    np.testing.assert_allclose(found.units[a_mine], mine / 2)
    np.testing.assert_allclose(found.units[b_yours], yours / 2)


def test_the_width_is_held_where_a_cap_says_so():
    clients = [30 * np.eye(12)[4 * k : 4 * k + 4] for k in range(3)]  # nothing in common
    random = np.random.RandomState(0)
    assert len(match(clients, NO_BIAS, 0, random).units) == 12
    # The first client's 4; then to the cap of 5; then one more, as every client may open one.
    assert len(match(clients, Belief(bias=0.0, most=5), 0, random).units) == 6


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    widths=st.lists(st.integers(1, 5), min_size=2, max_size=5),
    scale=st.sampled_from([0.1, 1.0, 5.0]),
    most=st.sampled_from([1, 4, 700]),
)
def test_no_client_shares_a_unit_with_itself_and_no_unit_is_empty(seed, widths, scale, most):
    clients = [drawn(seed + k, L, 4, scale=scale) for k, L in enumerate(widths)]
    belief = Belief(most=most)
    found = match(clients, belief, 3, np.random.RandomState(seed))
    for units, assigned in zip(clients, found.assignments, strict=True):
        assert len(set(assigned.tolist())) == len(units)
    used = {int(i) for assigned in found.assignments for i in assigned}
    assert used == set(range(len(found.units)))
    np.testing.assert_array_equal(found.units, global_units(clients, found.assignments, belief))
    again = match(clients, belief, 3, np.random.RandomState(seed))
    np.testing.assert_array_equal(again.units, found.units)


def test_the_prior_of_the_bias_draws_the_last_coordinate():
    unit = np.array([[3.0, 4.0, 1.0]])
    found = match([unit, unit], Belief(bias=0.1), 0, np.random.RandomState(0))
    np.testing.assert_allclose(found.units, [[2.0, 8 / 3, (0.1 + 2.0) / 3]])
