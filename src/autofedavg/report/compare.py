"""Two runs, or two rows, side by side: what was set otherwise, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from autofedavg.core.errors import RunError
from autofedavg.core.evaluation import Paired, Summary, case_means, compare, summarise
from autofedavg.core.scores import Scores
from autofedavg.report.read import apart, read_results
from autofedavg.report.repeats import CaseScores, Repeat, Row, flat
from autofedavg.report.tables import mean_known, mean_over_layers


@dataclass(frozen=True)
class Side:
    """A row with its repeats, or one run of it."""

    folder: Path
    row: Row

    @property
    def name(self) -> str:
        repeats = self.row.repeats
        folds = sorted({repeat.fold for repeat in repeats if repeat.fold is not None})
        seeds = sorted({repeat.seed for repeat in repeats})
        told = [self.row.label, f"seed {', '.join(map(str, seeds))}"]
        told += [f"fold {', '.join(map(str, folds))}"] if folds else []
        return ", ".join([*told, " or ".join(sorted({repeat.state for repeat in repeats}))])

    @property
    def seeds(self) -> set[int]:
        """Those of runs that are finished."""
        return {repeat.seed for repeat in self.row.finished}

    def of(self, seeds: Sequence[int]) -> Side:
        """The side with the runs of these seeds alone; with all, where none is named."""
        kept = tuple(repeat for repeat in self.row.repeats if repeat.seed in seeds)
        return Side(self.folder, replace(self.row, repeats=kept)) if seeds else self

    @cached_property
    def scores(self) -> list[Scores]:
        """Test scores of every seed, of those runs that are finished."""
        found: dict[int, list[Scores]] = {}
        for repeat in self.row.finished:
            found.setdefault(repeat.seed, []).append(repeat.scores)
        return [Scores.joined(folds) for folds in found.values()]

    @cached_property
    def cases(self) -> CaseScores:
        """The global model's test scores, means over seeds."""
        return case_means(self.scores, self.row.metric)

    @property
    def summaries(self) -> list[Summary]:
        return [summarise(scores, self.row.metric) for scores in self.scores]

    def best(self) -> list[dict[str, Any]]:
        """Where every run stands, and the round of its highest validation mean."""
        found = []
        for repeat in self.row.repeats:
            means = [(line["t"], (line["validation"] or {}).get("mean")) for line in repeat.rounds]
            scored = [(t, mean) for t, mean in means if mean is not None]
            best = max(scored, key=lambda each: each[1], default=(None, None))  # first of equals
            far = {
                "t": repeat.rounds[-1]["t"] if repeat.rounds else 0,
                "T": repeat.config["rounds"],
            }
            run = {"seed": repeat.seed, "fold": repeat.fold, **far}
            found.append({**run, "best": best[0], "validation": best[1]})
        return found


class Difference(NamedTuple):
    """A value that the sides do not share; None on a side that has no such value."""

    path: str
    left: Any
    right: Any
    origin: str


class Pair(NamedTuple):
    """A number of both sides, and the test where both tested the same cases."""

    name: str
    left: float | None
    right: float | None
    test: Paired | None = None
    comparable: bool = True

    @property
    def difference(self) -> float | None:
        known = self.left is not None and self.right is not None and self.comparable
        return (self.right or 0.0) - (self.left or 0.0) if known else None

    def plain(self) -> dict[str, Any]:
        test = self.test._asdict() if self.test else None
        values = {"left": self.left, "right": self.right, "difference": self.difference}
        return {"name": self.name, **values, "test": test}


@dataclass(frozen=True)
class Comparison:
    """All that is told of two sides.

    Attributes:
        apart: what keeps their scores from being compared; empty where nothing does.
        seeds: those that both have: scores and weights are of them alone, or of all where none is.
        scores: on test cases, as shares of one; means over seeds.
        alpha: weights of the last round, layer-wise ones as their mean.
    """

    left: Side
    right: Side
    apart: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: tuple[Difference, ...]
    environment: tuple[Difference, ...]
    scores: tuple[Pair, ...]
    alpha: tuple[Pair, ...]

    @property
    def sides(self) -> dict[str, Side]:
        return {"left": self.left, "right": self.right}

    def plain(self) -> dict[str, Any]:
        """For programs."""
        return {
            **{
                key: {"folder": str(side.folder), "name": side.name, "metric": side.row.metric}
                for key, side in self.sides.items()
            },
            "comparable": not self.apart,
            "apart": list(self.apart),
            "seeds": list(self.seeds),
            "settings": [each._asdict() for each in self.settings],
            "environment": [each._asdict() for each in self.environment],
            "scores": [pair.plain() for pair in self.scores],
            "alpha": [pair.plain() for pair in self.alpha],
            "best": {key: side.best() for key, side in self.sides.items()},
        }


