"""Draws the tutorial's picture from run folders: python docs/img/draw.py RUNS OUT.svg"""

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autofedavg.report.read import read_results
from autofedavg.report.tables import scores_table

BARS = " ▁▂▃▄▅▆▇█"


def scores(results) -> Table:
    table = scores_table(results)
    drawn = Table(title="make demo: Dice in percent", title_justify="left")
    drawn.add_column("")
    for head in table.heads:
        drawn.add_column(head, justify="right")
    for label, cells in table.rows:
        shown = []
        for cell in cells:
            text = "" if cell.value is None else f"{cell.value:.2f}"
            dagger = "†" if cell.test and cell.test.dagger else ""
            shown.append(Text(text + dagger, style="bold green" if cell.best else ""))
        drawn.add_row(label, *shown)
    return drawn


def weights(results) -> Table:
    drawn = Table(title="alpha over the rounds", title_justify="left")
    drawn.add_column("")
    for site in results.sites:
        drawn.add_column(site)
    for row in results.rows:
        lines = row.finished[0].rounds if row.finished else []
        if not lines or not lines[-1]["alpha"] or isinstance(lines[-1]["alpha"][0], list):
            continue
        columns = zip(*(line["alpha"] for line in lines), strict=True)
        curves = [
            "".join(BARS[round(8 * a)] for a in column) + f" {column[-1]:.2f}" for column in columns
        ]
        drawn.add_row(row.label, *curves)
    return drawn


if __name__ == "__main__":
    results = read_results([Path(sys.argv[1])])
    console = Console(record=True, width=118, file=io.StringIO())
    console.print(scores(results))
    console.print(weights(results))
    drawn = console.export_svg(title="autofedavg")
    # rich asks for a font from the network; a picture in a repository must not.
    drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    Path(sys.argv[2]).write_text(drawn)
