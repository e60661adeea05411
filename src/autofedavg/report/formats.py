"""A table as text, Markdown, CSV, LaTeX or JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import zip_longest

from autofedavg.core.errors import printable
from autofedavg.report.tables import Cell, Table


def to_text(table: Table) -> str:
    """Aligned columns for a terminal or a log."""
    body: list[list[str]] = []
    for family, label, cells in table.headed:
        body += [[""], [family]] if family else []
        shown = (shown_cell(cell, table, printable, "*", "") for cell in cells)
        body.append([printable(label), *shown])
    lines = aligned([["", *map(printable, table.heads)], *body])
    lines.insert(1, ["-" * len(head) for head in lines[0]])
    text = ["  ".join(line).rstrip() for line in lines]
    return "\n".join([printable(table.title), "", *text, "", *map(printable, table.notes)]) + "\n"


def to_markdown(table: Table) -> str:
    """A pipe table."""
    lines = [f"**{_md(table.title)}**", ""]
    lines.append("| | " + " | ".join(_md(head) for head in table.heads) + " |")
    lines.append("| --- |" + " ---: |" * len(table.heads))
    for family, label, cells in table.headed:
        lines += [f"| *{_md(family)}* |" + " |" * len(cells)] if family else []
        shown = [shown_cell(cell, table, _md, "**", "**") for cell in cells]
        lines.append(f"| {_md(label)} | " + " | ".join(shown) + " |")
    return "\n".join([*lines, "", *(f"{_md(note)}  " for note in table.notes)]) + "\n"


def to_latex(table: Table) -> str:
    """A booktabs table, ready to paste."""
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_tex(table.title)}}}"]
    lines += [rf"\begin{{tabular}}{{l{'r' * len(table.heads)}}}", r"\toprule"]
    lines += [" & ".join(["", *(_tex(head) for head in table.heads)]) + r" \\", r"\midrule"]
    for family, label, cells in table.headed:
        whole = rf"\multicolumn{{{len(cells) + 1}}}{{l}}{{\textit{{{_tex(family)}}}}} \\"
        lines += [r"\addlinespace", whole] if family else []
        shown = [shown_cell(cell, table, _tex, r"\textbf{", "}") for cell in cells]
        # After a line's end, TeX takes "[" or "*" for an option of it.
        safe = f"{{}}{_tex(label)}" if label.startswith(("[", "*")) else _tex(label)
        lines.append(" & ".join([safe, *shown]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\\ {{\footnotesize {_tex(note)}}}" for note in table.notes]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def to_csv(table: Table) -> str:
    """Full precision: mean, spread over repeats, and p value of each column."""
    kinds = ("",) if table.words else ("", " sd", " p")
    lines: list[list[object]] = [["row", *(["family"] if table.families else [])]]
    lines[0] += [f"{head}{kind}" for head in table.heads for kind in kinds]
    for number, (label, cells) in enumerate(table.rows):
        line: list[object] = [label, *table.families[number : number + 1]]
        for cell in cells:
            numbers = (cell.value, cell.spread, cell.test.p if cell.test else None)
            exact = ["" if number is None else repr(number) for number in numbers]
            exact[0] = exact[0] or cell.text  # such as "not reached"
            line += [cell.text] if table.words else exact
        lines.append(line)
    return to_sheet(lines)


def to_json(table: Table) -> str:
    """Full precision, with the test behind each dagger."""
    rows = []
    for number, (label, cells) in enumerate(table.rows):
        columns: dict[str, object] = {}
        known: dict[str, object]
        for head, cell in zip(table.heads, cells, strict=True):
            test = cell.test._asdict() if cell.test else None
            known = {"value": cell.value, "sd": cell.spread, "test": test}
            if cell.value is None and cell.text:  # such as "not reached"
                known["text"] = cell.text
            columns[head] = cell.text if table.words else known
        family = {"family": table.families[number]} if table.families else {}
        rows.append({"row": label, **family, "columns": columns})
    content = {"name": table.name, "title": table.title, "rows": rows, "notes": list(table.notes)}
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


FORMATS: dict[str, tuple[str, Callable[[Table], str]]] = {
    "text": ("txt", to_text),
    "markdown": ("md", to_markdown),
    "csv": ("csv", to_csv),
    "latex": ("tex", to_latex),
    "json": ("json", to_json),
}


def joined(tables: Sequence[Table], format: str) -> str:
    """Several tables as one output: a list in JSON, the first table alone in CSV."""
    if format == "json":
        return "[\n" + ",\n".join(to_json(table).rstrip() for table in tables) + "\n]\n"
    shown = tables[:1] if format == "csv" else tables
    return "\n".join(FORMATS[format][1](table) for table in shown)


def shown_cell(
    cell: Cell, table: Table, escaped: Callable[[str], str], strong: str, end: str
) -> str:
    """A cell as people read it: its words, or its number with its marks."""
    if cell.text or cell.value is None:
        return escaped(cell.text)
    number = f"{cell.value:.{table.decimals}f}"
    marks = "†" if cell.test and cell.test.dagger else ""
    if cell.spread is not None and cell.show_spread:
        marks += f" ± {cell.spread:.{table.decimals}f}"
    return (f"{strong}{number}{end}" if cell.best else number) + escaped(marks)


def aligned(lines: Sequence[Sequence[str]], *, numbers: bool = True) -> list[list[str]]:
    """Cells as wide as their columns: the first to the left, others to the right if numbers."""
    widths = [max(map(len, column)) for column in zip_longest(*lines, fillvalue="")]
    pads = [str.ljust, *[str.rjust if numbers else str.ljust] * len(widths)]
    return [
        [pad(cell, width) for pad, cell, width in zip(pads, line, widths, strict=False)]
        for line in lines
    ]


def _md(text: str) -> str:
    text = printable(" ".join(text.split("\n")))
    for mark in "\\|*_<>`[]":
        text = text.replace(mark, f"\\{mark}")
    return text


_TEX = {"\\": r"\textbackslash{}", "†": r"$^\dagger$", "±": r"$\pm$", "<": "$<$", ">": "$>$"}
_TEX |= {mark: f"\\{mark}" for mark in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\^{}"}


def _tex(text: str) -> str:
    return "".join(_TEX.get(mark, mark) for mark in printable(" ".join(text.split("\n"))))


# Spreadsheets take some texts for formulas and run them: what these, or a way around, begin with.
_FORMULAS = tuple("=+-@\t\r\n")


def to_sheet(lines: Iterable[Iterable[object]]) -> str:
    """Lines of cells as CSV for spreadsheets; names come from sites, and must stay names."""
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
