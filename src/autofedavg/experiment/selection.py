"""What a run works with, what it keeps in mind between rounds, and what watchers are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from autofedavg.algorithm import Round
from autofedavg.core.bank import Layout, Model
from autofedavg.core.errors import AutoFedAvgError
from autofedavg.core.site import Site
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.federation.port import Federation

Select = Literal["best", "last"]
KINDS = {"best": "best", "last": "final"}  # how the checkpoints of the tested models are called
TestLocal = Literal["auto", "full", "own", "none"]
MOST_FULL = 32  # sites up to which "auto" fills the K x K matrix


@dataclass(frozen=True)
class Seen:
    """What a progress display is told after each round."""

    t: int
    T: int
    validation: float | None
    alpha: list[Any] | None
    sites: tuple[str, ...]
    tested: tuple[int, int] | None = None  # models tested so far, and in all: after the last round


Watcher = Callable[[Seen], None]


class Paused(AutoFedAvgError):
    """The run stops here on purpose, after a checkpoint, to be gone on with."""


@dataclass
class Best:
    """The best models so far: their scores and rounds; the models themselves are on disk.

    Attributes:
        score: of the best global model.
        t: its round.
        sites: how many sites' scores are in it.
        seen: every site's latest validation score, which stands in where it does not answer.
        local: score and round of each site's best own model.
        tested: every site's latest test score of the global model, likewise.
        models: the models to be tested, and the names of their files.
    """

    score: float | None = None
    t: int = 0
    local: dict[str, tuple[float, int]] = field(default_factory=dict)
    sites: int = 0
    seen: dict[str, float] = field(default_factory=dict)
    tested: dict[str, float] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)

    def beaten_by(self, mean: float, sites: int) -> bool:
        """Whether a mean over so many sites is better; one over more sites always is."""
        if self.score is None or sites > self.sites:
            return True
        return sites == self.sites and mean > self.score


@dataclass(frozen=True)
class Selection:
    """What a run works with in every round."""

    T: int
    federation: Federation
    layout: Layout
    metric: str
    folder: RunFolder
    select: Select
    test_every: int
    test_local: TestLocal

    @property
    def validates(self) -> bool:
        return have_validation(self.federation.sites)


def where_tested(asked: TestLocal, K: int) -> Literal["full", "own", "none"]:
    """At which sites each site's own model is tested: at all of them, at its own, at none."""
    if asked != "auto":
        return asked
    return "full" if K <= MOST_FULL else "own"


def local_tests(asked: TestLocal, K: int) -> int:
    """How many times a site's own model is scored on a site's test cases, after training."""
    return {"full": K * K, "own": K, "none": 0}[where_tested(asked, K)]


def have_validation(sites: Sequence[Site]) -> bool:
    """Whether every site has validation cases."""
    return all(site.cases.get("validation") for site in sites)


def predicts(state: Round) -> bool:
    """Whether there is one predictor for all sites after this round."""
    return state.together or isinstance(state.w, Model)
