"""CSV for spreadsheets, which take some texts for formulas and run them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from functools import lru_cache

_FORMULAS = tuple("=+-@\t\r\n")  # what a formula, or a way around this, begins with


def to_sheet(lines: Iterable[Iterable[object]]) -> str:
    """Lines of cells as CSV; names come from sites, and must stay names."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerows([_safe(c) if isinstance(c, str) else c for c in line] for line in lines)
    return out.getvalue()


@lru_cache(maxsize=2**16)  # a study has few names and many lines
def _safe(text: str) -> str:
    """A text with an apostrophe before it, where a spreadsheet would take it for a formula.

    Example:
        >>> _safe("=1+1"), _safe("-0.5"), _safe("case-1")
        ("'=1+1", '-0.5', 'case-1')
    """
    return f"'{text}" if text.startswith(_FORMULAS) and not _number(text) else text


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
