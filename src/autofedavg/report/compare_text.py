"""A comparison for a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autofedavg.core.errors import printable
from autofedavg.report.compare import Comparison, Pair
from autofedavg.report.formats import aligned

HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?(-dirty)?")
LETTERS = 12  # of a hash that is printed
NUMBERS = ("", "left", "right", "difference", "p")


def comparison_text(made: Comparison) -> str:
    """What differs first, then the scores."""
    parts = [_columns([(key, side.folder, side.name) for key, side in made.sides.items()])]
    if made.apart:
        said = "\n".join(f"  {reason}" for reason in made.apart)
        parts.append(f"The scores are NOT comparable, for these differ:\n{said}")
    for title, found in (("Settings", made.settings), ("Environment", made.environment)):
        head = ("", "left", "right", "origin" if any(each.origin for each in found) else "")
        lines = [(each.path, _shown(each.left), _shown(each.right), each.origin) for each in found]
        listing = f"{title}: what differs\n" + _columns([head, *lines])
        parts.append(listing if found else f"{title}: no difference")
    parts.append(_scores_text(made))
    if made.alpha:
        weights = [_line(pair, 1, 3) for pair in made.alpha]
        shown = _columns([NUMBERS[:4], *weights], numbers=True)
        parts.append(f"Weights of the last round\n{shown}")
    best = [(key, *map(_told, side.best())) for key, side in made.sides.items()]
    parts.append("Highest validation mean\n" + _columns(best))
    return "\n\n".join(parts) + "\n"


def _scores_text(made: Comparison) -> str:
    if all(pair.left is None and pair.right is None for pair in made.scores):
        return "No test scores yet"
    metrics = " and ".join(sorted({side.row.metric for side in made.sides.values()}))
    lines = [_line(pair, 100, 2) for pair in made.scores]
    told = f"{metrics} on test cases, percent\n" + _columns([NUMBERS, *lines], numbers=True)
    if any(pair.test for pair in made.scores):
        told += "\np: Wilcoxon signed-rank over the same test cases, two-sided"
    if any(side.row.by_means for side in made.sides.values()):
        told += "\nno test over cases: sites disclosed means alone (exchange.disclose)"
    if made.seeds and any(side.seeds != set(made.seeds) for side in made.sides.values()):
        said = "seed" if len(made.seeds) == 1 else "seeds"
        listed = ", ".join(map(str, made.seeds))
        told += f"\nScores and weights are those of {said} {listed}, which both have"
    return told


def _told(run: Mapping[str, Any]) -> str:
    place = f"seed {run['seed']}" + ("" if run["fold"] is None else f", fold {run['fold']}")
    best = (
        "none" if run["best"] is None else f"{100 * run['validation']:.2f} in round {run['best']}"
    )
    return f"{place}: {best}, round {run['t']} of {run['T']}"


def _line(pair: Pair, times: int, decimals: int) -> tuple[str, ...]:
    values = [pair.left, pair.right]
    told = ["" if value is None else f"{times * value:.{decimals}f}" for value in values]
    change = "" if pair.difference is None else f"{times * pair.difference:+.{decimals}f}"
    p = f"{pair.test.p:.3g} (n={pair.test.n})" if pair.test else ""
    return (pair.name, *told, change, p)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    found = HASH.fullmatch(text)
    return text[:LETTERS] + (found[2] or "") if found else text


def _columns(lines: Iterable[Sequence[object]], *, numbers: bool = False) -> str:
    cells = [[printable(str(cell)) for cell in line] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in aligned(cells, numbers=numbers))
