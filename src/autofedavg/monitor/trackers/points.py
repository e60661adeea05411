"""What a run measures, as named numbers a tracker can plot; the names are the same in each."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from autofedavg.core.evaluation import loss_ends, summarise
from autofedavg.core.scores import Scores

COLUMNS = ("global_test_avg", "local_avg", "local_gen")  # of the paper's tables
PERSONAL = ("worst_site", "personal_avg", "personal_worst")  # where there are personal models
# Names of our own that a site's name must not take, in any group.
RESERVED = ("mean", "all", "down", "up", *COLUMNS, *PERSONAL)
LONGEST = 200  # letters of a site's name
_ODD = re.compile(r"[^\w.\- ]")
LAST = "seconds/all"  # written after all other numbers of a round: where it is, they are


def site_names(sites: Iterable[str]) -> dict[str, str]:
    """Each site's name as trackers take it: no slashes, no odd characters, no two alike.

    Example:
        >>> site_names(["St. Ann/2", "St. Ann_2", "mean"])
        {'St. Ann/2': 'St. Ann_2', 'St. Ann_2': 'St. Ann_2-2', 'mean': 'mean-2'}
    """
    taken, found = set(RESERVED), {}
    for site in sites:
        plain = _ODD.sub("_", site)[:LONGEST].strip()
        plain = plain if plain.strip(".") else "_" * max(1, len(plain))  # "..": no file's name
        name, number = plain, 1
        while name in taken:
            number += 1
            name = f"{plain}-{number}"
        taken.add(name)
        found[site] = name
    return found


def round_points(line: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, float]:
    """The numbers of one line of rounds.jsonl; `LAST` is the last."""
    validation, test = line["validation"] or {}, line.get("test") or {}
    found = {"validation/mean": validation.get("mean"), "test_every/mean": test.get("mean")}
    for group, values in (
        ("validation", validation.get("sites")),
        ("test_every", test.get("sites")),  # `test` is for the end, and may have this t
        ("validation_local", line["validation_local"]),
        ("validation_personal", line.get("validation_personal")),
        ("loss", line["loss"]),
    ):
        found |= {f"{group}/{names[site]}": value for site, value in (values or {}).items()}
    for letter in ("alpha", "beta"):
        found |= _weights(letter, line[letter] or (), names)
    if ends := loss_ends(line.get("learning_loss", {})):
        _, found["learning_loss/first"], found["learning_loss/last"] = ends
    if verdict := line.get("verdict"):
        found |= {"verdict/gain": verdict["gain"], "verdict/paid": float(verdict["paid"])}
    seconds = {call: float(cost["seconds"]) for call, cost in line["calls"].items()}
    found |= {
        "learned": float(line["learned"]),
        "answered": float(len(line["answered"])),
        "traffic/down": float(line["bytes_down"]),
        "traffic/up": float(line["bytes_up"]),
        **{f"seconds/{call}": value for call, value in seconds.items()},
    }
    known = {name: value for name, value in found.items() if value is not None}
    return {**known, LAST: sum(seconds.values())}


def score_points(scores: Scores, metric: str, names: Mapping[str, str]) -> dict[str, float]:
    """The test scores at the end: the columns of the paper's tables, as shares of one.

    With personal models: theirs by site, and the columns of the table `personal`.
    """
    summary = summarise(scores, metric)
    columns = (*COLUMNS, *PERSONAL) if summary.personal else COLUMNS
    found: dict[str, float | None] = {names[site]: v for site, v in summary.by_site.items()}
    found |= {column: getattr(summary, column) for column in columns}
    known = {f"test/{name}": value for name, value in found.items() if value is not None}
    return known | {f"test_personal/{names[site]}": v for site, v in summary.personal.items()}


def flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """(dotted path, text) of nested values."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", str(value)


def _weights(letter: str, weights: Iterable[Any], names: Mapping[str, str]) -> dict[str, float]:
    """One number a site; layer-wise, its mean, lowest and highest over layers."""
    found: dict[str, float] = {}
    for name, weight in zip(names.values(), weights, strict=False):
        layers = weight if isinstance(weight, list) else [weight]
        found[f"{letter}/{name}"] = statistics.fmean(layers)
        if isinstance(weight, list):
            found[f"{letter}_low/{name}"], found[f"{letter}_high/{name}"] = min(weight), max(weight)
    return found