def compare_runs(left: Path, right: Path) -> Comparison:
    """Reads two run folders, or two rows' folders, and lays them side by side.

    Raises:
        RunError: a folder is damaged or holds several rows.
    """
    sides = one, other = (_side(left), _side(right))
    seeds = tuple(sorted(one.seeds & other.seeds))
    paired = one.of(seeds), other.of(seeds)
    return Comparison(
        *sides,
        reasons := tuple(_apart(*paired)),
        seeds,
        tuple(_differing(_settings, *sides)),
        tuple(_differing(_environment, *sides)),
        tuple(_scores(*paired, comparable=not reasons)),
        tuple(_alpha(*paired)),
    )


def _side(path: Path) -> Side:
    rows = read_results([path]).rows
    if len(rows) > 1:
        raise RunError(
            f"there are {len(rows)} rows in this folder",
            where=str(path),
            remedy=f"name one of them: {', '.join(row.name for row in rows)}",
        )
    return Side(path, rows[0])


def _apart(left: Side, right: Side) -> Iterator[str]:
    """What keeps the scores apart, each once."""
    told = dict.fromkeys(what for what, _, _ in apart([*left.row.repeats, *right.row.repeats]))
    yield from told
    if not told and left.cases and right.cases and left.cases.keys() != right.cases.keys():
        yield "the cases that were tested"


def _differing(
    values: Callable[[Repeat], Mapping[str, tuple[Any, str]]], left: Side, right: Side
) -> Iterator[Difference]:
    found = [_joined(map(values, side.row.repeats)) for side in (left, right)]
    for path in dict.fromkeys([*found[0], *found[1]]):
        (mine, origin), (other, its_origin) = (side.get(path, (None, "")) for side in found)
        if mine != other:
            said = dict.fromkeys(text for text in (origin, its_origin) if text)
            yield Difference(path, mine, other, " / ".join(said))


def _joined(repeats: Iterable[Mapping[str, tuple[Any, str]]]) -> dict[str, tuple[Any, str]]:
    """One value for all repeats, or the list of those they have."""
    found: dict[str, list[Any]] = {}
    origins: dict[str, str] = {}
    for repeat in repeats:
        for path, (value, origins[path]) in repeat.items():
            known = found.setdefault(path, [])
            if value not in known:
                known.append(value)
    return {p: (v[0] if len(v) == 1 else v, origins[p]) for p, v in found.items()}


def _settings(repeat: Repeat) -> dict[str, tuple[Any, str]]:
    values = flat({k: v for k, v in repeat.config.items() if k not in ("name", "label")})
    return {path: (value, repeat.origin(path)) for path, value in values}


def _environment(repeat: Repeat) -> dict[str, tuple[Any, str]]:
    about = {**repeat.environment, "resumed": len(repeat.environment.get("resumed", []))}
    return {path: (value, "") for path, value in flat(about)}


def _scores(left: Side, right: Side, *, comparable: bool) -> Iterator[Pair]:
    mine, others = left.summaries, right.summaries
    tested = comparable and left.cases.keys() == right.cases.keys()
    for site in sorted({site for summary in (*mine, *others) for site in summary.by_site}):
        one, other = (mean_known(s.by_site.get(site) for s in side) for side in (mine, others))
        test = compare(right.cases, left.cases, site) if tested else None
        yield Pair(site, one, other, test, comparable)
    own = any(summary.personal for summary in (*mine, *others))
    more = ("worst_site", "personal_avg", "personal_worst") if own else ()
    for column in ("global_test_avg", "local_avg", "local_gen", *more):
        one, other = (mean_known(getattr(s, column) for s in side) for side in (mine, others))
        paired = tested and column == "global_test_avg"
        test = compare(right.cases, left.cases) if paired else None
        yield Pair(column.replace("_", " "), one, other, test, comparable)


def _alpha(left: Side, right: Side) -> Iterator[Pair]:
    found = [_weights(side.row.repeats) for side in (left, right)]
    for site in sorted({*found[0], *found[1]}):
        mine, other = (mean_known(weights.get(site, ())) for weights in found)
        yield Pair(site, mine, other)


def _weights(repeats: Sequence[Repeat]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for repeat in repeats:
        alpha = (repeat.rounds[-1]["alpha"] if repeat.rounds else None) or ()
        for site, weight in zip(sorted(repeat.environment["data"]["cases"]), alpha, strict=False):
            found.setdefault(site, []).append(mean_over_layers(weight))
    return found
