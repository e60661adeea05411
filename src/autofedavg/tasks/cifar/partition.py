"""Partitions of one labelled data set among clients, as in FedMA's benchmark.

The legacy `RandomState` and the order of its draws are part of the procedure: with 16 clients and
seed 0 the heterogeneous partition of CIFAR-10 is the one behind the paper's Table 1.
"""

from __future__ import annotations

import numpy as np

from autofedavg.core.errors import DataError

MINIMUM = 10
ATTEMPTS = 1000


def heterogeneous(
    labels: np.ndarray, clients: int, concentration: float, seed: int
) -> list[np.ndarray]:
    """FedMA's partition by a Dirichlet distribution over the clients, class by class.

    The images of a class are shuffled and divided in proportions drawn from Dir(concentration).
    Clients with an equal share of all images get no more. The whole partition is redrawn until the
    smallest client has 10 images; then every client's list is shuffled.

    Args:
        labels: (N,), integers from 0.
        clients: K.
        concentration: of the symmetric Dirichlet; small values give clients few classes.
        seed: of NumPy's legacy generator.

    Returns:
        The indices of each client's images; every image is in exactly one list.
    """
    random = np.random.RandomState(seed)
    attempts = ATTEMPTS if len(labels) >= MINIMUM * clients else 0
    for _ in range(attempts):
        shares = _deal(labels, clients, concentration, random)
        if shares is not None and min(len(share) for share in shares) >= MINIMUM:
            for share in shares:
                random.shuffle(share)
            return shares
    raise _too_few(
        f"{len(labels)} images could not be divided among {clients} clients so that each has "
        f"{MINIMUM} (Dirichlet concentration {concentration:g}, {attempts} attempts)",
        "use fewer clients, a larger concentration or another partition_seed",
    )


def homogeneous(count: int, clients: int, seed: int) -> list[np.ndarray]:
    """FedMA's "homo" partition: a random order of all images in nearly equal parts."""
    if count < MINIMUM * clients:
        raise _too_few(
            f"{count} images cannot give each of {clients} clients {MINIMUM}", "use fewer clients"
        )
    return np.array_split(np.random.RandomState(seed).permutation(count), clients)


def _deal(
    labels: np.ndarray, clients: int, concentration: float, random: np.random.RandomState
) -> list[np.ndarray] | None:
    """One attempt; None where tiny concentrations leave no proportions."""
    held: list[list[np.ndarray]] = [[] for _ in range(clients)]
    sizes = np.zeros(clients, dtype=np.int64)
    for label in range(int(labels.max()) + 1):
        images = np.flatnonzero(labels == label)
        random.shuffle(images)
        proportions = random.dirichlet(np.full(clients, concentration))
        proportions = np.where(sizes < len(labels) / clients, proportions, 0.0)
        total = proportions.sum()
        if not 0 < total < np.inf:
            return None
        cuts = (np.cumsum(proportions / total) * len(images)).astype(np.int64)[:-1]
        pieces = np.split(images, cuts)
        for pile, piece in zip(held, pieces, strict=True):
            pile.append(piece)
        sizes += [len(piece) for piece in pieces]
    return [np.concatenate(pile) for pile in held]


def _too_few(what: str, remedy: str) -> DataError:
    return DataError(what, where="partition", remedy=remedy)
