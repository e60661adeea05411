"""Vega-Lite specifications as pictures, and the library that draws them in a page.

vl-convert carries Vega and Vega-Lite with it: nothing is fetched.
"""

from __future__ import annotations

import json
from functools import lru_cache
from types import ModuleType

from autofedavg.core.errors import missing_extra
from autofedavg.report.figures.vega import Spec

VERSION = "6.4"  # of Vega-Lite, the same for pictures and for the page


def svg(spec: Spec) -> str:
    """The picture as SVG; its ink is `currentColor`, black where nothing else is said."""
    return _svg(json.dumps(spec, sort_keys=True))


@lru_cache(maxsize=256)  # a live view draws again only what changed
def _svg(spec: str) -> str:
    return str(_library().vegalite_to_svg(spec, vl_version=VERSION))


def pdf(svg_text: str) -> bytes:
    """An SVG as PDF."""
    return bytes(_library().svg_to_pdf(svg_text))


@lru_cache(maxsize=1)
def script() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, safe inside a page's script element."""
    bundle = _library().javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VERSION)
    return str(bundle).replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _library() -> ModuleType:
    try:
        import vl_convert
    except ImportError:
        raise missing_extra("report", "vl-convert-python") from None
    library: ModuleType = vl_convert
    return library
