"""Example cases as the page shows them, and as one SVG per site."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gallery:
    """Pictures of cases, site by site, or the reason why there are none."""

    notes: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
