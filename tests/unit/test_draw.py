"""A figure is the same bytes whatever was drawn before it."""

import re

import pytest

from autofedavg.report import draw


def clipped(most: float) -> dict:
    line = {"type": "line", "clip": True}
    y = {"field": "y", "type": "quantitative", "scale": {"domain": [0, most]}}
    panel = {"mark": line, "encoding": {"x": {"field": "x", "type": "quantitative"}, "y": y}}
    values = [{"x": 0, "y": 0}, {"x": 1, "y": 2}]
    return {"data": {"values": values}, "vconcat": [panel, panel]}


def test_names_within_a_picture_do_not_tell_how_many_were_drawn_before() -> None:
    pytest.importorskip("vl_convert", reason="the extra 'report' is not installed")
    first = draw.svg(clipped(1.0))
    for most in (1.1, 1.2, 1.3):
        draw.svg(clipped(most))
    draw._svg.cache_clear()
    assert draw.svg(clipped(1.0)) == first
    names = re.findall(r'\bid="(\w+)"', first)
    assert len(set(names)) == len(names) >= 2
    assert set(re.findall(r"url\(#(\w+)\)", first)) == set(names)
