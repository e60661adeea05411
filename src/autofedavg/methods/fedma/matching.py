"""FedMA's matching of one layer's units across clients: BBP-MAP (Wang et al. 2020).

Every client's unit is a vector: its incoming weights, and its bias at the end. A global unit
("atom") is the posterior mean of the client units matched to it, under a Gaussian prior; how many
atoms there are is found by a Beta-Bernoulli process. Clients are matched one after another, each
by a linear assignment that maximises the reward, and then taken out and matched again a few times.

Notation: K clients (FedMA's J); atom i has c_i units, the sum G_i = mu0/sigma0 + sum w/sigma over
them, and the precision S_i = 1/sigma0 + c_i/sigma. All arithmetic is float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Array = NDArray[np.float64]
Index = NDArray[np.int64]
POPULAR = 10  # FedMA's code counts no more clients than this in an atom's popularity


@dataclass(frozen=True)
class Belief:
    """The constants of the model.

    Attributes:
        gamma: mass of the process: the larger, the more new atoms.
        sigma: variance of a client's unit around its atom.
        sigma0: variance of the atoms around the prior mean.
        bias: prior mean of a bias; that of a weight is 0.
        most: atoms beyond which a client opens at most one new one at a time.
    """

    gamma: float = 7.0
    sigma: float = 1.0
    sigma0: float = 1.0
    bias: float = 0.1
    most: int = 700

    def prior(self, length: int) -> Array:
        """mu0 of units of this length, bias last."""
        mean = np.zeros(length)
        mean[-1] = self.bias
        return mean


@dataclass(frozen=True)
class Matching:
    """What was found.

    Attributes:
        units: (L, D), the global units G_i / S_i.
        assignments: for each client, the global unit of each of its units.
    """

    units: Array
    assignments: tuple[Index, ...]


@dataclass
class _Atoms:
    """The running sums; `counts` and `sums` have one row per atom."""

    counts: Array
    sums: Array


def match(
    clients: Sequence[Array], belief: Belief, sweeps: int, random: np.random.RandomState
) -> Matching:
    """Matches the units of one layer.

    Args:
        clients: (L_j, D) units of every client.
        belief: the constants.
        sweeps: how often every client is taken out and matched again, in random order.
        random: draws the orders.
    """
    K = len(clients)
    prior = belief.prior(clients[0].shape[1])
    order = sorted(range(K), key=lambda j: -len(clients[j]))
    found: dict[int, Index] = {}
    atoms = _Atoms(np.zeros(0), np.zeros((0, len(prior))))
    for j in order:
        found[j] = _join(atoms, clients[j], belief, prior, K)
    for _ in range(sweeps):
        for j in random.permutation(K):
            _leave(atoms, clients[j], found, j, belief)
            found[j] = _join(atoms, clients[j], belief, prior, K)
    assignments = tuple(found[j] for j in range(K))
    return Matching(global_units(clients, assignments, belief), assignments)


def global_units(clients: Sequence[Array], assignments: Sequence[Index], belief: Belief) -> Array:
    """G_i / S_i of every atom: with sigma = sigma0 = 1 and mu0 = 0, sum w / (1 + c_i)."""
    prior = belief.prior(clients[0].shape[1])
    count = 1 + max(int(assigned.max()) for assigned in assignments)
    sums = np.tile(prior / belief.sigma0, (count, 1))
    counts = np.zeros(count)
    for units, assigned in zip(clients, assignments, strict=True):
        sums[assigned] += units / belief.sigma
        counts[assigned] += 1
    means: Array = sums / (1 / belief.sigma0 + counts / belief.sigma)[:, None]
    return means


def rewards(
    units: Array, counts: Array, sums: Array, belief: Belief, prior: Array, K: int
) -> Array:
    """(L_j, L + new): the reward of matching each unit to each atom, or to the t-th new one.

    sum_d (w/sigma + G_i)^2 / (S_i + 1/sigma) - sum_d G_i^2 / S_i + log(c_i / (K - c_i)) for an
    atom; the same with G = mu0/sigma0, S = 1/sigma0 and -2 log t + 2 log(gamma/K) for a new one.
    """
    known, wanted = len(counts), len(units)
    opened = min(wanted, max(belief.most - known, 1))
    opened = max(opened, wanted - known)  # every unit must have a place
    fit = _fit(units / belief.sigma, sums, 1 / belief.sigma0 + counts / belief.sigma, belief)
    popular = np.minimum(counts, POPULAR)
    fit += np.log(popular / (K - popular))
    fresh = _fit(
        units / belief.sigma, prior[None] / belief.sigma0, np.array([1 / belief.sigma0]), belief
    )
    rarer = -2 * np.log(np.arange(1, opened + 1)) + 2 * np.log(belief.gamma / K)
    return np.hstack([fit, fresh + rarer])


def _fit(scaled: Array, sums: Array, precisions: Array, belief: Belief) -> Array:
    """The Gaussian part of the reward, the square multiplied out."""
    squares = (sums**2).sum(axis=1)
    whole = (scaled**2).sum(axis=1)[:, None] + 2 * scaled @ sums.T + squares
    fit: Array = whole / (precisions + 1 / belief.sigma) - squares / precisions
    return fit


def _join(atoms: _Atoms, units: Array, belief: Belief, prior: Array, K: int) -> Index:
    """Matches one client to the atoms and adds it to their sums; returns its assignment."""
    known = len(atoms.counts)
    assigned = np.arange(len(units), dtype=np.int64)  # the first client's units are the first atoms
    if known:
        reward = rewards(units, atoms.counts, atoms.sums, belief, prior, K)
        rows, columns = linear_sum_assignment(-reward)
        assigned[rows] = columns
    opened = np.unique(assigned[assigned >= known])  # new atoms stand in a row, without gaps
    assigned[assigned >= known] = known + np.searchsorted(opened, assigned[assigned >= known])
    atoms.counts = np.concatenate([atoms.counts, np.zeros(len(opened))])
    atoms.sums = np.vstack([atoms.sums, np.tile(prior / belief.sigma0, (len(opened), 1))])
    atoms.counts[assigned] += 1
    atoms.sums[assigned] += units / belief.sigma
    return assigned


def _leave(atoms: _Atoms, units: Array, found: dict[int, Index], j: Any, belief: Belief) -> None:
    """Takes a client out of the sums; atoms that no other client has are dropped."""
    mine = found.pop(j)
    atoms.counts[mine] -= 1
    atoms.sums[mine] -= units / belief.sigma
    kept = atoms.counts > 0
    place = np.cumsum(kept) - 1
    atoms.counts, atoms.sums = atoms.counts[kept], atoms.sums[kept]
    for other, assigned in found.items():
        found[other] = place[assigned]
