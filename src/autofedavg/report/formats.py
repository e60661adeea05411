"""A table as text, Markdown, CSV, LaTeX or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from autofedavg.core.errors import printable
from autofedavg.report.sheets import to_sheet
from autofedavg.report.tables import Cell, Table


def to_text(table: Table) -> str:
    """Aligned columns for a terminal or a log."""
    heads = ["", *map(printable, table.heads)]
    body = [
        [printable(label), *(printable(c.text) or shown_cell(c, table, "*", "") for c in cells)]
        for label, cells in table.rows
    ]
    widths = [max(len(line[i]) for line in [heads, *body]) for i in range(len(heads))]
    lines = [
        printable(table.title),
        "",
        _aligned(heads, widths),
        "  ".join("-" * w for w in widths),
    ]
    lines += [_aligned(line, widths) for line in body]
    return "\n".join([*lines, "", *map(printable, table.notes)]) + "\n"


def to_markdown(table: Table) -> str:
    """A pipe table."""
    lines = [f"**{_md(table.title)}**", ""]
    lines.append("| | " + " | ".join(_md(head) for head in table.heads) + " |")
    lines.append("| --- |" + " ---: |" * len(table.heads))
    for label, cells in table.rows:
        shown = [
            _md(cell.text) if cell.text else shown_cell(cell, table, "**", "**") for cell in cells
        ]
        lines.append(f"| {_md(label)} | " + " | ".join(shown) + " |")
    return "\n".join([*lines, "", *(f"{_md(note)}  " for note in table.notes)]) + "\n"


def to_latex(table: Table) -> str:
    """A booktabs table, ready to paste."""
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_tex(table.title)}}}"]
    lines += [rf"\begin{{tabular}}{{l{'r' * len(table.heads)}}}", r"\toprule"]
    lines += [" & ".join(["", *(_tex(head) for head in table.heads)]) + r" \\", r"\midrule"]
    for label, cells in table.rows:
        shown = [
            _tex(cell.text)
            if cell.text
            else shown_cell(cell, table, r"\textbf{", "}", r"$\pm$", r"$^\dagger$")
            for cell in cells
        ]
        # After a line's end, TeX takes "[" or "*" for an option of it.
        safe = f"{{}}{_tex(label)}" if label.startswith(("[", "*")) else _tex(label)
        lines.append(" & ".join([safe, *shown]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\\ {{\footnotesize {_tex(note)}}}" for note in table.notes]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def to_csv(table: Table) -> str:
    """Full precision: mean, spread over repeats, and p value of each column."""
    kinds = ("",) if table.words else ("", " sd", " p")
    lines: list[list[object]] = [["row"]]
    lines[0] += [f"{head}{kind}" for head in table.heads for kind in kinds]
    for label, cells in table.rows:
        line: list[object] = [label]
        for cell in cells:
            if table.words:
                line.append(cell.text)
            else:
                p = cell.test.p if cell.test else None
                line += [_raw(cell.value), _raw(cell.spread), _raw(p)]
        lines.append(line)
    return to_sheet(lines)


def to_json(table: Table) -> str:
    """Full precision, with the test behind each dagger."""
    rows = []
    for label, cells in table.rows:
        columns: dict[str, object] = {}
        for head, cell in zip(table.heads, cells, strict=True):
            test = cell.test._asdict() if cell.test else None
            columns[head] = (
                cell.text if table.words else {"value": cell.value, "sd": cell.spread, "test": test}
            )
        rows.append({"row": label, "columns": columns})
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
    cell: Cell,
    table: Table,
    strong: str,
    end: str,
    plus_minus: str = "±",
    dagger: str = "†",
) -> str:
    """A number as people read it, with its marks."""
    if cell.value is None:
        return ""
    number = f"{cell.value:.{table.decimals}f}"
    number = f"{strong}{number}{end}" if cell.best else number
    number += dagger if cell.test and cell.test.dagger else ""
    return number + (
        ""
        if cell.spread is None or not cell.show_spread
        else f" {plus_minus} {cell.spread:.{table.decimals}f}"
    )


def _aligned(line: list[str], widths: list[int]) -> str:
    first, *rest = (text.ljust(w) if i == 0 else text.rjust(w)
                    for i, (text, w) in enumerate(zip(line, widths, strict=True)))  # fmt: skip
    return "  ".join([first, *rest]).rstrip()


def _raw(value: float | None) -> str:
    return "" if value is None else repr(value)


def _md(text: str) -> str:
    text = printable(" ".join(text.split("\n")))
    for mark in "\\|*_<>`[]":
        text = text.replace(mark, f"\\{mark}")
    return text


_TEX = {"\\": r"\textbackslash{}", "†": r"$^\dagger$", "±": r"$\pm$", "<": "$<$", ">": "$>$"}
_TEX |= {mark: f"\\{mark}" for mark in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\^{}"}


def _tex(text: str) -> str:
    return "".join(_TEX.get(mark, mark) for mark in printable(" ".join(text.split("\n"))))
