"""Auto-FedAvg without showing anyone's model: protocol P2 of decision 62.

Every set of models is summed once, under the weights that make the global model. The step on the
weights happens at the sites, one round later, from the sum of their gradients at that model.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from autofedavg.algorithm import Round
from autofedavg.core.bank import Layout, Model
from autofedavg.core.blind import BOUNDS, BlindPlan, Lesson
from autofedavg.core.call_schedule import CallSchedule, EveryT0
from autofedavg.core.errors import ConfigError
from autofedavg.core.site import Facts
from autofedavg.federation.blind_calls import TrainSum
from autofedavg.federation.paying_calls import Gain
from autofedavg.federation.port import Federation
from autofedavg.federation.secure_sum import LEAST_SITES
from autofedavg.federation.settings import Exchange

log = logging.getLogger(__name__)

TOO_SMALL = (
    "round %d: the gradient's cosines with the sites' own steps are %.2g, below the %.2g that "
    "method.sketch = %d resolves; use a larger one"
)
CAUTION = (
    "learning = 'blind' hides models from a server that follows the protocol; it deals out the "
    "sites' keys. Together with c sites it sees the sum of the other {} - c (decision 62)"
)


@dataclass(frozen=True)
class Blind:
    """Blind learning of T rounds.

    Attributes:
        plan: what sites must know.
        t0: rounds between two gradients, or "auto": as long as steps pay (decision 63).
        data: the split of the gradients.
        mode: the network's, while they are taken.
        batches: mini-batches of a gradient.
        by_size: whether sites' gradients count by their training cases.
    """

    plan: BlindPlan
    t0: int | Literal["auto"]
    data: Literal["validation", "train", "holdout"]
    mode: Literal["eval", "train"]
    batches: int
    by_size: bool

    def asks(self, t: int, T: int) -> dict[str, list[Facts]]:
        """What round t asks of a client, besides what FedAvg does."""
        asked: dict[str, list[Facts]] = {
            "local_train": [{"blind": self.plan.note()}],
            "share_keys": [{}],
        }
        may_learn = t < T and (self.t0 == "auto" or t % self.t0 == 0)
        return asked | self.learning() if may_learn else asked

    def learning(self) -> dict[str, list[Facts]]:
        """What a round that learns asks of a client."""
        gradient = {"blind": self.plan.note(), "size": self.by_size, **self._how()}
        return {"masked_gradient": [gradient]}

    def rounds(
        self, federation: Federation, layout: Layout, T: int, start: Round
    ) -> Iterator[Round]:
        """Server executes: T rounds; yields the state after each.

        Gradients at w^t are taken as round t + 1 begins: sites then have w^t from its validation.
        """
        w, memory = start.w, start.memory
        if not isinstance(w, Model):
            raise ConfigError("blind learning needs a global model", where="auto-fedavg")
        sketch = self.plan.length(layout)
        inexact = self.plan.sketch_of(layout).size < layout.trainable
        resolution = 1 / math.sqrt(sketch) if inexact else 0.0
        calls, undo = self._calls(memory, T), int(memory.get("undo", torch.tensor(0)))
        warned = False
        for t in range(start.t + 1, T + 1):
            said: Facts = {"numbers": sketch, "of": layout.trainable}
            lesson = None
            if t > 1 and calls.due(t - 1):
                how = {"size": self.by_size, **self._how()}
                y, loss = federation.masked_gradient(t - 1, w, plan=self.plan, layout=layout, **how)
                said |= {} if loss is None else {"learning_loss": loss}
                lesson = Lesson(y, memory["U"])
            found = federation.masked_train(
                t, w, T=T, plan=self.plan, layout=layout, lesson=lesson, undo=undo
            )
            w = found.w
            said |= {} if found.loss is None else {"loss": found.loss}
            if isinstance(calls, CallSchedule):
                if lesson is not None:
                    paid = judge(federation, calls, t, found.gains, loss or 0.0)
                    undo = 0 if paid else t
                memory = {"U": found.total, **calls.memory, "undo": torch.tensor(undo)}
            else:
                memory = {"U": found.total}
            if found.cosine is not None:
                said |= {"cosine": found.cosine, "resolution": resolution}
                if found.cosine < resolution and not warned:
                    warned = True
                    log.warning(TOO_SMALL, t, found.cosine, resolution, self.plan.sketch)
            federation.remark({"blind": said, "answered": list(found.sites)})
            alpha = self._alpha(federation, found)
            yield Round(t, w, alpha=alpha, learned=lesson is not None, memory=memory)

    def bytes_of(self, layout: Layout) -> int:
        """Bytes that learning moves per client and call: integers up, float32 down."""
        return 8 * self.plan.length(layout)

    def _calls(self, memory: Mapping[str, torch.Tensor], T: int) -> EveryT0 | CallSchedule:
        """At the models of which rounds gradients are taken; those of round T teach nothing."""
        return CallSchedule(memory, T - 1) if self.t0 == "auto" else EveryT0(self.t0)

    def _how(self) -> Facts:
        return {"data": self.data, "mode": self.mode, "batches": self.batches}

    def _alpha(self, federation: Federation, found: TrainSum) -> torch.Tensor | None:
        """The weights of the round, where sites show them: 0 for one that was absent."""
        if not self.plan.show:
            return None
        alpha = torch.zeros(federation.K, len(found.total), dtype=torch.float64)
        for row, name in zip(federation.rows(found.sites), found.sites, strict=True):
            alpha[row] = found.u[name]
        alpha = alpha / alpha.sum(dim=0)
        return alpha if self.plan.layers else alpha[:, 0]


def judge(
    federation: Federation, calls: CallSchedule, t: int, gains: torch.Tensor, loss: float
) -> bool:
    """Whether the step of round t paid: its gain is more than noise. Sets when the next is due.

    Args:
        federation: where the verdict is recorded.
        calls: the schedule, by the rounds of the models that gradients are taken at.
        t: the round of the step, one later.
        gains: to first order, as each group of mini-batches has it; no group has judged a step
            that it was part of.
        loss: before the step; 0 where nobody may know it.
    """
    gain = Gain(float(gains.mean()), float(gains.std()) / math.sqrt(len(gains)), loss)
    calls.told(t - 1, gain.beyond_noise)
    due = calls.next + 1
    federation.verdict = {
        "gain": gain.mean, "error": gain.error, "paid": gain.beyond_noise, "next": due
    }  # fmt: skip
    log.info(
        "the blind step of round %d %s: loss %+.3g +- %.2g; next in round %d",
        t, "paid" if gain.beyond_noise else "did not pay", -gain.mean, gain.error, due,
    )  # fmt: skip
    return gain.beyond_noise


def why_not_blind(given: Mapping[str, Any], *, blind: bool) -> str:
    """Why settings do not fit blind learning, or need it; nothing where they do."""
    if not blind:
        for name, without in (("sketch", 0), ("batches", 1), ("show_weights", False)):
            if given[name] != without:
                return f"{name} needs learning = 'blind'; leave it out"
        return ""
    nothing = {"S": 1, "reinitialise": False, "smoothing": 0.0, "clip_steps": 0.0}
    for name, only in nothing.items():
        if given[name] != only:
            return (
                f"{name} = {given[name]!r} does nothing with learning = 'blind', one step a call "
                f"that each client takes alone; leave it out, or set {only!r}"
            )
    if given["when_idle"] == "sizes":
        return "when_idle = 'sizes' needs the loss at n_k/n, which blind clients cannot say"
    if given["t0"] == "auto" and given["batches"] < 2:
        return "t0 = 'auto' with learning = 'blind' compares mini-batches; use batches = 2 or more"
    if given["constraint"] == "dirichlet" and given["keep_above_one"] != "floor":
        return "learning = 'blind' needs keep_above_one = 'floor'"
    (low, high), beta0 = BOUNDS[given["constraint"]], given["beta0"]
    if not low <= beta0 <= high:
        return f"beta0 = {beta0} is out of bounds for learning = 'blind'; use {low} to {high}"
    return ""


def check_sites(sites: int) -> None:
    """Refuses a federation in which nobody could hide."""
    if sites < LEAST_SITES:
        raise ConfigError(
            f"learning = 'blind' hides a site among others, and there are {sites}",
            where="method.learning",
            remedy=f"use at least {LEAST_SITES} sites, or learning = 'clients'",
        )


def check_exchange(exchange: Exchange, quorum: int, sites: int) -> None:
    """Refuses encodings that sums cannot have, and quorums in which nobody could hide."""
    if exchange.up != "float32":
        raise ConfigError(
            f"exchange.up = {exchange.up!r} does nothing with learning = 'blind'",
            where="exchange.up",
            remedy="leave it out",
        )
    for call in ("local_train", "share_keys", "masked_gradient"):
        needed = exchange.quorum(call, quorum, sites)
        if needed < LEAST_SITES:
            raise ConfigError(
                f"learning = 'blind' hides a site among others, and a quorum of {needed} does not",
                where=f"exchange.quorums.{call}" if call in exchange.quorums else "quorum",
                remedy=f"use {LEAST_SITES} or more, or 0 for all",
            )
