"""FedExP: the server's step is longer where the updates disagree (Jhunjhunwala et al. 2023).

Long steps oscillate, so the paper scores the mean of the last two iterates. With `average` that
mean is the model of the round: it is validated, chosen and tested. Clients go on from the iterate
itself, which is kept in memory.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from autofedavg.core.bank import Layout, Model
from autofedavg.core.settings import setting
from autofedavg.core.trainer import Training
from autofedavg.methods.averaging import Aggregation, AveragingMethod
from autofedavg.methods.base import About


class FedExP(AveragingMethod):
    """w = w + eta_g Delta_bar, eta_g = max(1, sum_k p_k ‖Delta_k‖^2 / 2(‖Delta_bar‖^2 + K eps))."""

    name: Literal["fedexp"] = "fedexp"
    about: ClassVar[About] = About(
        family="server step",
        paper="Jhunjhunwala, Wang and Joshi 2023, ICLR",
        rule="w = w + eta Delta_bar, eta = max(1, mean |Delta_k|^2 / 2(|Delta_bar|^2 + K epsilon))",
        fedavg="average = false and updates that agree",
        use="sites differ, so that the mean of their updates is short; no rate to tune",
        keeps="server 1",
    )
    epsilon: float = setting(
        1e-3,
        origin="derived from the method's code",
        help="bounds the step where Delta_bar is near zero",
        gt=0,
        allow_inf_nan=False,
    )
    average: bool = setting(
        True,
        origin="derived from the method's paper",
        help="the round's model is the mean of the last two iterates; sites start from the last",
    )

    def equals_fedavg(self, sites: int, layout: Layout, training: Training) -> str:
        return "the only update agrees with the mean" if sites == 1 and not self.average else ""

    def departure(self, w: Model, memory: dict[str, Tensor]) -> Model:
        iterate = memory.get("iterate")
        return w if iterate is None else Model(iterate.to(w.values), w.counters, w.form)

    def rate(self, at: Aggregation) -> float:
        """eta_g of this round."""
        deltas = at.gram().deltas
        mean = at.p @ deltas @ at.p + len(at.p) * self.epsilon
        return max(1.0, float(at.p @ deltas.diagonal() / (2 * mean)))

    def aggregate(self, at: Aggregation) -> Model:
        w = at.step(self.rate(at) * at.move)
        if not self.average or at.t == 1:  # before round 1 there is no iterate, as in their code
            return w
        w = at.federation.as_sent(w)
        at.memory["iterate"], end = w.values, at.layout.trainable
        return at.trained_part((w.values[:end] + at.w.values[:end]) / 2)
