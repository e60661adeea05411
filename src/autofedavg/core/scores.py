"""Per-case scores of a run, kept by what was tested: a study can have millions of them."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple


class ScoreRow(NamedTuple):
    """One line of scores.csv. `model` is "global" or "local-<site>"."""

    model: str
    site: str
    split: str
    case: str
    metric: str
    value: float


class Group(NamedTuple):
    """What the scores of one column share."""

    model: str
    site: str
    split: str
    metric: str


class Column(NamedTuple):
    """Cases in the order they were tested, and their scores."""

    cases: list[str]
    values: array[float]


class Scores:
    """Scores in columns, one for each model, site, split and metric.

    A column holds eight bytes and the name of a case for every score; names are shared by all runs.

    Example:
        >>> scores = Scores([ScoreRow("global", "A", "test", "a-1", "dice", 0.5)])
        >>> [(tested.site, column.cases) for tested, column in scores.columns()]
        [('A', ['a-1'])]
    """

    def __init__(self, rows: Iterable[tuple[str, str, str, str, str, float]] = ()) -> None:
        self._columns: dict[tuple[str, str, str, str], Column] = {}
        for model, site, split, case, metric, value in rows:
            column = self._column((model, site, split, metric))
            column.cases.append(sys.intern(case))
            column.values.append(value)

    @classmethod
    def from_lines(cls, heads: Sequence[str], lines: Iterable[Sequence[str]]) -> Scores:
        """The scores in a table's lines; empty ones are passed over.

        Lines that belong together stand together as a rule, and are taken together: a run on
        CIFAR-10 has 170 thousand.

        Raises:
            ValueError: a column is missing, or a value is no number.
            IndexError: a line is too short.
        """
        at = {name: heads.index(name) for name in ScoreRow._fields}
        tested_of = itemgetter(*(at[name] for name in Group._fields))
        case_of, value_of = itemgetter(at["case"]), itemgetter(at["value"])
        made = cls()
        for tested, group in groupby(filter(None, lines), tested_of):
            rows, column = list(group), made._column(tested)
            column.cases.extend(map(sys.intern, map(case_of, rows)))
            column.values.extend(map(float, map(value_of, rows)))
        return made

    @classmethod
    def joined(cls, parts: Iterable[Scores]) -> Scores:
        """The scores of several runs together, such as the folds of a cross-validation."""
        made = cls()
        for part in parts:
            for tested, column in part.columns():
                mine = made._column(tested)
                mine.cases.extend(column.cases)
                mine.values.extend(column.values)
        return made

    def columns(
        self, model: str | None = None, metric: str | None = None, split: str | None = None
    ) -> Iterator[tuple[Group, Column]]:
        """The columns that are asked for; all of a kind that is not named."""
        for key, column in self._columns.items():
            tested = Group(*key)
            asked = (model, tested.model), (metric, tested.metric), (split, tested.split)
            if all(wanted in (None, mine) for wanted, mine in asked):
                yield tested, column

    def _column(self, tested: tuple[str, str, str, str]) -> Column:
        column = self._columns.get(tested)
        if column is None:
            column = self._columns[tested] = Column([], array("d"))
        return column

    def __iter__(self) -> Iterator[ScoreRow]:
        for (model, site, split, metric), (cases, values) in self._columns.items():
            for case, value in zip(cases, values, strict=True):
                yield ScoreRow(model, site, split, case, metric, value)

    def __len__(self) -> int:
        return sum(len(column.cases) for column in self._columns.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scores) and self._columns == other._columns
