"""Blind learning at a site: its step on theta, and what it sends into sums (decision 62).

A site keeps theta_j, the optimiser's moments and R w_j, the sketch of the model that it trained
last. They never travel: the server names them by digest, as it does personal models.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from autofedavg.core.bank import Model
from autofedavg.core.blind import BlindPlan, Lesson
from autofedavg.core.errors import TrainingError
from autofedavg.core.seeds import Purpose, Seeds
from autofedavg.core.site import Facts
from autofedavg.federation.fixed_point import NARROW, WIDE, largest, scale_of, to_fixed
from autofedavg.federation.messages import Message
from autofedavg.federation.secure_sum import REMEDY, SiteSums, SumOver

if TYPE_CHECKING:
    from autofedavg.federation.client_scoring import ScoringClient

log = logging.getLogger(__name__)

LESSON = "lesson/"  # before the names of what sites learn from
LOWER = (
    "lower training.learning_rate or the local steps of a round, or use learning = 'clients' or "
    "'server'"
)


@dataclass(frozen=True)
class BlindTraining:
    """The blind part of one LocalTrain.

    Attributes:
        plan: the constants.
        over: the sum that the result goes into.
        state: theta and moments, after the step that this request brought.
        cosine: of the gradient and this site's w_j - w; None where no step was taken.
        request: identifies all but the sites of the sum.
        share: n_j / n where weights count by sizes, else 1.
    """

    plan: BlindPlan
    over: SumOver
    state: Mapping[str, Tensor]
    cosine: float | None
    request: str
    share: float = 1.0


class BlindSite:
    """What a client does for blind learning.

    Args:
        client: whose name, network and state it uses.
        seeds: the run's, which the sketch comes from.
        masked: whether it masks (`SiteSums`).
    """

    def __init__(self, client: ScoringClient, seeds: Seeds, *, masked: bool) -> None:
        self._client, self._seeds, self._masked = client, seeds, masked
        self._site, self._layout = client.site, client.trainer.layout

    @property
    def sums(self) -> SiteSums:
        """Its part in sums."""
        return SiteSums(self._site, self._client.client_state.masks, masked=self._masked)

    def training(self, message: Message, start: Model, t: int) -> BlindTraining | Message:
        """The blind part of a request, or the reply where there is nothing to train."""
        place = f"client {self._site}, local_train, round {t}"
        plan, over = self._asked(message, place)
        if (reply := self.sums.unknown(over)) is not None:
            return reply
        kept = message.facts.get("kept", "")
        share = self._share(over, plan.sizes, place)
        request = _request(message, start, over) if self._masked else ""
        done, state = self._client.client_state.masks.done, self._client.client_state.kept.states
        scaled = scale_of(NARROW, over.K)
        if done is not None and done[0] == (request, scaled):  # again, or without a lost site
            return Message(self.sums.part(done[1], over, t, "local_train"), done[2])
        before = state.get(kept) or plan.start(self._layout)
        lesson, cosine = self._lesson(message, plan, place), None
        if lesson is not None and "t" in before and int(before["t"]) == t - 1:
            w = self.sketched(plan, start.values, t - 1)
            before, cosine = lesson.step(plan, before, plan.sketch_of(self._layout), w, share)
        after = {name: value for name, value in before.items() if name not in ("seen", "t")}
        return BlindTraining(plan, over, after, cosine, request, share)

    def trained(
        self, job: BlindTraining, start: Model, model: Model, loss: float, t: int
    ) -> Message:
        """This site's part of the new global model: u_j (w_j - w), u_j and the loss, masked.

        The model itself stays here.
        """
        plan, K, end = job.plan, job.over.K, self._layout.trainable
        place = f"client {self._site}, local_train, round {t}"
        u = plan.weight(job.state["theta"], job.share)
        moved = model.values.double() - start.values.to(model.values.device).double()
        if plan.layers:
            for first, last, p in self._layout.layers(plan.layers).segments:
                moved[first:last] *= float(u[p])
        else:
            moved *= float(u[0])
        stepped = [0.0, 0.0] if job.cosine is None else [1.0, job.cosine**2]
        scalars = torch.cat([u, torch.tensor([loss, *stepped], dtype=torch.float64)])
        rest = torch.cat([moved[end:], scalars.to(moved.device)])
        arrays = {
            "narrow": to_fixed(moved[:end], NARROW, K, place, LOWER),
            "wide": to_fixed(rest, WIDE, K, place, LOWER),
        }
        seen = self.sketched(plan, model.values, t).cpu()
        keep = {**job.state, "seen": seen, "t": torch.tensor(t)}
        state = self._client.client_state
        facts: Facts = {"kept": state.kept.keep(keep), **({"u": u.tolist()} if plan.show else {})}
        if self._masked:
            state.masks.done = ((job.request, scale_of(NARROW, K)), arrays, facts)
        return Message(self.sums.part(arrays, job.over, t, "local_train"), facts)

    def gradient(
        self, message: Message, differentiate: Callable[[int], tuple[Tensor, float]]
    ) -> Message:
        """This site's part of the mean gradient: c R g, c and c times the loss, masked.

        c is its share of all training cases, or 1 where every site counts the same.

        Args:
            message: the request.
            differentiate: gives gradient, (D',), and loss of one of its mini-batches.
        """
        how, t = message.facts, int(message.facts["t"])
        place = f"client {self._site}, masked_gradient, round {t}"
        plan, over = self._asked(message, place)
        share = self._share(over, how["size"], place)
        if (reply := self.sums.unknown(over)) is not None:
            return reply
        found, loss, batches = torch.zeros(()), 0.0, int(how["batches"])
        for s in range(1, batches + 1):
            gradient, one = differentiate(s)
            found, loss = found.to(gradient.device) + gradient.double(), loss + one
        found = share * self.sketched(plan, found / batches, t)
        size, most = float(found.abs().max()), 0.999 * largest(NARROW, over.K)
        if size > most and math.isfinite(size):  # one strange case must not end a run
            log.warning("%s: its gradient is scaled from %.3g to %.3g", place, size, most)
            found = found * (most / size)
        scalars = [share, share * loss / batches, float(size > most)]
        wide = torch.tensor(scalars, dtype=torch.float64, device=found.device)
        arrays = {
            "narrow": to_fixed(found, NARROW, over.K, place, LOWER),
            "wide": to_fixed(wide, WIDE, over.K, place, LOWER),
        }
        return Message(self.sums.part(arrays, over, t, "masked_gradient"))

    def sketched(self, plan: BlindPlan, vector: Tensor, t: int) -> Tensor:
        """R_t of the trainable part of a vector; R_t is public."""
        seed = self._seeds.number("server", Purpose.SKETCH, t)
        return plan.sketch_of(self._layout).apply(vector[: self._layout.trainable], seed)

    def _asked(self, message: Message, place: str) -> tuple[BlindPlan, SumOver]:
        over = SumOver.read(message.facts.get("sum"), self._site, place)
        try:
            return BlindPlan.of(message.facts["blind"]), over
        except (KeyError, TypeError) as error:
            raise TrainingError(
                "was asked for blind learning by unknown rules", where=place, remedy=REMEDY
            ) from error

    def _share(self, over: SumOver, by_size: bool, place: str) -> float:
        """n_j / n, this site's share of all training cases, or 1 where every site counts alike."""
        n = self._client.data.cases()["train"]
        if by_size and over.cases < n:
            raise TrainingError(
                f"all sites together have {over.cases} cases, and it has {n}",
                where=place,
                remedy="resume the run: the sites then join again",
            )
        return n / over.cases if by_size else 1.0

    def _lesson(self, message: Message, plan: BlindPlan, place: str) -> Lesson | None:
        """What came along to learn from: finite, of the network's sizes."""
        arrays = {k: a for k, a in message.arrays.items() if k.startswith(LESSON)}
        if not arrays:
            return None
        size, P = plan.sketch_of(self._layout).size, plan.numbers(self._layout)
        wanted = {f"{LESSON}y": (size,), f"{LESSON}U": (P,)}
        found = {name: tuple(array.shape) for name, array in arrays.items()}
        if found != wanted or not all(bool(torch.isfinite(a).all()) for a in arrays.values()):
            raise TrainingError(
                f"cannot learn from {found}: {wanted} finite numbers are needed",
                where=place,
                remedy="give every site the same study",
            )
        total = arrays[f"{LESSON}U"].double()
        if not bool((total > 0).all()):
            raise TrainingError("the sum of the weights is not positive", where=place)
        return Lesson(arrays[f"{LESSON}y"], total)


def _request(message: Message, start: Model, over: SumOver) -> str:
    """Identifies a request for training, whichever sites its sum is over."""
    facts = {k: v for k, v in message.facts.items() if k not in ("sum", "sent", "hold")}
    found = hashlib.sha256(repr((over.cases, sorted(facts.items()))).encode())
    found.update(start.digest().encode())
    for name in sorted(k for k in message.arrays if k.startswith(LESSON)):
        found.update(message.arrays[name].cpu().contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()
