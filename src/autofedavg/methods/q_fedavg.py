"""q-FedAvg: sites with larger losses count more, by a power q (Li et al. 2020)."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from autofedavg.core.bank import Layout, Model
from autofedavg.core.settings import setting
from autofedavg.core.trainer import Training
from autofedavg.federation.local_training import LocalRequest, Probe
from autofedavg.federation.port import Federation
from autofedavg.methods.averaging import Aggregation, AveragingMethod
from autofedavg.methods.base import About, even_weights
from autofedavg.methods.shared.losses import positive


class QFedAvg(AveragingMethod):
    """Minimises sum_k L_k^{q+1}: w = w - sum_k L_k^q G_k / sum_k (q L_k^{q-1} ‖G_k‖^2 + L_k^q/eta).

    G_k = (w - w_k) / eta. Clients send eta, their step size in the round, with L_k, the loss of w
    on a few batches before training. In updates, the step is sum_k L_k^q Delta_k /
    sum_k L_k^q (1 + q ‖Delta_k‖^2 / (eta L_k)). That makes steps very short with Adam, whose
    updates are no multiples of gradients.
    """

    name: Literal["q-fedavg"] = "q-fedavg"
    about: ClassVar[About] = About(
        family="weights from losses and counts",
        paper="Li, Sanjabi, Beirami and Smith 2020, ICLR",
        rule="w = w + sum L_k^q Delta_k / sum (L_k^q + q L_k^{q-1} |Delta_k|^2 / eta)",
        fedavg="q = 0: even weights",
        use="scores should be alike at all sites, and no site is bad",
        needs="local SGD; one more loss a round, never negative, on a few batches",
    )
    q: float = setting(
        5.0,
        origin="derived from the method's code",
        help="power of the losses; 0 is FedAvg with even weights",
        ge=0,
        le=100,
    )
    batches: int = setting(
        4, origin="ours", help="mini-batches of training cases that a loss is found on", ge=1
    )

    def cautions(self, sites: int) -> list[str]:
        return ["A bad site has a large loss, so it gains weight."]

    def unsuited(self, training: Training, T: int) -> str:
        if self.q == 0 or training.optimiser == "sgd":
            return ""
        return (
            f"q-fedavg reads gradients from updates, which it takes for SGD's. With "
            f"{training.optimiser} its steps are very short: set training.optimiser to 'sgd'"
        )

    def equals_fedavg(self, sites: int, layout: Layout, training: Training) -> str:
        return "q is 0: even weights" if self.q == 0 else ""

    def fixed_weights(self, federation: Federation, t: int) -> Tensor:
        return even_weights(federation)

    def local(self, layout: Layout) -> LocalRequest:
        return LocalRequest(tell=("rate",), probe=Probe("train", self.batches))

    def aggregate(self, at: Aggregation) -> Model:
        losses, eta = positive(at, at.trained.probed), at.told(at.trained.rate)
        if self.q == 0:
            return at.weighted(at.p)
        powers = (losses / losses.max()) ** self.q  # the largest is 1: no power overflows
        steepness = self.q * at.gram().norms ** 2 / (eta * losses)
        return at.mixed(powers / (powers * (1 + steepness)).sum())
