"""Geometric median: RFA's smoothed Weiszfeld iteration (Pillutla et al. 2022)."""

from __future__ import annotations

from typing import ClassVar, Literal

from autofedavg.core.bank import Layout, Model
from autofedavg.core.settings import setting
from autofedavg.core.trainer import Training
from autofedavg.methods.averaging import Aggregation, AveragingMethod
from autofedavg.methods.base import About

TOLERANCE = 1e-6  # relative change of the sum of distances at which RFA's code stops


class GeometricMedian(AveragingMethod):
    """v minimises sum_k p_k ||v - Delta_k||, by a few steps q_k ~ p_k / ||v - Delta_k||."""

    name: Literal["geometric-median"] = "geometric-median"
    about: ClassVar[About] = About(
        family="robust",
        paper="Pillutla et al. 2022, IEEE TSP (RFA)",
        rule="w = sum_k q_k w_k, q_k ~ p_k / max(epsilon, ||w_k - v||), repeated from v = w_bar",
        fedavg="iterations = 0, or all models equally far from their mean",
        use="a site may be bad, and those with less than half of the cases are",
    )
    iterations: int = setting(
        4, origin="derived from the method's code", help="Weiszfeld steps; 0 is FedAvg", ge=0
    )
    epsilon: float = setting(
        1e-5,
        origin="derived from the method's code",
        help="smallest distance that counts",
        gt=0,
        allow_inf_nan=False,
    )

    def equals_fedavg(self, sites: int, layout: Layout, training: Training) -> str:
        if sites == 1:
            return "the median of one model is the model"
        return "" if self.iterations else "iterations = 0 takes no step"

    def aggregate(self, at: Aggregation) -> Model:
        gram, q = at.gram(), at.p
        far = gram.distances(q)
        for _ in range(self.iterations):
            if float(far.max()) <= self.epsilon:  # they all count as equally far
                break
            before = at.p @ far
            q = at.p / far.clamp(min=self.epsilon)
            q = q / q.sum()
            far = gram.distances(q)
            after = at.p @ far
            if float((before - after).abs()) <= TOLERANCE * float(after):
                break
        return at.weighted(q)
