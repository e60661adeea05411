"""The rule that drew the committed splits of the public data sets (decision 21)."""

from collections.abc import Sequence
from typing import Literal

Rule = Literal["thirds", "two-thirds"]


def split_sizes(n: int, rule: Rule) -> tuple[int, int, int]:
    """Sizes of train, validation and test as the paper rounds them; train gets the remainder.

    Thirds are rounded down, sixths to the nearest.

    Example:
        >>> split_sizes(671, "two-thirds"), split_sizes(281, "thirds")
        ((447, 112, 112), (95, 93, 93))
    """
    part = n // 3 if rule == "thirds" else (n + 3) // 6
    return n - 2 * part, part, part


def shared_out(n: int, weights: Sequence[int]) -> list[int]:
    """Divides `n` in the proportion of the weights, by largest remainder.

    Example:
        >>> shared_out(199, (671, 88, 186))
        [141, 19, 39]
    """
    total = sum(weights)
    counts = [n * weight // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda k: -(n * weights[k] % total))
    for k in by_remainder[: n - sum(counts)]:
        counts[k] += 1
    return counts


def divided(cases: Sequence[str], rule: Rule) -> dict[str, str]:
    """Case -> split: the first cases train, the next ones validate, the last ones test."""
    train, validation, _ = split_sizes(len(cases), rule)
    return {
        case: "train" if k < train else "validation" if k < train + validation else "test"
        for k, case in enumerate(cases)
    }
