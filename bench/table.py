"""The rows of the benchmark, and how they are printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.timing import Sample

QUIET = 0.1


@dataclass(frozen=True)
class Row:
    """One measured number.

    Attributes:
        what: what was measured.
        sample: the number, once per repetition.
        unit: "" for a ratio.
        limit: at most this is the goal; None where the number is for comparison only.
    """

    what: str
    sample: Sample
    unit: str = ""
    limit: float | None = None

    @property
    def verdict(self) -> str:
        if self.limit is None:
            return ""
        return "met" if self.sample.median <= self.limit else "missed"

    def cells(self) -> tuple[str, str, str, str, str]:
        low, high = self.sample.quartiles
        spread = f"{low:.2f} .. {high:.2f}" if len(self.sample.values) > 1 else ""
        goal = "" if self.limit is None else f"<= {self.limit:.2f}"
        value = f"{self.sample.median:.3f}" if not self.unit else f"{self.sample.median:.1f}"
        return self.what, f"{value} {self.unit}".rstrip(), spread, goal, self.verdict

    def plain(self) -> dict[str, object]:
        """For the JSON file."""
        return {
            "what": self.what,
            "median": self.sample.median,
            "values": list(self.sample.values),
            "unit": self.unit or "ratio",
            "goal": self.limit,
            "verdict": self.verdict or None,
        }


@dataclass(frozen=True)
class Section:
    """Rows that were measured together.

    Attributes:
        title: what they have in common.
        rows: the numbers.
        others: the cores other processes kept busy while it was timed; None where nothing was.
        remark: printed below the rows.
    """

    title: str
    rows: Sequence[Row]
    others: float | None = None
    remark: str = ""

    def footnotes(self) -> list[str]:
        notes = [self.remark] if self.remark else []
        if self.others is not None and self.others > QUIET:
            notes.append(
                f"others kept {self.others:.2f} cores busy: measure again when it is quiet"
            )
        return notes


def render(sections: Sequence[Section]) -> str:
    """The table as text."""
    head = ("", "median", "middle half", "goal", "verdict")
    cells = [row.cells() for section in sections for row in section.rows]
    widths = [max(len(line[column]) for line in [head, *cells]) for column in range(len(head))]
    lines = [_line(head, widths)]
    for section in sections:
        lines += ["", section.title]
        lines += [_line(row.cells(), widths) for row in section.rows]
        lines += [f"  ({note})" for note in section.footnotes()]
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (
        cell.ljust(width) if column == 0 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join(["  " + first, *rest]).rstrip()
