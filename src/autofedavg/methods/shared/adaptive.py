"""What FedAdam, FedYogi and FedAdagrad share: steps scaled number by number at the server."""

from __future__ import annotations

import torch
from torch import Tensor

from autofedavg.core.bank import Model
from autofedavg.core.settings import setting
from autofedavg.methods.averaging import Aggregation, AveragingMethod


class AdaptiveMethod(AveragingMethod):
    """m = beta1 m + (1 - beta1) Delta_bar; w = w + server_rate m / (sqrt(v) + tau).

    v starts at tau^2, and there is no bias correction, as in the paper. A subclass gives `second`,
    the rule for v.
    """

    beta1: float = setting(
        0.9, origin="derived from the method's paper", help="momentum of the step", ge=0, lt=1
    )
    tau: float = setting(
        1e-3,
        origin="derived from the method's paper",
        help="added to sqrt(v): larger is less adaptive",
        gt=0,
        allow_inf_nan=False,
    )
    server_rate: float = setting(
        0.01, origin="derived from the method's paper", help="eta_s", gt=0, allow_inf_nan=False
    )

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """The next v, from v and Delta_bar^2."""
        raise NotImplementedError

    def aggregate(self, at: Aggregation) -> Model:
        m, v = at.memory.get("m"), at.memory.get("v")
        m = torch.zeros_like(at.move) if m is None else m.to(at.move)
        v = torch.full_like(at.move, self.tau**2) if v is None else v.to(at.move)
        at.memory["m"] = m = self.beta1 * m + (1 - self.beta1) * at.move
        at.memory["v"] = v = self.second(v, at.move.square())
        return at.step(self.server_rate * m / (v.sqrt() + self.tau))
