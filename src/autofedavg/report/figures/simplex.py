"""The distribution of the weights at chosen rounds (Figure 3c), with beta printed.

Three sites: a triangle, with outlines of the Dirichlet's density. Any other number: intervals.
"""

from __future__ import annotations

from autofedavg.report.figures.figure import MOST_FIGURES, Figure, few
from autofedavg.report.figures.intervals import intervals
from autofedavg.report.figures.series import first, layer_wise, learns
from autofedavg.report.figures.triangle import triangle
from autofedavg.report.read import Results, Row


def simplex_figures(results: Results) -> list[Figure]:
    """A figure for every row that learns its weights."""
    sites = list(results.sites)
    begun = [row for row in results.rows if learns(row) and first(row).rounds]
    if len(sites) == 3:
        # The paper's figure first: one weight per site, with a distribution.
        begun.sort(key=lambda row: (layer_wise(row), not _dirichlet(row)))
        draw = triangle
    else:  # intervals are those of one Dirichlet
        begun = [row for row in begun if not layer_wise(row) and _dirichlet(row)]
        draw = intervals
    said = few([row.label for row in begun])
    return [draw(row, sites, said) for row in begun[:MOST_FIGURES]]


def _dirichlet(row: Row) -> bool:
    return bool(row.repeats[0].config["method"].get("constraint") == "dirichlet")
