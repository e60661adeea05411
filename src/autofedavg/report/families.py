"""Rows of many kinds of methods: in the order of the families, and under their names.

Studies with few families stay in their own order, as the paper's tables do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import get_args

from autofedavg.core.errors import ConfigError
from autofedavg.report.repeats import Results, Row
from autofedavg.report.tables import Table, row_labels

FEW = 4  # families: as many as the paper's Table 1 has
OTHER = "other"  # methods of packages that are not here, or that name no family


def in_families(rows: Sequence[Row]) -> list[Row]:
    """The rows with their families, in order, where there are more than a few of these."""
    names = {str(row.method["name"]) for row in rows}
    if len(names) <= FEW:
        return list(rows)
    from autofedavg.methods.base import Family  # brings PyTorch

    known = {name: _family(name) for name in names}
    if len(set(known.values())) <= FEW:
        return list(rows)
    order = [*get_args(Family), OTHER]
    found = [replace(row, family=known[str(row.method["name"])]) for row in rows]
    return sorted(found, key=lambda row: order.index(row.family))


def _family(name: str) -> str:
    from autofedavg.methods import METHODS

    try:
        about = METHODS[name].about
    except ConfigError:
        return OTHER
    return about.family if about else OTHER


def families(results: Results) -> list[tuple[str, list[str]]]:
    """Each family with the labels of its rows; nothing where rows are not grouped."""
    grouped = groupby(results.rows, key=lambda row: row.family)
    return [(name, [row.label for row in rows]) for name, rows in grouped if name]


def under_headings(results: Results, table: Table) -> Table:
    """A table with the family of each of its lines, where the lines are rows of families."""
    known = {row.label: row.family for row in results.rows}
    row_of = row_labels(results)
    found = tuple(known.get(row_of.get(label, ""), "") for label, _ in table.rows)
    return replace(table, families=found) if found and all(found) else table
