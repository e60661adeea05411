"""`t0 = "auto"`: LearnAggWeight is called as long as it lowers the loss by more than noise."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from autofedavg.algorithm import among
from autofedavg.core.bank import Bank
from autofedavg.core.call_schedule import CallSchedule
from autofedavg.core.constraints import moved_to
from autofedavg.core.plan import Plan, size_shares
from autofedavg.core.site import Facts

if TYPE_CHECKING:
    from autofedavg.federation.port import Federation

log = logging.getLogger(__name__)

ERRORS = 2.0  # standard errors that a gain must exceed (decision 63)
ROUNDING = 1e-6  # of the loss: a smaller gain may be float32's rounding


class Gain(NamedTuple):
    """By how much one model's loss is below another's, on the same mini-batches.

    Attributes:
        mean: the mean over batches, in the objective's mean over clients.
        error: its standard error, from the spread over each client's batches. Clients are not a
            sample: their differences are no noise.
        loss: the loss that it is a gain over.
    """

    mean: float
    error: float
    loss: float

    @property
    def beyond_noise(self) -> bool:
        return self.mean > max(ERRORS * self.error, ROUNDING * abs(self.loss))


def paired_gain(before: Tensor, after: Tensor, shares: Tensor) -> Gain:
    """The gain from `before` to `after`.

    Args:
        before: losses (K, B) of K clients on B batches each.
        after: losses of another model on the same batches.
        shares: how much each client counts; sums to one.

    Example:
        >>> shares = torch.tensor([0.5, 0.5], dtype=torch.float64)
        >>> before, after = torch.tensor([[3.0, 3.0], [2.0, 4.0]]), torch.ones(2, 2)
        >>> paired_gain(before.double(), after.double(), shares)
        Gain(mean=2.0, error=0.5, loss=3.0)
    """
    lower = before - after
    spread = lower.var(dim=1) / lower.shape[1]
    return Gain(
        float(shares @ lower.mean(dim=1)),
        float((shares.square() @ spread).sqrt()),
        float(shares @ before.mean(dim=1)),
    )


class PayingCalls:
    """The rounds that call LearnAggWeight, and what becomes of a call that does not pay.

    A call paid if its weights lower the clients' loss by more than noise. If it did not, the
    weights before it stay. With `plan.to_sizes` they become n_k/n instead, unless they are better
    than n_k/n by more than noise.

    Args:
        federation: the clients.
        plan: the constants of the method.
        memory: of an earlier round; empty at the start.
    """

    def __init__(self, federation: Federation, plan: Plan, memory: Mapping[str, Tensor]) -> None:
        self._federation, self._plan = federation, plan
        self._schedule = CallSchedule(memory, plan.T)

    @property
    def memory(self) -> dict[str, Tensor]:
        return self._schedule.memory

    def due(self, t: int) -> bool:
        return self._schedule.due(t)

    def kept(self, t: int, w_k: Bank, before: Tensor, learned: Tensor) -> Tensor:
        plan, federation = self._plan, self._federation
        gamma = plan.gamma
        alphas = [gamma.alpha(before), gamma.alpha(learned)]
        sizes = size_shares(federation.names, federation.sites) if plan.to_sizes else None
        if sizes is not None:
            sizes = sizes if before.dim() == 1 else sizes[:, None].expand_as(before)
            alphas.append(sizes)
        losses = self._losses(t, w_k, alphas)
        gain = self._gain(losses, 0, 1)
        self._schedule.told(t, gain.beyond_noise)
        verdict: Facts = {"gain": gain.mean, "error": gain.error, "paid": gain.beyond_noise}
        kept = learned if gain.beyond_noise else before
        if sizes is not None:
            over = self._gain(losses, 2, 0)
            verdict |= {"over_sizes": over.mean, "over_sizes_error": over.error}
            verdict["to_sizes"] = not gain.beyond_noise and not over.beyond_noise
            kept = moved_to(sizes, gamma, before) if verdict["to_sizes"] else kept
        federation.verdict = {**verdict, "next": self._schedule.next}
        log.info(
            "LearnAggWeight of round %d %s: loss %+.3g +- %.2g; next in round %d",
            t, "paid" if gain.beyond_noise else "did not pay", -gain.mean, gain.error,
            self._schedule.next,
        )  # fmt: skip
        return kept

    def _losses(self, t: int, w_k: Bank, alphas: list[Tensor]) -> dict[str, Tensor]:
        """The losses (M, batches) of M mixtures, by client."""
        plan, federation = self._plan, self._federation
        mixing = [among(alpha, federation, w_k) for alpha in alphas]
        if plan.learner is None:
            losses = federation.mixture_losses(t, torch.stack(mixing), **plan.judged_on())
        else:
            models = [w_k.combine(alpha, plan.layers) for alpha in mixing]
            losses = federation.model_losses(t, models, w_k.sites, **plan.judged_on())
        gains = {name: float((found[0] - found[1]).mean()) for name, found in losses.items()}
        return federation.plausible(t, gains, losses, plan.clip)

    def _gain(self, losses: Mapping[str, Tensor], before: int, after: int) -> Gain:
        """The gain of one mixture over another."""
        every = torch.stack(list(losses.values()))
        shares = self._plan.shares(list(losses), self._federation.sites)
        return paired_gain(every[:, before], every[:, after], shares)
