"""Auto-FedAvg: the aggregation weights are learned from the clients' own data (the paper)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from autofedavg.algorithm import Round, auto_fedavg
from autofedavg.core.bank import LayerKind, Layout
from autofedavg.core.beta_optimiser import BetaOptimiser
from autofedavg.core.blind import BlindPlan
from autofedavg.core.call_schedule import CallSchedule
from autofedavg.core.constraints import Constraint, Dirichlet, Softmax
from autofedavg.core.errors import ConfigError
from autofedavg.core.plan import Plan
from autofedavg.core.settings import setting
from autofedavg.core.site import Facts
from autofedavg.core.trainer import Training
from autofedavg.federation.paying_calls import PayingCalls
from autofedavg.federation.port import Federation
from autofedavg.federation.secure_sum import LEAST_SITES
from autofedavg.federation.settings import Exchange, Reach
from autofedavg.federation.steps import at_server
from autofedavg.methods.base import About, Method
from autofedavg.methods.shared.blind import (
    CAUTION,
    Blind,
    check_exchange,
    check_sites,
    why_not_blind,
)
from autofedavg.methods.shared.conflicts import conflict, refuse_idle, too_few_calls
from autofedavg.methods.shared.mixtures import shown_by_mixtures
from autofedavg.methods.shared.ways import ways

RATES = ({"dirichlet": 0.1, "softmax": 0.02}, {"dirichlet": 1.0, "softmax": 0.3})  # blind: second
Interval = Annotated[int, Field(ge=1)] | Literal["auto"]


class AutoFedAvg(Method):
    """Algorithm 1 with its four variants: network- or layer-wise, softmax or Dirichlet."""

    name: Literal["auto-fedavg"] = "auto-fedavg"
    about: ClassVar[About] = About(
        family="learned weights",
        paper="Xia et al. 2021, arXiv 2104.10195",
        rule="w = sum_k alpha_k w_k, alpha = gamma(beta); sites learn beta by their own loss",
        fedavg="with start = 'sizes', where no step moves beta",
        use="sites differ in data or quality, and nobody knows which to trust",
        needs="validation cases at every site; sites receive all models, unless learning = 'blind'",
        keeps="server K numbers (beta); sites K, within a learning round",
    )
    constraint: Literal["dirichlet", "softmax"] = setting(
        "dirichlet", origin="paper Sec. 3.2", help="gamma: Eq. 4 or Eq. 5 and 6"
    )
    weights: Literal["network", "layer"] = setting(
        "network", origin="paper Sec. 3.2", help="one alpha per client, or one per client and layer"
    )
    learning: Literal["clients", "server", "blind"] = setting(
        "clients",
        origin="paper Sec. 3.3 (clients); ours: decisions 34 (server), 62 (blind)",
        help="who steps on beta: clients, on all models; the server, on their gradients; or each "
        "client on its own number, with masked sums (blind)",
    )
    t0: Interval = setting(
        1,
        origin="paper Sec. 4.2.1; ours: decision 63 (auto)",
        help="rounds between two LearnAggWeight calls; auto: as long as calls pay",
    )
    when_idle: Literal["stay", "sizes"] = setting(
        "stay",
        origin="ours: decision 63",
        help="weights after a call of t0 = 'auto' that did not pay: those before it; or n_k/n, "
        "unless they are better than n_k/n",
    )
    S: int = setting(
        lambda known: 1 if known.get("learning") == "blind" else 20,
        origin="ours: decision 4 (20), decision 62 (1 for blind)",
        help="steps on beta in a LearnAggWeight call",
        ge=1,
    )
    beta0: float = setting(
        lambda known: 6.0 if known.get("constraint") == "dirichlet" else 0.0,
        origin="paper Sec. 4.2.1 (6.0 for the Dirichlet); ours (0.0 for the softmax)",
        help="initial beta of every client; with start = 'sizes', their mean",
    )
    start: Literal["even", "sizes"] = setting(
        "even",
        origin="paper Sec. 4.2.1 (even); ours: decision 62 (sizes)",
        help="weights before the first step on beta: 1/K, or FedAvg's n_k/n",
    )
    beta_optimiser: Literal["adam", "sgd"] = setting(
        "adam",
        origin="ours: decision 4",
        help="Adam at the server on the mean gradient; sgd is Algorithm 1 to the letter",
    )
    beta_rate: float = setting(
        lambda known: RATES[known.get("learning") == "blind"][known.get("constraint", "dirichlet")],
        origin="ours: decision 4 (0.1 for the Dirichlet, 0.02 for the softmax), decision 62 (1.0 "
        "and 0.3 for blind)",
        help="step size of beta",
        gt=0,
    )
    reinitialise: bool = setting(
        False, origin="paper Sec. 4.2.2", help="start every call from beta0 (the paper's ablation)"
    )
    learn_on: Literal["validation", "train", "holdout"] = setting(
        "validation", origin="ours: decision 3", help="local data that beta is learned on"
    )
    mode: Literal["eval", "train"] = setting(
        "eval", origin="ours: decision 7", help="network mode while learning beta"
    )
    layer: LayerKind = setting(
        "module", origin="ours: decision 5", help="what a layer is, for layer-wise weights"
    )
    smoothing: float = setting(
        0.0, origin="ours: decision 11", help="weight of the layer-wise smoothing loss", ge=0
    )
    keep_above_one: Literal["floor", "softplus"] = setting(
        "floor", origin="ours: decision 2", help="how the Dirichlet's beta is kept above 1"
    )
    steps_per_message: int = setting(
        1,
        origin="ours: decision 33 (the paper's future work); 1 is Algorithm 1",
        help="steps a client takes on beta before the server averages",
        ge=1,
    )
    objective: Literal["even", "size"] = setting(
        "even",
        origin="paper Alg. 1 (even); ours: decision 40 (size)",
        help="every client's step on beta counts the same, or by its training cases",
    )
    clip_steps: float = setting(
        lambda known: 0.0 if known.get("learning") == "blind" else 100.0,
        origin="ours: decision 45 (100), decision 62 (none for blind)",
        help="steps on beta more than so many times the others' median do not count; 0: no limit",
        ge=0,
        allow_inf_nan=False,
    )
    sketch: int = setting(
        lambda known: 65536 if known.get("learning") == "blind" else 0,
        origin="ours: decision 62",
        help="blind: most numbers that a gradient is sent as, a CountSketch; 0: all of them",
        ge=0,
    )
    batches: int = setting(
        lambda known: (
            1 if known.get("learning") != "blind" else 8 if known.get("t0") == "auto" else 4
        ),
        origin="ours: decision 62 (4), decision 63 (8 for auto); Algorithm 1 takes a step on each",
        help="blind: mini-batches that a client's gradient is the mean of",
        ge=1,
    )
    show_weights: bool = setting(
        False,
        origin="ours: decision 62",
        help="blind: clients send their weights in clear, so that alpha is recorded",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> AutoFedAvg:
        given = dict(self)
        if why := why_not_blind(given, blind=self._blindly) or conflict(given):
            raise ValueError(why)
        try:
            self.gamma()
        except ConfigError as error:
            raise ValueError(f"{error.what}; {error.remedy}") from error
        return self

    @property
    def _blindly(self) -> bool:
        return self.learning == "blind"

    @property
    def learns_on(self) -> str:
        return self.learn_on

    @property
    def models_reach(self) -> Reach:
        return "nobody" if self._blindly else "sites"

    @property
    def mixes_models(self) -> bool:
        return self.learning == "server"

    def sketched_bytes(self, layout: Layout) -> int:
        return self.blind().bytes_of(layout)

    def ways_of_learning(
        self, layout: Layout, T: int, sites: int, exchange: Exchange
    ) -> dict[str, float]:
        S = 20 if self._blindly else self.S
        blind = self if self._blindly else AutoFedAvg(learning="blind")
        calls, blindly = (self._calls(T, blind=way) for way in (False, True))
        sketched = blindly * blind.sketched_bytes(layout)
        found = ways(layout, T, sites, exchange, calls, S, blindly, sketched)
        return found if sites >= LEAST_SITES else {k: v for k, v in found.items() if k != "blind"}

    def _calls(self, T: int, *, blind: bool) -> int:
        """Calls of LearnAggWeight in T rounds, at most; blindly, the last round teaches nothing."""
        T -= blind
        return CallSchedule.most(T) if self.t0 == "auto" else T // self.t0

    def check(self, sites: int) -> None:
        refuse_idle(dict(self))
        if sites < 2:
            raise ConfigError(
                f"auto-fedavg learns how to weigh clients, and there is {sites}",
                where="method",
                remedy="use at least two sites, or the method local-only",
            )
        if self._blindly:
            check_sites(sites)

    def unsuited(self, training: Training, T: int) -> str:
        return too_few_calls(dict(self), self._calls(T, blind=self._blindly), T)

    def check_exchange(self, exchange: Exchange, quorum: int, sites: int) -> None:
        if self._blindly:
            check_exchange(exchange, quorum, sites)

    def cautions(self, sites: int) -> list[str]:
        if self.mixes_models:
            return [shown_by_mixtures(self.constraint == "softmax", self.S, sites)]
        return [CAUTION.format(sites)] if self._blindly else []

    def layer_names(self, layout: Layout) -> tuple[str, ...]:
        return layout.layers(self.layer).names if self.weights == "layer" else ()

    def gamma(self) -> Constraint:
        if self.constraint == "softmax":
            return Softmax(self.beta0)
        return Dirichlet(self.beta0, self.keep_above_one)

    def plan(self, layout: Layout, T: int) -> Plan:
        """The constants of Algorithm 1 for a network."""
        return Plan(
            T=T,
            t0=1 if self.t0 == "auto" else self.t0,
            S=self.S,
            gamma=self.gamma(),
            optimiser=BetaOptimiser(self.beta_optimiser, self.beta_rate),
            layers=layout.layers(self.layer) if self.weights == "layer" else None,
            layer_kind=self.layer,
            reinitialise=self.reinitialise,
            smoothing=self.smoothing,
            data=self.learn_on,
            mode=self.mode,
            steps_per_message=self.steps_per_message,
            learner=at_server if self.mixes_models else None,
            trainable=layout.trainable,
            by_size=self.objective == "size",
            clip=self.clip_steps,
            judge=PayingCalls if self.t0 == "auto" else None,
            to_sizes=self.when_idle == "sizes",
            from_sizes=self.start == "sizes",
        )

    def blind(self) -> Blind:
        """The constants of blind learning."""
        plan = BlindPlan(
            self.constraint,
            self.beta0,
            BetaOptimiser(self.beta_optimiser, self.beta_rate),
            self.layer if self.weights == "layer" else None,
            self.sketch,
            self.show_weights,
            self.start == "sizes",
            self.batches if self.t0 == "auto" else 1,
        )
        by_size = self.objective == "size"
        return Blind(plan, self.t0, self.learn_on, self.mode, self.batches, by_size)

    def asks(self, t: int, T: int, layout: Layout) -> dict[str, list[Facts]]:
        """What round t may ask: with t0 = "auto" no site knows which rounds call LearnAggWeight."""
        asked, plan = super().asks(t, T, layout), self.plan(layout, T)
        if self._blindly:
            return asked | self.blind().asks(t, T)
        return asked if t % plan.t0 else asked | plan.asks()

    def calls(self, T: int, layout: Layout) -> Counter[str]:
        """The messages of T rounds; with t0 = "auto" the most that they can be."""
        found = super().calls(T, layout)
        if self.t0 != "auto":
            return found
        learning = self.blind().learning() if self._blindly else self.plan(layout, T).asks()
        most = self._calls(T, blind=self._blindly)
        few = {call: most * len(messages) for call, messages in learning.items()}
        return Counter({**found, **few})

    def rounds(
        self, federation: Federation, layout: Layout, T: int, start: Round
    ) -> Iterator[Round]:
        if self._blindly:
            return self.blind().rounds(federation, layout, T, start)
        return auto_fedavg(federation, self.plan(layout, T), start)
