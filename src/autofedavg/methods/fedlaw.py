"""FedLAW: learned weights with a shrink factor (Li et al. 2023), on the sites' own data.

w = e^g sum_k a_k w_k, a = softmax(x). In every round x starts at log p and g at 0, and all K + 1
numbers are learned as Auto-FedAvg's beta is: LearnAggWeight with g as one more number. The paper
learns on labelled images at the server. Statistics are averaged with a, and not shrunk.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Generator

from autofedavg.algorithm import learn_agg_weight
from autofedavg.core.bank import Layout, Model
from autofedavg.core.beta_optimiser import BetaOptimiser
from autofedavg.core.constraints import Shrinking
from autofedavg.core.plan import Plan
from autofedavg.core.settings import setting
from autofedavg.core.site import Facts
from autofedavg.core.trainer import Training
from autofedavg.federation.settings import Reach
from autofedavg.federation.steps import at_server
from autofedavg.methods.averaging import Aggregation, AveragingMethod
from autofedavg.methods.base import About


class FedLAW(AveragingMethod):
    """w = e^g sum_k softmax(x)_k w_k, with x and g learned in every round, from FedAvg's model."""

    name: Literal["fedlaw"] = "fedlaw"
    about: ClassVar[About] = About(
        family="learned weights",
        paper="Li et al. 2023, ICML",
        rule="w = e^g sum_k a_k w_k; a and g by S Adam steps from a = p, g = 0 in every round",
        fedavg="S = 0",
        use="the rival of Auto-FedAvg that also shrinks the model",
        needs="cases to learn on at every site",
        keeps="sites all models, as in LearnAggWeight",
    )
    S: int = setting(
        40,
        origin="derived from the method's code (20 epochs of 200 images in batches of 128)",
        help="steps on x and g in a round; 0 is FedAvg",
        ge=0,
    )
    beta_rate: float = setting(
        0.01,
        origin="derived from the method's code",
        help="Adam's step size of x and g",
        gt=0,
        allow_inf_nan=False,
    )
    learn_on: Literal["validation", "train", "holdout"] = setting(
        "validation",
        origin="ours (the paper: test images at the server)",
        help="local data that x and g are learned on",
    )
    mode: Literal["eval", "train"] = setting(
        "train", origin="derived from the method's code", help="network mode while learning"
    )
    learning: Literal["clients", "server"] = setting(
        "clients",
        origin="ours: decision 34",
        help="who steps on x and g: clients, on all models, or the server, on their gradients",
    )
    clip_steps: float = setting(
        100.0,
        origin="ours: decision 45",
        help="steps more than so many times the others' median do not count; 0: no limit",
        ge=0,
        allow_inf_nan=False,
    )

    @property
    def learns_on(self) -> str | None:
        return self.learn_on if self.S else None

    @property
    def models_reach(self) -> Reach:
        return "sites" if self.S else "server"

    @property
    def mixes_models(self) -> bool:
        return self.learning == "server"

    def equals_fedavg(self, sites: int, layout: Layout, training: Training) -> str:
        return "" if self.S else "no step is taken"

    def cautions(self, sites: int) -> list[str]:
        if self.learning == "clients" or not self.S:
            return []
        return [
            "learning = 'server' sends no site's model while it learns, but a site that tries "
            "can find it from the mixtures: a softmax draws nothing (decision 44)"
        ]

    def plan(self, layout: Layout, T: int) -> Plan:
        """The constants of LearnAggWeight for a network."""
        return Plan(
            T=T,
            t0=1,
            S=self.S,
            gamma=Shrinking(),
            optimiser=BetaOptimiser("adam", self.beta_rate),
            layers=layout.layers("trained"),
            layer_kind="trained",
            data=self.learn_on,
            mode=self.mode,
            learner=at_server if self.learning == "server" else None,
            trainable=layout.trainable,
            clip=self.clip_steps,
        )

    def asks(self, t: int, T: int, layout: Layout) -> dict[str, list[Facts]]:
        asked = super().asks(t, T, layout)
        return asked | self.plan(layout, T).asks() if self.S else asked

    def aggregate(self, at: Aggregation) -> Model:
        if not self.S:
            return at.mean
        plan, at.learned = self.plan(at.layout, at.T), True
        start = torch.cat([at.fixed.log(), torch.zeros(1, dtype=torch.float64)])
        beta = learn_agg_weight(at.federation, plan, at.t, at.w_k, start)
        found = beta[[*at.rows.tolist(), -1]]
        at.record(plan.gamma.alpha(found))
        at.memory["shrink"] = found[-1:].exp()
        return at.w_k.combine(plan.gamma.sample(found, Generator()), plan.layers)
