"""What could any aggregation weights gain? An oracle fits them to half of the held-out cases.

w_1 .. w_K of a round are given. Weights that minimise the task's loss on one half of every site's
cases are scored on the other half, and the other way round; so every case is scored by weights that
have not seen it. Sites answer with gradients and scores: no case leaves a site (decision 66).

| row         | the model                                                        |
| ----------- | ---------------------------------------------------------------- |
| fedavg      | sum_k n_k/n w_k                                                  |
| even        | sum_k w_k / K                                                    |
| run         | the global model that the run itself made in this round          |
| network     | the best weights, one for each site                              |
| layer       | the best weights, one for each site and layer                    |
| scaled      | e^g sum_k alpha_k w_k: the best weights and the best g (FedLAW)  |
| ensemble    | the mean of the K softmax outputs                                |
| local-SITE  | a site's own w_k, tested at all sites                            |
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Generator, Tensor

from autofedavg.algorithm import among
from autofedavg.core.bank import Bank, Layers, Layout, Model
from autofedavg.core.beta_optimiser import BetaOptimiser
from autofedavg.core.constraints import Constraint, Shrinking, Softmax
from autofedavg.core.errors import ConfigError, DataError, FederationError
from autofedavg.core.evaluation import loss_ends
from autofedavg.core.halves import HALVES
from autofedavg.core.mixture import Mixture
from autofedavg.core.settings import Settings, setting
from autofedavg.core.site import Facts
from autofedavg.experiment.case_gains import CaseScores, compared, mean_over_sites, of_half
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.experiment.kept_models import kept_models
from autofedavg.federation.messages import Score
from autofedavg.federation.port import Federation
from autofedavg.methods.base import even_weights, size_weights

Split = Literal["test", "validation"]
log = logging.getLogger(__name__)
TINY = 1e-12  # instead of no weight at all: a softmax cannot move away from it
BETAS = (0.9, 0.99)  # Adam's


class Fit(Settings):
    """How the oracle fits weights."""

    steps: int = setting(100, origin="ours: decision 66", help="steps of Adam on theta", ge=1)
    rate: float = setting(
        0.1,
        origin="ours: decision 66",
        help="Adam's first step size; it falls to 0 as a cosine",
        gt=0,
        allow_inf_nan=False,
    )

    def asks(self) -> dict[str, list[Facts]]:
        """What a row with a ceiling asks of a client after its final test: by call, the values."""
        how: Facts = {"data": "test", "mode": "eval"}
        steps = range(1, self.steps + 1)
        return {
            "differentiate": [{"s": s, **how, "half": half} for half in HALVES for s in steps],
            "evaluate": [{"split": "test", "half": half} for half in HALVES],
        }


FAMILIES = 3  # of weights that are fitted


def times_asked(call: str, rounds: int, K: int) -> int:
    """How often a ceiling of so many rounds makes one of these requests, at most."""
    # FedAvg's weights, even ones, the run's model, the ensemble, K own models; a fit on each half.
    return rounds * (FAMILIES if call == "differentiate" else K + 4 + 2 * FAMILIES)


@dataclass(frozen=True)
class Weights:
    """A family of weights, and where its fit starts: at FedAvg's."""

    gamma: Constraint
    layers: Layers | None
    start: Tensor

    def mixture(self, w_k: Bank, theta: Tensor) -> Mixture:
        # Neither a softmax nor the shrinking draws anything.
        return Mixture(w_k, theta, self.gamma, self.layers, Generator())


def families(layout: Layout, p: Tensor) -> dict[str, Weights]:
    """Network-wise, layer-wise and scaled weights, given FedAvg's (K,)."""
    start, layers = p.clamp(min=TINY).log(), layout.layers("module")
    nothing = torch.zeros(1, dtype=torch.float64)
    return {
        "network": Weights(Softmax(), None, start),
        "layer": Weights(Softmax(), layers, start[:, None].repeat(1, layers.P)),
        "scaled": Weights(Shrinking(), layout.layers("trained"), torch.cat([start, nothing])),
    }


