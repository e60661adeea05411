"""What a report is made from: rows with repeats, in the study's order."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from autofedavg.core.errors import RunError
from autofedavg.core.evaluation import Paired, Summary, case_means, compare, summarise
from autofedavg.core.scores import Scores
from autofedavg.experiment.machine_paths import PATHS

MANY = 8  # sites: more do not fit side by side
LOCAL = ("fold", "hold", *PATHS)  # of the task: may differ between repeats of a row
BESIDES = ("keep_models", "ceiling")  # likewise: they change no score
CaseScores = Mapping[tuple[str, str], float]  # by site and case


class Missing(NamedTuple):
    """A run that a study asks for and that has no folder."""

    label: str
    seed: int
    fold: int | None


@dataclass(frozen=True)
class Repeat:
    """One run folder.

    Attributes:
        origins: where each value of the configuration comes from, by dotted path.
        ceiling: what other weights could have gained, where it was measured.
    """

    folder: Path
    seed: int
    fold: int | None
    state: str
    config: dict[str, Any]
    environment: dict[str, Any]
    rounds: list[dict[str, Any]]
    scores: Scores
    origins: Mapping[str, str] = field(default_factory=dict)
    ceiling: Mapping[str, Any] | None = None

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    @property
    def tested(self) -> bool:
        """Whether its settings ask for test scores; trials of `autofedavg tune` have none."""
        return bool(self.config.get("test", True))

    @property
    def method(self) -> dict[str, Any]:
        """The method's settings."""
        settings: dict[str, Any] = self.config["method"]
        return settings

    def origin(self, path: str) -> str:
        """Where a value comes from; one in a table of its own comes from where the table does."""
        return self.origins.get(path) or self.origins.get(path.rpartition(".")[0], "")


@dataclass(frozen=True)
class Row:
    """One row of a study: a configuration with its repeats.

    Attributes:
        family: of its method, where rows are grouped by it.
    """

    name: str
    label: str
    repeats: tuple[Repeat, ...]
    metric: str
    folds: tuple[int | None, ...] = (None,)
    family: str = ""

    @property
    def method(self) -> dict[str, Any]:
        """The method's settings, which all repeats share."""
        return self.repeats[0].method

    @property
    def learns(self) -> bool:
        """Whether the row learns its aggregation weights."""
        return bool(self.method["name"] == "auto-fedavg")

    @property
    def finished(self) -> tuple[Repeat, ...]:
        """The repeats that count: finished, with test scores."""
        return tuple(repeat for repeat in self.repeats if repeat.finished and repeat.scores)

    @property
    def counted(self) -> list[Repeat]:
        """Those of the seeds that have all folds."""
        return [repeat for repeat in self.finished if repeat.seed in self.whole]

    @cached_property  # a study on CIFAR-10 has millions of scores, and every table asks for them
    def whole(self) -> dict[int, Scores]:
        """Seed -> scores, the folds of a cross-validation together; only seeds that have all."""
        found: dict[int, Scores] = {}
        for seed in sorted({repeat.seed for repeat in self.finished}):
            mine = [repeat for repeat in self.finished if repeat.seed == seed]
            if {repeat.fold for repeat in mine} == set(self.folds):
                scores = [repeat.scores for repeat in mine]
                found[seed] = scores[0] if len(scores) == 1 else Scores.joined(scores)
                _refuse_doubles(mine, found[seed])
        return found

    @cached_property
    def by_means(self) -> bool:
        """Whether sites disclosed means alone, so that there are no scores of cases."""
        return any(True for repeat in self.finished for _ in repeat.scores.means())

    @cached_property
    def summaries(self) -> list[Summary]:
        return [summarise(scores, self.metric) for scores in self.whole.values()]


@dataclass(frozen=True)
class Pairing:
    """The global models' test scores of a row and of the baseline, case by case.

    Scores are means over the seeds that both have; where they share none, over all of each.
    """

    row: Row
    own: CaseScores
    baseline: CaseScores

    @cached_property
    def gaps(self) -> CaseScores:
        """The row's score minus the baseline's, of every case that both tested."""
        shared = sorted(self.own.keys() & self.baseline.keys())
        return {key: self.own[key] - self.baseline[key] for key in shared}

    def test(self, site: str | None = None) -> Paired | None:
        """The Wilcoxon signed-rank test over a site's cases, or over all."""
        return compare(self.own, self.baseline, site)


