"""The models that a run has selected so far, and where it resumes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import TypeAdapter

from autofedavg.algorithm import Round
from autofedavg.core.bank import Layout, Model
from autofedavg.core.errors import AutoFedAvgError, RunError
from autofedavg.core.site import Site
from autofedavg.experiment.files import naming
from autofedavg.experiment.folder_writer import ALL_ROUNDS, RunFolder
from autofedavg.experiment.models import copies_in, load_state
from autofedavg.federation.personal import PersonalModels
from autofedavg.federation.port import Federation

Select = Literal["best", "last"]
KINDS = {"best": "best", "last": "final"}  # how the checkpoints of the tested models are called
TestLocal = Literal["auto", "full", "own", "none"]
MOST_FULL = 32  # sites up to which "auto" fills the K x K matrix
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Seen:
    """What a progress display shows after each round."""

    t: int
    T: int
    validation: float | None
    alpha: list[Any] | None
    sites: tuple[str, ...]
    tested: tuple[int, int] | None = None  # models tested so far, and in all: after the last round


Watcher = Callable[[Seen], None]


class Paused(AutoFedAvgError):
    """The run stops on purpose after a checkpoint, and can be resumed."""


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
        personal: score and round of each site's best personal model.
        models: the models to be tested, and the names of their files.
    """

    score: float | None = None
    t: int = 0
    local: dict[str, tuple[float, int]] = field(default_factory=dict)
    sites: int = 0
    seen: dict[str, float] = field(default_factory=dict)
    tested: dict[str, float] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    personal: dict[str, tuple[float, int]] = field(default_factory=dict)

    def beaten_by(self, mean: float, sites: int) -> bool:
        """Whether a mean over so many sites is better; one over more sites always is."""
        if self.score is None or sites > self.sites:
            return True
        return sites == self.sites and mean > self.score


def restore(
    folder: RunFolder, layout: Layout, federation: Federation, w0: Model
) -> tuple[Round, Best]:
    """Where to start: round 0 with w0, or the newest whole checkpoint.

    Raises:
        RunError: the checkpoint is damaged, or holds another network.
    """
    saved = folder.load_round()
    if saved is None:
        folder.keep_rounds(0)
        return Round(0, w0), Best()
    at = folder.path / "checkpoints" / f"{saved.name}.json"
    with naming(at, "this checkpoint cannot be resumed from", ALL_ROUNDS):
        if saved.facts["network"] != layout.describe():
            raise RunError(
                "its checkpoint holds another network than the one to be trained",
                where=str(folder.path),
                remedy="resume with the version that began the run, or start again elsewhere",
            )
        state = load_state(saved, federation.names)
        # Earlier versions recorded fewer values: their scores were of all sites.
        known = {"sites": federation.K, **saved.facts["best"]}
        known["models"] = folder.checkpoints.held(state.t) or {}
        best = TypeAdapter(Best).validate_python(known)
        if "personal" in saved.facts:
            found = TypeAdapter(PersonalModels).validate_python(saved.facts["personal"])
            federation.resume_personal(found, copies_in(saved))
        folder.tidy()  # a model of a round that is run again may be of another history
        folder.keep_rounds(state.t)
        log.info("resuming after round %d", state.t)
        return state, best


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
