"""A comparison for a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from autofedavg.core.errors import printable
from autofedavg.report.compare import Comparison, Difference, Pair

HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?(-dirty)?")
LETTERS = 12  # of a hash that is printed
NUMBERS = ("", "left", "right", "difference", "p")


def comparison_text(made: Comparison) -> str:
    """What differs first, then the scores."""
    sides = {"left": made.left, "right": made.right}
    parts = [_columns([(key, side.folder, side.name) for key, side in sides.items()])]
    if made.apart:
        said = "\n".join(f"  {reason}" for reason in made.apart)
        parts.append(f"The scores are NOT comparable, for these differ:\n{said}")
    parts += [_listing("Settings", made.settings), _listing("Environment", made.environment)]
    parts.append(_scores(made))
    if made.alpha:
        lines = [_line(pair, 1, 3) for pair in made.alpha]
        parts.append("Weights of the last round\n" + _columns([NUMBERS[:4], *lines], right=True))
    best = [(key, *map(_told, side.best())) for key, side in sides.items()]
    parts.append("Highest validation mean\n" + _columns(best))
    return "\n\n".join(parts) + "\n"


def _listing(title: str, found: Sequence[Difference]) -> str:
    if not found:
        return f"{title}: no difference"
    head = ("", "left", "right", "origin" if any(each.origin for each in found) else "")
    lines = [(each.path, _shown(each.left), _shown(each.right), each.origin) for each in found]
    return f"{title}: what differs\n" + _columns([head, *lines])


def _scores(made: Comparison) -> str:
    if all(pair.left is None and pair.right is None for pair in made.scores):
        return "No test scores yet"
    metrics = " and ".join(sorted({made.left.row.metric, made.right.row.metric}))
    lines = [_line(pair, 100, 2) for pair in made.scores]
    told = f"{metrics} on test cases, percent\n" + _columns([NUMBERS, *lines], right=True)
    if any(pair.test for pair in made.scores):
        told += "\np: Wilcoxon signed-rank over the same test cases, two-sided"
    if made.seeds and any(side.seeds != set(made.seeds) for side in (made.left, made.right)):
        said = "seed" if len(made.seeds) == 1 else "seeds"
        listed = ", ".join(map(str, made.seeds))
        told += f"\nScores and weights are those of {said} {listed}, which both have"
    return told


def _told(run: Mapping[str, Any]) -> str:
    place = f"seed {run['seed']}" + ("" if run["fold"] is None else f", fold {run['fold']}")
    far = f"round {run['t']} of {run['T']}"
    if run["best"] is None:
        return f"{place}: none, {far}"
    return f"{place}: {100 * run['validation']:.2f} in round {run['best']}, {far}"


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


def _columns(lines: Sequence[Sequence[object]], *, right: bool = False) -> str:
    """Lines with their columns below each other; numbers to the right."""
    cells = [[printable(str(cell)) for cell in line] for line in lines]
    widths = [
        max(len(line[i]) for line in cells if i < len(line)) for i in range(max(map(len, cells)))
    ]
    pad = str.rjust if right else str.ljust
    return "\n".join(
        "  ".join(
            (pad if number else str.ljust)(cell, width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=False))
        ).rstrip()
        for line in cells
    )