@dataclass(frozen=True)
class Results:
    """All rows of a report, and the name of the row that the others are tested against.

    Attributes:
        missing: the runs that the studies' own folders lack; empty where single runs are named.
        damaged: what was left out, and why; empty where nothing may be.
        targets: scores in percent that a reader asks for; empty for those by rule.
    """

    title: str
    rows: tuple[Row, ...]
    baseline: str
    sites: dict[str, int]
    data: str = ""
    missing: tuple[Missing, ...] = ()
    damaged: tuple[str, ...] = ()
    targets: tuple[float, ...] = ()

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)

    @property
    def baseline_row(self) -> Row | None:
        return self.row(self.baseline)

    @property
    def many_sites(self) -> bool:
        """Whether there are more sites than fit side by side."""
        return len(self.sites) > MANY

    @cached_property
    def pairings(self) -> dict[str, Pairing]:
        """By name, every row but the baseline that has tested cases of the baseline's."""
        baseline = self.baseline_row
        if baseline is None:
            return {}
        found = {row.name: _paired(row, baseline) for row in self.rows if row is not baseline}
        return {name: pairing for name, pairing in found.items() if pairing.gaps}

    @property
    def without_test(self) -> list[Row]:
        """Rows that no test over cases compares with the baseline: sites disclosed means alone."""
        baseline = self.baseline_row
        if baseline is None:
            return []
        rest = [row for row in self.rows if any(summary.by_site for summary in row.summaries)]
        return [row for row in rest if row is not baseline and (row.by_means or baseline.by_means)]

    @property
    def labels(self) -> list[str]:
        return [row.label for row in self.rows]

    @property
    def runs(self) -> Iterator[tuple[Row, Repeat]]:
        """Every run, with its row."""
        return ((row, repeat) for row in self.rows for repeat in row.repeats)


def _paired(row: Row, baseline: Row) -> Pairing:
    shared = row.whole.keys() & baseline.whole.keys()
    own, others = (
        case_means([each.whole[s] for s in each.whole if s in shared or not shared], each.metric)
        for each in (row, baseline)
    )
    return Pairing(row, own, others)


def seed_and_fold(run: Repeat | Missing) -> str:
    """A run's seed, and its fold in a cross-validation, as tables and captions name them."""
    return f"seed {run.seed}" + ("" if run.fold is None else f", fold {run.fold}")


def flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of nested values."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def shared_settings(configs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The settings of runs that can be compared; older runs get what they lack at its default.

    Where files lie on a machine is none of them: the environment holds what is in them. Nor is what
    a run keeps besides its scores.
    """
    shared = [_comparable(config) for config in configs]
    known: dict[tuple[Any, Any], set[frozenset[str]]] = {}
    for config in shared:
        kind = (config["task"].get("name"), config["method"]["name"])
        known.setdefault(kind, set()).add(frozenset(path for path, _ in flat(config)))
    if all(len(paths) == 1 for paths in known.values()):
        return shared
    from autofedavg.experiment.config import completed  # brings PyTorch

    return [_comparable(completed(config)) for config in shared]


def _comparable(config: Mapping[str, Any]) -> dict[str, Any]:
    task = {key: value for key, value in config["task"].items() if key not in LOCAL}
    return {**{key: config[key] for key in config if key not in BESIDES}, "task": task}


def stem(name: str) -> str:
    """A row's name as part of a file's name; other names give other files.

    Example:
        >>> stem("fedavg"), stem("a b")
        ('fedavg', 'a-b-c8687a')
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def _refuse_doubles(repeats: Sequence[Repeat], scores: Scores) -> None:
    """Every case is tested once by every model of a seed, over all folds."""
    for tested, column in scores.columns():
        if len(set(column.cases)) < len(column.cases):
            (case, _), *_ = Counter(column.cases).most_common(1)
            raise RunError(
                f"case {case} of {tested.site} is tested twice by {tested.model}",
                where=", ".join(str(repeat.folder) for repeat in repeats),
                remedy="run the folds anew with one and the same data list",
            )
