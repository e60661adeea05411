"""Committed splits of the public data sets, case by case, and the rule that drew them.

The paper gives the sizes of its splits and not their cases. Ours were drawn once by the rule below
and are kept as files in `cases/`. The files are decisive; the rule shows that nobody chose.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple

Rule = Literal["thirds", "two-thirds"]


class CommittedCase(NamedTuple):
    """One case of a public data set.

    Attributes:
        site: the client it belongs to.
        case: its id, unique in the task.
        split: train, validation or test.
        withdrawn: the reason why it is left out; empty for every case that is used.
    """

    site: str
    case: str
    split: str
    withdrawn: str = ""


@cache
def read_cases(task: str) -> tuple[CommittedCase, ...]:
    """The committed cases of a task, in the order of its file."""
    text = (files("autofedavg.tasks.archives") / "cases" / f"{task}.csv").read_text(
        encoding="utf-8"
    )
    return tuple(CommittedCase(**row) for row in csv.DictReader(text.splitlines()))


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


def in_drawn_order(task: str, cases: Iterable[str]) -> list[str]:
    """Cases in a reproducible random order: by the SHA-256 of "autofedavg <task> <case>"."""
    digest = {c: hashlib.sha256(f"autofedavg {task} {c}".encode()).hexdigest() for c in cases}
    return sorted(digest, key=digest.__getitem__)


def divided(cases: Sequence[str], rule: Rule) -> dict[str, str]:
    """Case -> split: the first cases train, the next ones validate, the last ones test."""
    train, validation, _ = split_sizes(len(cases), rule)
    return {
        case: "train" if k < train else "validation" if k < train + validation else "test"
        for k, case in enumerate(cases)
    }
