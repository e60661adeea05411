"""FLTrust: updates are trusted as far as they agree with the server's own (Cao et al. 2021)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch

from autofedavg.core.bank import Bank, Model
from autofedavg.core.problem import SERVER
from autofedavg.methods.averaging import Aggregation, AveragingMethod
from autofedavg.methods.base import About
from autofedavg.methods.shared.distillation import proxy_of


class FLTrust(AveragingMethod):
    """w + sum_k t_k (||Delta_0|| / ||Delta_k||) Delta_k / sum_k t_k, t_k = max(0, cos)."""

    name: Literal["fltrust"] = "fltrust"
    needs_proxy: ClassVar[bool] = True
    about: ClassVar[About] = About(
        family="server data",
        paper="Cao et al. 2021, NDSS",
        rule="w = w + sum_k t_k (|Delta_0|/|Delta_k|) Delta_k / sum_k t_k, t_k = max(0, cos to "
        "Delta_0), which the server trains on its own cases",
        fedavg="where all updates equal the server's",
        use="a site may be bad, and the server has labelled cases that are good",
        needs="labelled cases at the server, which trains once a round",
    )

    def aggregate(self, at: Aggregation) -> Model:
        """A site that is not trusted has no part in buffers either; if none is, w stays."""
        own = proxy_of(at).train(at.t, at.T, at.w)
        values = torch.cat([at.w_k.values, own.values.to(at.w_k.values)[None]])
        both = Bank((*at.w_k.sites, SERVER), values, at.w_k.counters)
        found = both.gram(at.w, at.layout.trainable)
        lengths = found.norms.clamp(min=torch.finfo(torch.float64).tiny)
        trust = (found.deltas[-1, :-1] / lengths[:-1] / lengths[-1]).clamp(min=0)
        if not bool(trust.sum() > 0):
            at.alpha = None
            return at.w
        share = trust / trust.sum()
        merged = at.weighted(share)  # for its buffers
        end = at.layout.trainable
        scale = share * lengths[-1] / lengths[:-1]
        w = at.w.values[:end].to(merged.values)
        moved = at.w_k.combine(scale).values[:end] - scale.sum().to(w) * w
        merged.values[:end] = w + moved
        return merged
