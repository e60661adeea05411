"""FedMA: units are matched across clients, layer by layer, before they are averaged (Table 1).

Wang et al., "Federated Learning with Matched Averaging", 2020. Round t is one communication: one
layer's exchange. A network of P layers with weights takes P rounds for a pass (decision 19):

| stage of a pass | clients train             | the server                                  |
| --------------- | ------------------------- | ------------------------------------------- |
| 1               | all layers                | matches layer 1                             |
| l = 2 .. P-1    | layers l .. P, rest fixed | matches layer l                             |
| P               | the classifier            | averages it by class: the global model      |

Between the stages every client has its own later layers, so w is a bank. The next pass starts from
the global model, cut back to the original widths by each client's own assignments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from autofedavg.algorithm import Round
from autofedavg.core.bank import Bank, Layout, Model
from autofedavg.core.errors import ConfigError
from autofedavg.core.seeds import Purpose
from autofedavg.core.settings import setting
from autofedavg.core.site import Facts
from autofedavg.federation.port import Federation
from autofedavg.methods.base import About, Method, own_models, size_weights
from autofedavg.methods.fedma.chain import Chain, weighted_layers
from autofedavg.methods.fedma.matching import Belief, match

FROM_CODE = "derived from FedMA's code"


class FedMA(Method):
    """Matched averaging with communication; needs a plain chain of layers."""

    name: Literal["fedma"] = "fedma"
    about: ClassVar[About] = About(
        family="averaging",
        paper="Wang et al. 2020, ICLR",
        rule="hidden units are matched over sites, layer by layer, and then averaged",
        fedavg="never: a round exchanges one layer",
        use="networks are plain chains, and sites start from different initial weights",
        needs="a plain chain of layers; rounds a multiple of its length; every site",
        keeps="server K",
    )
    one_network: ClassVar[bool] = False
    gamma: float = setting(
        7.0, origin=FROM_CODE, help="mass of the process: more means more new units", gt=0
    )
    sigma: float = setting(
        1.0, origin=FROM_CODE, help="variance of a client's unit around the global one", gt=0
    )
    sigma0: float = setting(
        1.0, origin=FROM_CODE, help="variance of global units around their prior mean", gt=0
    )
    bias_prior: float = setting(
        0.1, origin=FROM_CODE, help="prior mean of a bias; that of a weight is 0"
    )
    sweeps: int = setting(
        5, origin=FROM_CODE, help="times every client is taken out and matched again", ge=0
    )
    most_units: int = setting(
        700, origin=FROM_CODE, help="width from which a client adds at most one unit", ge=1
    )
    initial: Literal["independent", "shared"] = setting(
        "independent",
        origin=FROM_CODE,
        help="initial weights: each client's own, or one draw for all",
    )
    classifier_rate: float = setting(
        0.1, origin=FROM_CODE, help="factor on the step size while only the classifier trains", gt=0
    )
    classifier_weight_decay: float = setting(
        1e-4, origin=FROM_CODE, help="L2 penalty while only the classifier trains", ge=0
    )
    classifier_passes: int = setting(
        3, origin=FROM_CODE, help="factor on the length while only the classifier trains", ge=1
    )

    @property
    def needs_all(self) -> bool:
        return True

    def check(self, sites: int) -> None:
        if sites < 2:
            raise ConfigError(
                f"fedma matches clients with each other, and there is {sites}",
                where="method",
                remedy="use at least two sites, or the method local-only",
            )

    def check_network(self, network: nn.Module, T: int) -> None:
        P = len(weighted_layers(network))
        if T % P:
            below, above = T - T % P, T - T % P + P
            nearest = f"{below} or {above}" if below else str(above)
            raise ConfigError(
                f"fedma takes {P} rounds for a pass, one per layer, and rounds is {T}",
                where="rounds",
                remedy=f"set rounds to a multiple of {P}, such as {nearest}",
            )

    def belief(self) -> Belief:
        return Belief(self.gamma, self.sigma, self.sigma0, self.bias_prior, self.most_units)

    def begin(self, federation: Federation, start: Round) -> Round:
        return replace(start, w=own_models(federation, start.w))

    def asks(self, t: int, T: int, layout: Layout) -> dict[str, list[Facts]]:
        P = len(layout.layers("module").names)
        asked: dict[str, list[Facts]] = {"local_train": [self._how(t, P)]}
        return asked if t % P else asked | {"class_counts": [{}], "evaluate": [{}]}

    def rounds(
        self, federation: Federation, layout: Layout, T: int, start: Round
    ) -> Iterator[Round]:
        if federation.quorum < federation.K:
            raise ConfigError(
                f"fedma needs every client, and quorum is {federation.quorum}",
                where="quorum",
                remedy="set quorum = 0",
            )
        chain = Chain(layout)
        w, memory = start.w, start.memory
        for t in range(start.t + 1, T + 1):
            stage = (t - 1) % chain.P  # from 0
            if isinstance(w, Model):
                w = chain.cut_back(w, federation.names, memory)
            trained = federation.local_train(t, w, T=T, **self._how(t, chain.P))
            w_k = trained.w_k
            if stage < chain.P - 1:
                w, assigned = self._match(federation, chain, stage, t, w_k)
                memory = {**memory, str(stage): assigned}
            else:
                w = chain.close(w_k, class_weights(federation, t, chain.widths[-1]))
            yield Round(t, w, w_k=w_k, losses=trained.losses, memory=memory)

    def _how(self, t: int, P: int) -> Facts:
        """How clients train in round t, one of P that make a pass."""
        how: Facts = {"fresh": True} if t == 1 and self.initial == "independent" else {}
        if t % P == 0:
            how |= {"rate": self.classifier_rate, "passes": self.classifier_passes}
            how["weight_decay"] = self.classifier_weight_decay
        return how

    def _match(
        self, federation: Federation, chain: Chain, stage: int, t: int, w_k: Bank
    ) -> tuple[Bank, Tensor]:
        """Matches one layer; returns the clients' next models and (K, L) assignments."""
        units = [chain.units(w_k[site], stage).numpy() for site in w_k.sites]
        orders = federation.seeds.numpy("server", Purpose.MATCHING, t)
        found = match(units, self.belief(), self.sweeps, orders)
        assigned = torch.stack([torch.from_numpy(a) for a in found.assignments])
        return chain.with_matched(w_k, stage, torch.from_numpy(found.units), assigned), assigned


def class_weights(federation: Federation, t: int, classes: int) -> Tensor:
    """(K, C): n_{k,c} / sum_k n_{k,c}; n_k/n where a client does not know its class counts.

    A class that no client has is averaged evenly.
    """
    known = federation.class_counts(t)
    counts = [known[name] or [] for name in federation.names]
    if any(len(row) != classes for row in counts):
        return size_weights(federation)[:, None].expand(-1, classes)
    table = torch.tensor(counts, dtype=torch.float64)
    table[:, table.sum(dim=0) == 0] = 1
    return table / table.sum(dim=0)
