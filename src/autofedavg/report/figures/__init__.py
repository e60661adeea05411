"""Figures of a report, as Vega-Lite specifications."""

from __future__ import annotations

from autofedavg.report.figures.bytes_sent import bytes_figure
from autofedavg.report.figures.ceiling import ceiling_figure
from autofedavg.report.figures.costs import time_figure, traffic_figure
from autofedavg.report.figures.curves import alpha_figure, learning_figure, loss_figure
from autofedavg.report.figures.figure import Figure
from autofedavg.report.figures.paying import paying_figure
from autofedavg.report.figures.rows import tested_figure, validation_figure
from autofedavg.report.figures.scores import differences_figure, matrix_figure
from autofedavg.report.figures.seeds import seeds_figure
from autofedavg.report.figures.settings import setting_figures
from autofedavg.report.figures.simplex import layer_figures, simplex_figures
from autofedavg.report.repeats import Results


def all_figures(results: Results) -> dict[str, list[Figure]]:
    """The figures by the part of the page they belong to; only those that have data."""
    parts: dict[str, list[Figure | None]] = {
        "weights": [alpha_figure(results), learning_figure(results), paying_figure(results)],
        "training": [validation_figure(results), tested_figure(results), loss_figure(results)],
        "cases": [seeds_figure(results), differences_figure(results), matrix_figure(results)],
        "costs": [bytes_figure(results), traffic_figure(results), time_figure(results)],
    }
    parts["weights"] += [
        ceiling_figure(results),
        *simplex_figures(results),
        *layer_figures(results),
    ]
    parts["cases"] += setting_figures(results)
    return {part: [figure for figure in made if figure] for part, made in parts.items()}
