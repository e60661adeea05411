"""Which clients take a step when, where there are fewer slots than clients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

NOBODY = -1


def slots_for(lengths: Sequence[int], most: int) -> int:
    """As many slots as are filled all the time until the client with the most steps is done."""
    return min(most, max(1, sum(lengths) // max(lengths)))


@lru_cache(maxsize=8)
def schedule(lengths: tuple[tuple[int, int], ...], slots: int) -> np.ndarray:
    """The clients of every step: (steps, slots), -1 for nobody.

    Those with the most steps left go first, so that no table could be shorter.

    Args:
        lengths: (client, number of its steps).
        slots: clients that take a step at a time.

    Example:
        >>> schedule(((0, 1), (1, 2), (2, 1)), slots=2).tolist()
        [[0, 1], [1, 2]]
    """
    clients = np.array([client for client, _ in lengths], dtype=np.int32)
    left = np.array([steps for _, steps in lengths])
    rows = []
    while left.any():
        chosen = np.argsort(-left, kind="stable")[:slots]
        chosen = np.sort(chosen[left[chosen] > 0])
        left[chosen] -= 1
        row = clients[chosen]
        rows.append(np.pad(row, (0, slots - len(row)), constant_values=NOBODY))
    return np.stack(rows)
