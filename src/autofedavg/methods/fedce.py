"""FedCE: sites that add what others lack weigh more (Jiang et al. 2023).

A site's contribution has two parts. One is how far its update points away from the others'. The
other is how badly the model without it, (w - a_k w_k) / (1 - a_k), does on its validation cases.
The server has all w_k, so it forms these models itself, and clients keep nothing.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from autofedavg.core.bank import Layout, Model
from autofedavg.core.settings import setting
from autofedavg.core.site import Facts
from autofedavg.core.trainer import Training
from autofedavg.methods.averaging import Aggregation, AveragingMethod
from autofedavg.methods.base import About, even_weights
from autofedavg.methods.shared.simplex import present, replaced, shares

LEAST = 1e-6  # of a contribution


class FedCE(AveragingMethod):
    """a_k ~ norm(1 - mean_t cos(Delta_k, others)) + norm(1 - mean_t score of the model without k).

    The means are over all rounds so far. The score is the study's metric, which lies in 0 .. 1.
    """

    name: Literal["fedce"] = "fedce"
    about: ClassVar[About] = About(
        family="weights from losses and counts",
        paper="Jiang et al. 2023, CVPR",
        rule="a_k ~ norm(1 - mean cos(Delta_k, sum_{j != k} a_j Delta_j)) + norm(1 - mean score)",
        fedavg="where all sites are alike (even weights), and with one site",
        use="sites differ; with a bad site results were mixed",
        needs="validation cases at every site, and one more model down a round",
        keeps="server 5 K numbers",
    )
    combine: Literal["plus", "times"] = setting(
        "plus", origin="derived from the method's code", help="sum or product of the two parts"
    )

    @property
    def learns_on(self) -> str:
        return "validation"

    def cautions(self, sites: int) -> list[str]:
        return ["A bad site differs from the others, so it gains weight."]

    def equals_fedavg(self, sites: int, layout: Layout, training: Training) -> str:
        return "one site has all the weight" if sites == 1 else ""

    def asks(self, t: int, T: int, layout: Layout) -> dict[str, list[Facts]]:
        return super().asks(t, T, layout) | {"evaluate": [{}, {}]}

    def aggregate(self, at: Aggregation) -> Model:
        weights = at.memory.setdefault("weights", even_weights(at.federation))
        _add(at, "cosines", at.rows, _cosines(at.gram().deltas, present(weights, at.rows)))
        parts = [_contribution(at, "cosines"), _contribution(at, "scores")]
        joined = parts[0] + parts[1] if self.combine == "plus" else parts[0] * parts[1]
        new = shares(joined.clamp(min=LEAST))
        at.memory["weights"] = replaced(weights, at.rows, new)
        return at.weighted(new)

    def after(self, at: Aggregation, w: Model) -> None:
        if len(at.w_k.sites) == 1:
            return  # nothing is left without it
        others = _others(present(at.memory["weights"], at.rows))
        models = {
            name: at.w_k.combine(shares(row))
            for name, row in zip(at.w_k.sites, others, strict=True)
        }
        metric = at.federation.metric
        found = at.federation.evaluate(models, "validation", metric, t=at.t).by_site(metric)
        rows = torch.tensor(at.federation.rows(list(found)))
        _add(at, "scores", rows, torch.tensor(list(found.values()), dtype=torch.float64))


def _others(weights: Tensor) -> Tensor:
    """(K', K'): in row k the weights of all but k."""
    return weights.repeat(len(weights), 1).fill_diagonal_(0)


def _cosines(gram: Tensor, weights: Tensor) -> Tensor:
    """cos(Delta_k, sum_{j != k} a_j Delta_j), (K',); 0 where one of them is 0."""
    others = _others(weights)
    inner = (others * gram).sum(1)
    squares = ((others @ gram) * others).sum(1) * gram.diagonal()
    return (inner / squares.clamp(min=1e-300).sqrt()).clamp(-1, 1)


def _add(at: Aggregation, key: str, rows: Tensor, values: Tensor) -> None:
    """Adds a value to the sums of some clients, and one to their counts; (2, K) in the memory."""
    kept = at.memory.get(key)
    kept = torch.zeros(2, at.federation.K, dtype=torch.float64) if kept is None else kept
    at.memory[key] = kept.index_add(1, rows, torch.stack([values, torch.ones_like(values)]))


def _contribution(at: Aggregation, key: str) -> Tensor:
    """norm(1 - mean), (K',); clients without a value have the others' mean."""
    totals, counts = at.memory.get(key, torch.zeros(2, at.federation.K, dtype=torch.float64))
    mean = totals.sum() / counts.sum().clamp(min=1)
    means = torch.where(counts > 0, totals / counts.clamp(min=1), mean)
    return shares((1 - means[at.rows]).clamp(min=LEAST))
