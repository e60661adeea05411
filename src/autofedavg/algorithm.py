"""Algorithm 1 of the paper, in the paper's letters. Read it beside the page.

| the paper             | here                                                     |
| --------------------- | -------------------------------------------------------- |
| Server executes       | `auto_fedavg`                                            |
| LearnAggWeight        | `learn_agg_weight` (server), `update_beta` (client k)    |
| LocalTrain            | `local_train` (client k)                                 |
| for k in parallel     | one call of the federation                               |
| w_1 .. w_K            | `w_k`, the rows of one (K, D) bank                       |
| gamma: beta -> alpha  | `plan.gamma`: `constraints.Softmax` or `Dirichlet`       |
| sum_k alpha_k w_k     | `w_k.combine(alpha)`                                     |
| beta^{s,k}            | `theta_k` (beta itself, but for `softplus`: constraints) |

The server half is a generator: it knows nothing of logs, validation, checkpoints or early stops,
which belong to whoever iterates. FedAvg is the same loop without the third step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from autofedavg.averaging import Bank, LayerKind, Layers, Model
from autofedavg.beta_optimiser import BetaOptimiser
from autofedavg.constraints import Constraint, constraint, smoothing
from autofedavg.federation import Federation
from autofedavg.notes import Facts
from autofedavg.workbench import Batch, Workbench


@dataclass(frozen=True)
class Plan:
    """The constants of Algorithm 1; `layers` is given for layer-wise weights."""

    T: int
    t0: int
    S: int
    gamma: Constraint
    optimiser: BetaOptimiser
    layers: Layers | None = None
    layer_kind: LayerKind = "module"
    reinitialise: bool = False
    smoothing: float = 0.0
    data: Literal["validation", "train", "holdout"] = "validation"
    mode: Literal["eval", "train"] = "eval"

    def for_clients(self) -> Facts:
        """What a client must know to take a step on beta."""
        facts = {"gamma": self.gamma.note(), "rate": self.optimiser.client_rate}
        facts |= {"layers": self.layer_kind if self.layers else None, "mode": self.mode}
        return facts | {"smoothing": self.smoothing, "data": self.data}


@dataclass(frozen=True)
class Round:
    """The state after round t: all that is needed to go on from it."""

    t: int
    w: Model | Bank  # a bank where there is no global model: every client goes on from its own
    beta: Tensor | None = None
    alpha: Tensor | None = None
    w_k: Bank | None = None  # a view of the engine's memory: good until the next round
    losses: dict[str, float] = field(default_factory=dict)
    learned: bool = False
    together: bool = False  # the bank is one predictor: the mean of its members' softmax outputs
    memory: dict[str, Tensor] = field(default_factory=dict)  # what else the method goes on from


def auto_fedavg(federation: Federation, plan: Plan, start: Round) -> Iterator[Round]:
    """Server executes: T rounds of training, learning the weights every t0 rounds."""
    w = start.w
    beta0 = plan.gamma.initial(federation.K, plan.layers.P if plan.layers else None)
    beta = beta0 if start.beta is None else start.beta
    alpha = plan.gamma.alpha(beta)
    for t in range(start.t + 1, plan.T + 1):
        w_k, losses = federation.local_train(t, w, T=plan.T)
        learn = t % plan.t0 == 0
        if learn:
            known = beta0 if plan.reinitialise else beta
            beta = learn_agg_weight(federation, plan, t, w_k, known)
            alpha = plan.gamma.alpha(beta)
        w = w_k.combine(among(alpha, federation, w_k), plan.layers)
        yield Round(t, w, beta, alpha, w_k, losses, learn)


def learn_agg_weight(federation: Federation, plan: Plan, t: int, w_k: Bank, beta: Tensor) -> Tensor:
    """LearnAggWeight(w_1 .. w_K, beta^0): S steps on beta, averaged over the clients after each."""
    federation.share_models(t, w_k)
    step = plan.optimiser.start()
    present = federation.rows(w_k.sites)
    beta_s = beta[present]
    for s in range(1, plan.S + 1):
        theta_k = federation.update_beta(t, s, beta_s, **plan.for_clients())
        average = torch.stack(list(theta_k.values())).mean(dim=0)
        stepped = plan.gamma.beta(step(plan.gamma.free(beta_s), average))
        # Algorithm 1, but for a client that missed this step: its own entry is left alone.
        answered = [row for row, site in enumerate(w_k.sites) if site in theta_k]
        beta_s = beta_s.index_copy(0, torch.tensor(answered), stepped[answered])
    return beta.index_copy(0, torch.tensor(present), beta_s)


def fed_avg(
    federation: Federation, alpha: Tensor, T: int, start: Round, mu: float = 0.0
) -> Iterator[Round]:
    """The same loop with fixed weights alpha; with mu > 0, FedProx's local term."""
    w = start.w
    for t in range(start.t + 1, T + 1):
        w_k, losses = federation.local_train(t, w, T=T, mu=mu)
        w = w_k.combine(among(alpha, federation, w_k))
        yield Round(t, w, None, alpha, w_k, losses)


def among(alpha: Tensor, federation: Federation, w_k: Bank) -> Tensor:
    """Alpha of the clients that answered, summing to one again if some did not."""
    kept = alpha[federation.rows(w_k.sites)]
    return kept if len(w_k.sites) == federation.K else kept / kept.sum(dim=0, keepdim=True)


def local_train(
    network: Workbench, w: Model, batches: Iterable[Batch], rate: float, mu: float = 0.0
) -> tuple[Model, Tensor]:
    """LocalTrain(k, w) at client k: M_k steps from w. Returns w_k and the loss of every step."""
    network.load(w)
    losses = network.train(batches, rate, mu)
    return network.model(), losses


def update_beta(
    network: Workbench, w_k: Bank, beta: Tensor, x: Batch, how: Facts, seed: int
) -> tuple[Tensor, Tensor]:
    """One step on beta at client k, from a mini-batch x of its own: (theta^{s,k}, loss).

    dL/dalpha_k = <grad L(w), w_k>, so one forward and one backward of one network give the
    gradient whatever K is (decision 12); gamma's own derivative is left to autograd.
    """
    gamma = constraint(how["gamma"])
    layers = network.layout.layers(how["layers"]) if how["layers"] else None
    theta = gamma.free(beta).requires_grad_()
    alpha = gamma.sample(gamma.beta(theta), seed)
    gradient, loss = network.differentiate(w_k.combine(alpha, layers), x, how["mode"])
    objective = (alpha * w_k.project(gradient, layers)).sum()
    if layers is not None and how["smoothing"]:
        objective = objective + how["smoothing"] * smoothing(gamma.mean(gamma.beta(theta)))
    (slope,) = torch.autograd.grad(objective, theta)
    return theta.detach() - how["rate"] * slope, loss
