"""Sizes and times as people say them."""

from __future__ import annotations


def size(count: float) -> str:
    """Bytes.

    Example:
        >>> size(1_395_084)
        '1.3 MiB'
    """
    units = ["B", "KiB", "MiB", "GiB"]
    while count >= 1024 and len(units) > 1:
        count /= 1024
        units.pop(0)
    return f"{count:.{0 if units[0] == 'B' else 1}f} {units[0]}"


def duration(seconds: float) -> str:
    """A time as people say it.

    Example:
        >>> duration(4000)
        '1 h 07 min'
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"
