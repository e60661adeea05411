"""Test scores of a run, kept by what was tested: of every case, or means that sites disclosed.

A study can have millions of scores of cases. A site that discloses means (decision 64) sends one
number and a count for each metric.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, TypeVar


class ScoreRow(NamedTuple):
    """One line of scores.csv. `model` is "global" or "local-<site>"."""

    model: str
    site: str
    split: str
    case: str
    metric: str
    value: float


class MeanRow(NamedTuple):
    """One line of the scores.csv of a run whose sites disclosed means."""

    model: str
    site: str
    split: str
    metric: str
    value: float
    cases: int


class Mean(NamedTuple):
    """A mean score, and the number of cases that it is of."""

    value: float
    cases: int


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


Kind = TypeVar("Kind")


class Scores:
    """Scores in columns, one for each model, site, split and metric; or means in place of them.

    A column holds eight bytes and the name of a case for every score; names are shared by all runs.

    Example:
        >>> scores = Scores([ScoreRow("global", "A", "test", "a-1", "dice", 0.5)])
        >>> [(tested.site, column.cases) for tested, column in scores.columns()]
        [('A', ['a-1'])]
    """

    def __init__(self, rows: Iterable[ScoreRow | MeanRow] = ()) -> None:
        self._columns: dict[tuple[str, str, str, str], Column] = {}
        self._means: dict[tuple[str, str, str, str], list[Mean]] = {}
        for row in rows:
            tested = Group(row.model, row.site, row.split, row.metric)
            if isinstance(row, MeanRow):
                self._means.setdefault(tested, []).append(Mean(row.value, row.cases))
            else:
                column = self._column(tested)
                column.cases.append(sys.intern(row.case))
                column.values.append(row.value)

    @classmethod
    def from_lines(cls, heads: Sequence[str], lines: Iterable[Sequence[str]]) -> Scores:
        """The scores in a table's lines, of cases or of sites; empty ones are passed over.

        Lines that belong together stand together as a rule, and are taken together: a run on
        CIFAR-10 has 170 thousand.

        Raises:
            ValueError: a column is missing, or a value is no number.
            IndexError: a line is too short.
        """
        if "case" not in heads and "cases" in heads:
            told = itemgetter(*map(heads.index, MeanRow._fields))
            return cls(
                MeanRow(model, site, split, metric, float(value), int(n))
                for model, site, split, metric, value, n in map(told, filter(None, lines))
            )
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
            for tested, means in part.means():
                made._means.setdefault(tested, []).extend(means)
        return made

    def columns(
        self, model: str | None = None, metric: str | None = None, split: str | None = None
    ) -> Iterator[tuple[Group, Column]]:
        """The scores of cases that are asked for; all of a kind that is not named."""
        return _asked(self._columns, model, metric, split)

    def means(
        self, model: str | None = None, metric: str | None = None, split: str | None = None
    ) -> Iterator[tuple[Group, list[Mean]]]:
        """The means that sites disclosed, likewise; several where runs were joined."""
        return _asked(self._means, model, metric, split)

    @property
    def groups(self) -> list[Group]:
        """All that was tested."""
        return [Group(*key) for key in (*self._columns, *self._means)]

    def _column(self, tested: tuple[str, str, str, str]) -> Column:
        column = self._columns.get(tested)
        if column is None:
            column = self._columns[tested] = Column([], array("d"))
        return column

    def __iter__(self) -> Iterator[ScoreRow | MeanRow]:
        for (model, site, split, metric), (cases, values) in self._columns.items():
            for case, value in zip(cases, values, strict=True):
                yield ScoreRow(model, site, split, case, metric, value)
        for tested, means in self._means.items():
            for mean in means:
                yield MeanRow(*tested, *mean)

    def __len__(self) -> int:
        cases = sum(len(column.cases) for column in self._columns.values())
        return cases + sum(map(len, self._means.values()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Scores):
            return False
        return (self._columns, self._means) == (other._columns, other._means)


def _asked(
    known: Mapping[tuple[str, str, str, str], Kind],
    model: str | None,
    metric: str | None,
    split: str | None,
) -> Iterator[tuple[Group, Kind]]:
    """Those that are asked for; all of a kind that is not named."""
    for key, found in known.items():
        tested = Group(*key)
        asked = (model, tested.model), (metric, tested.metric), (split, tested.split)
        if all(wanted in (None, mine) for wanted, mine in asked):
            yield tested, found
