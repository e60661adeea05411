"""Scores of single cases by half and site, and their gains over a baseline's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autofedavg.core.gains import gain_of

Case = tuple[int, str, str]  # half, site, name
CaseScores = dict[Case, float]


def of_half(scores: CaseScores, half: int) -> CaseScores:
    """The scores of one half's cases."""
    return {case: value for case, value in scores.items() if case[0] == half}


def mean_over_sites(scores: CaseScores) -> float:
    """The mean over sites of the mean over their cases."""
    by_site = _by_site(scores)
    return sum(sum(mine) / len(mine) for mine in by_site.values()) / len(by_site)


def compared(scores: CaseScores, baseline: CaseScores) -> dict[str, Any]:
    """A row of ceiling.json: mean score, and the gain over the baseline with its margin."""
    gain = gain_of(_by_site({case: scores[case] - baseline[case] for case in baseline}))
    sites = {site: sum(mine) / len(mine) for site, mine in _by_site(scores).items()}
    return {
        "score": mean_over_sites(scores),
        "gain": gain.mean,
        "margin": gain.margin,
        "sites": sites,
    }


def _by_site(values: Mapping[Case, float]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for (_, site, _), value in values.items():
        found.setdefault(site, []).append(value)
    return found
