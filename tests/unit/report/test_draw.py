"""A figure is the same bytes whatever was drawn before it."""

import re

import pytest

from autofedavg.report import draw
from autofedavg.report.figures.figure import Figure
from autofedavg.report.page import drawn


def clipped(most: float) -> Figure:
    line = {"type": "line", "clip": True}
    y = {"field": "y", "type": "quantitative", "scale": {"domain": [0, most]}}
    panel = {"mark": line, "encoding": {"x": {"field": "x", "type": "quantitative"}, "y": y}}
    values = [{"x": 0, "y": 0}, {"x": 1, "y": 2}]
    spec = {"data": {"values": values}, "vconcat": [panel, panel]}
    return Figure("curves", "Curves", "", values, spec)


def test_names_within_a_picture_do_not_tell_how_many_were_drawn_before() -> None:
    pytest.importorskip("vl_convert", reason="the extra 'report' is not installed")
    first = drawn(clipped(1.0)).svg
    for most in (1.1, 1.2, 1.3):
        drawn(clipped(most))
    draw._svg.cache_clear()
    assert drawn(clipped(1.0)).svg == first
    names = re.findall(r'\bid="([\w-]+)"', first)
    assert len(set(names)) == len(names) >= 2
    assert all(name.startswith("curves-") for name in names)
    assert set(re.findall(r"url\(#([\w-]+)\)", first)) == set(names)
