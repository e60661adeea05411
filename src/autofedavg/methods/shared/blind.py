"""Auto-FedAvg without showing anyone's model: protocol P2 of decision 62.

Every set of models is summed once, under the weights that make the global model. The step on the
weights happens at the sites, one round later, from the sum of their gradients at that model.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from autofedavg.algorithm import Round
from autofedavg.core.bank import Layout, Model
from autofedavg.core.blind import BlindPlan, Lesson
from autofedavg.core.errors import AutoFedAvgError
from autofedavg.core.site import Facts
from autofedavg.federation.blind_calls import TrainSum
from autofedavg.federation.port import Federation

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Blind:
    """Blind learning of T rounds.

    Attributes:
        plan: what sites must know.
        t0: rounds between two gradients.
        data: the split of the gradients.
        mode: the network's, while they are taken.
        batches: mini-batches of a gradient.
        by_size: whether sites' gradients count by their training cases.
    """

    plan: BlindPlan
    t0: int
    data: Literal["validation", "train", "holdout"]
    mode: Literal["eval", "train"]
    batches: int
    by_size: bool

    def asks(self, t: int) -> dict[str, list[Facts]]:
        """What round t asks of a client, besides what FedAvg does."""
        asked: dict[str, list[Facts]] = {
            "local_train": [{"blind": self.plan.note()}],
            "share_keys": [{}],
            "validate_local": [],  # sites' own models are not scored, either
        }
        gradient = {"blind": self.plan.note(), "size": self.by_size, **self._how()}
        return asked if t % self.t0 else asked | {"masked_gradient": [gradient]}

    def rounds(
        self, federation: Federation, layout: Layout, T: int, start: Round
    ) -> Iterator[Round]:
        """Server executes: T rounds; yields the state after each."""
        w, memory, small = start.w, dict(start.memory), False
        if not isinstance(w, Model):
            raise AutoFedAvgError("blind learning needs a global model", where="auto-fedavg")
        numbers = self.plan.sketch_of(layout).size
        for t in range(start.t + 1, T + 1):
            lesson = Lesson(memory["y"], memory["U"]) if "y" in memory else None
            found = federation.masked_train(t, w, T=T, plan=self.plan, layout=layout, lesson=lesson)
            w, memory = found.w, {"U": found.total}
            said: Facts = {"loss": found.loss}
            if found.cosine is not None:
                said |= {"cosine": found.cosine, "resolution": 1 / math.sqrt(numbers)}
                if found.cosine < said["resolution"] and numbers < layout.trainable and not small:
                    small = True
                    log.warning(
                        "round %d: the sites' cosines are %.2g, below the %.2g that method.sketch "
                        "= %d resolves: use a larger one", t, found.cosine, said["resolution"],
                        self.plan.sketch,
                    )  # fmt: skip
            if learn := t % self.t0 == 0:
                memory["y"], said["learning_loss"] = federation.masked_gradient(
                    t, w, plan=self.plan, layout=layout, size=self.by_size, **self._how()
                )
            federation.remark({"blind": said, "answered": list(found.sites)})
            alpha = self._alpha(federation, found)
            yield Round(t, w, alpha=alpha, learned=learn, memory=memory)

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
