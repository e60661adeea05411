"""FedBN: normalisation layers stay at the sites (Li et al. 2021)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from autofedavg.core.bank import Layout, Model
from autofedavg.core.local_rules import Kept, LocalRule, LocalWork
from autofedavg.core.trainer import LocalTrainer, Training
from autofedavg.federation.local_training import LocalRequest
from autofedavg.methods.averaging import AveragingMethod
from autofedavg.methods.base import About


class OwnNormalisation(LocalRule):
    """Training from w with the site's own parameters and statistics of normalisation layers."""

    name: Literal["fedbn"] = "fedbn"
    keeps: ClassVar[bool] = True

    def train(self, network: LocalTrainer, work: LocalWork) -> Tensor:
        layout = network.layout
        if work.kept is not None:
            network.load(self.predictor(layout, work.start, work.kept))
        losses = network.train(work.batches(), work.rate)
        trained = network.state()
        own = [trained.values[start:stop] for start, stop in layout.normalisation]
        entries = torch.cat(own) if own else trained.values[:0]
        work.keep = {"entries": entries, "counters": trained.counters}
        return losses

    def predictor(self, layout: Layout, w: Model, kept: Kept) -> Model:
        if not layout.normalisation:
            return w
        values, at = w.values.clone(), 0
        for start, stop in layout.normalisation:
            values[start:stop] = kept["entries"][at : at + stop - start]
            at += stop - start
        return Model(values, kept["counters"].to(w.counters))


class FedBN(AveragingMethod):
    """w is the average of all of w_k; a site predicts with w and its own normalisation layers."""

    name: Literal["fedbn"] = "fedbn"
    about: ClassVar[About] = About(
        family="personal",
        paper="Li et al. 2021, ICLR",
        rule="w by FedAvg; site k trains and predicts with its own normalisation layers in w",
        fedavg="where the network has no normalisation layer with numbers of its own",
        use="sites differ in their images: scanners, protocols, contrast",
        needs="normalisation layers with parameters or statistics",
        keeps="site: its normalisation layers",
    )

    def equals_fedavg(self, sites: int, layout: Layout, training: Training) -> str:
        if layout.normalisation:
            return ""
        return "the network has no normalisation layer with numbers that could stay at a site"

    def local(self, layout: Layout) -> LocalRequest:
        return LocalRequest(OwnNormalisation())