class Known(NamedTuple):
    """Weights (K,) that need no fit, and every case's score under them."""

    alpha: Tensor
    scores: CaseScores


@dataclass
class Oracle:
    """Fits and scores over a federation whose training is over.

    Attributes:
        T: the run's last round: requests belong to it.
        local: whether each site's own model and the ensemble are scored, at all sites.
        tick: called after every step and every score.
    """

    federation: Federation
    layout: Layout
    T: int
    split: Split
    metric: str
    fit: Fit = field(default_factory=Fit)
    local: bool = True
    tick: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        if self.federation.K < 2:
            raise ConfigError(
                "there is one site, so there are no weights to choose",
                where="ceiling",
                remedy="use a run of two or more sites",
            )
        few = {s.name: s.cases.get(self.split, 0) for s in self.federation.sites}
        few = {name: n for name, n in few.items() if n < len(HALVES)}
        if few:
            said = ", ".join(f"{name} {n}" for name, n in few.items())
            raise DataError(
                f"sites have fewer than two {self.split} cases, which is no two halves: {said}",
                where="ceiling",
                remedy="use another split, or give these sites more cases",
            )

    @property
    def ticks(self) -> int:
        """How often a round calls `tick`."""
        whole = 3 + (1 + self.federation.K if self.local else 0)
        return len(HALVES) * (whole + FAMILIES * (self.fit.steps + 2))  # at most

    def round(self, w_k: Bank, ran: Model | None) -> dict[str, Any]:
        """Scores and gains over FedAvg of every row, and the fitted weights, in plain values."""
        federation = self.federation
        p = among(size_weights(federation), federation, w_k)
        known = {
            "fedavg": self._known(p, w_k),
            "even": self._known(among(even_weights(federation), federation, w_k), w_k),
        }
        if self.local:
            alone = zip(w_k.sites, torch.eye(len(w_k.sites), dtype=torch.float64), strict=True)
            known |= {f"local-{site}": self._known(one, w_k) for site, one in alone}
        scored = {} if ran is None else {"run": self._whole(ran)}
        fits: dict[str, list[dict[str, Any]]] = {}
        for name, family in families(self.layout, p).items():
            found = [self._fitted(family, w_k, half, known) for half in HALVES]
            fits[name] = [facts for _, facts in found]
            scored[name] = {case: value for mine, _ in found for case, value in mine.items()}
        if self.local:
            scored["ensemble"] = self._whole(w_k)
        scored |= {name: mine.scores for name, mine in known.items()}
        baseline = known["fedavg"].scores
        return {
            "rows": {name: compared(mine, baseline) for name, mine in scored.items()},
            "fits": fits,
        }

    def _known(self, alpha: Tensor, w_k: Bank) -> Known:
        return Known(alpha, self._whole(w_k.combine(alpha)))

    def _fitted(
        self, family: Weights, w_k: Bank, half: int, known: Mapping[str, Known]
    ) -> tuple[CaseScores, dict[str, Any]]:
        """The other half's scores under the best weights for a half, and what was found.

        The best ones are the fitted ones, unless weights of the same family that are known anyway
        score higher on the half that was fitted to.
        """
        theta = self._theta(family, w_k, half)
        ends = loss_ends(self.federation.take_learning_losses())
        w = family.mixture(w_k, theta).w
        own = {name: mean_over_sites(of_half(mine.scores, half)) for name, mine in known.items()}
        own["fit"] = mean_over_sites(self._scores(w, half))
        best = max(own, key=lambda name: own[name])  # in a tie, weights that are not fitted
        alpha, other = family.gamma.alpha(theta), 1 - half
        shrink = float(theta[-1].exp()) if isinstance(family.gamma, Shrinking) else None
        if best == "fit":
            scores = self._scores(w, other)
        else:
            alpha, scores = known[best].alpha, of_half(known[best].scores, other)
            alpha = alpha if family.start.dim() == 1 else alpha[:, None].expand_as(family.start)
            shrink = shrink and 1.0
        return scores, {
            "alpha": alpha.tolist(),
            **({} if shrink is None else {"shrink": shrink}),
            "best": best,
            "own_half": {name: own[name] for name in ("fedavg", "fit", best)},
            "loss": None if ends is None else {"first": ends[1], "last": ends[2]},
        }

    def _theta(self, family: Weights, w_k: Bank, half: int) -> Tensor:
        """Adam's steps on theta against the mean over sites of the loss, shorter like a cosine."""
        theta, rate = family.start.clone(), self.fit.rate
        moments: dict[str, Tensor] = {}
        falling = [1 + math.cos(math.pi * s / self.fit.steps) for s in range(self.fit.steps + 1)]
        for s in range(1, self.fit.steps + 1):
            mixture = family.mixture(w_k, theta)
            gradients = self.federation.differentiate(
                self.T, s, mixture.w, self.federation.names, self.layout.trainable,
                data=self.split, mode="eval", half=half,
            )  # fmt: skip
            # The way from gradient to theta is linear: the mean goes it once.
            total = sum(gradients.values(), torch.zeros(()))
            slope = theta - mixture.step(total / len(gradients), 1.0, 0.0)
            theta, moments = BetaOptimiser("adam", rate, BETAS).step_from(theta, slope, moments)
            rate *= falling[s] / falling[s - 1]
            self.tick()
        return theta

    def _whole(self, w: Model | Bank) -> CaseScores:
        """A model's score of every case."""
        return self._scores(w, 0) | self._scores(w, 1)

    def _scores(self, w: Model | Bank, half: int) -> CaseScores:
        found = self.federation.evaluate(w, self.split, self.metric, t=self.T, half=half)
        self.tick()
        if missing := sorted(set(self.federation.names) - {row.site for row in found.rows}):
            what, remedy = "the ceiling needs the scores of all sites", "try again with all sites"
            where = ", ".join(missing)
            raise FederationError(what, client=where, call="evaluate", round=self.T, remedy=remedy)
        rows = [row for row in found.rows if isinstance(row, Score)]
        if len(rows) < len(found.rows):
            raise ConfigError(
                "the sites disclose means alone, and halves are compared case by case",
                where="exchange.disclose",
                remedy="measure the ceiling of a run with exchange.disclose = 'all'",
            )
        return {(half, row.site, row.case): row.value for row in rows if row.metric == self.metric}


