"""Curves, bars and trends in the characters of a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

BLOCKS = " ▁▂▃▄▅▆▇█"  # from nothing to full
PLAIN = " .:-=+*#@"  # for terminals without Unicode


def curve(
    values: Sequence[float | None], width: int, height: int = 1, ascii_only: bool = False
) -> list[str]:
    """Lines that draw values as columns; None leaves a gap, more than `width` are averaged.

    Example:
        >>> curve([0, 1, None, 7], 10)
        ['▁▂ █']
    """
    columns = [_mean(values[a:b]) for a, b in buckets(len(values), width)]
    known = [value for value in columns if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    full = []  # eighths of a line
    for value in columns:
        share = 0.5 if high <= low else ((value or 0.0) - low) / (high - low)
        full.append(0 if value is None else 1 + round((8 * height - 1) * share))
    blocks = PLAIN if ascii_only else BLOCKS
    return [
        "".join(blocks[min(8, max(0, filled - 8 * below))] for filled in full)
        for below in reversed(range(height))
    ]


def buckets(count: int, width: int) -> list[tuple[int, int]]:
    """Which values share a column, as (first, end); each its own where there is room."""
    columns = min(count, max(1, width))
    return [(c * count // columns, (c + 1) * count // columns) for c in range(columns)]


def bar(share: float, width: int, ascii_only: bool = False) -> str:
    """A bar of full marks for a share of one.

    Example:
        >>> bar(0.5, 4)
        '██  '
    """
    full = PLAIN[8] if ascii_only else BLOCKS[8]
    return (full * round(width * min(1.0, max(0.0, share)))).ljust(width)


def trend(values: Sequence[float | None], few: int = 3) -> str:
    """Whether the last few values are lower, about as high, or higher than the few before."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return ""
    few = min(few, len(known) // 2)
    now, before = known[-few:], known[-2 * few : -few]
    change = statistics.fmean(now) - statistics.fmean(before)
    if abs(change) <= 0.01 * max(map(abs, known[-2 * few :])):
        return "level"
    return "falls" if change < 0 else "rises"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