def ceiling(
    oracle: Oracle,
    folder: RunFolder,
    rounds: Sequence[int],
    device: str,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """The content of ceiling.json, without its schema.

    Args:
        oracle: fits and scores.
        folder: of the run, which kept its models of these rounds.
        rounds: whose models.
        device: where the sites' networks are: mixing K models is memory's work.
        progress: told of every step.
    """
    done, total = 0, len(rounds) * oracle.ticks

    def tick() -> None:
        nonlocal done
        done += 1
        if progress:
            progress("ceiling: fitting weights", done, total)

    oracle.tick = tick
    oracle.federation.take_account()
    oracle.federation.take_learning_losses()
    found = {}
    for t in rounds:
        w_k, ran = kept_models(folder, t, oracle.layout)
        found[t] = oracle.round(
            Bank(w_k.sites, w_k.values.to(device), w_k.counters.to(device)), ran
        )
        log.info("ceiling of round %d: done", t)
    account = oracle.federation.take_account().values()
    return {
        "split": oracle.split,
        "metric": oracle.metric,
        "fit": oracle.fit.model_dump(),
        "sites": list(oracle.federation.names),
        "layers": list(oracle.layout.layers("module").names),
        "bytes": sum(cost.down + cost.up for cost in account),
        "rounds": [{"t": t, **mine} for t, mine in found.items()],
    }
