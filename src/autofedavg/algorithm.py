"""Algorithm 1 of the paper, in the paper's letters. Read it next to the page.

| the paper             | here                                                     |
| --------------------- | -------------------------------------------------------- |
| Server executes       | `auto_fedavg`                                            |
| LearnAggWeight        | `learn_agg_weight` (server), `update_beta` (client k)    |
| LocalTrain            | `local_train` (client k)                                 |
| for k in parallel     | one call of the federation                               |
| w_1 .. w_K            | `w_k`, the rows of one (K, D) bank                       |
| gamma: beta -> alpha  | `plan.gamma`: `constraints.Softmax` or `Dirichlet`       |
| sum_k alpha_k w_k     | `w_k.combine(alpha)`; while learning: `Mixture`          |
| beta^{s,k}            | `theta_k` (beta itself, but for `softplus`: constraints) |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from autofedavg.core.bank import Bank, Model
from autofedavg.core.local_rules import LocalRule, LocalWork
from autofedavg.core.mixture import Mixture
from autofedavg.core.plan import Plan, Update
from autofedavg.core.site import Facts
from autofedavg.core.trainer import Batch, LocalTrainer

if TYPE_CHECKING:
    from autofedavg.federation.port import Federation


@dataclass(frozen=True)
class Round:
    """The state after round t: all that is needed to continue from it."""

    t: int
    w: Model | Bank  # a bank where there is no global model: every client continues from its own
    beta: Tensor | None = None
    alpha: Tensor | None = None
    w_k: Bank | None = None  # a view of the engine's memory, valid until the next round
    losses: Mapping[str, float] = field(default_factory=dict)
    learned: bool = False
    together: bool = False  # the bank is one predictor: the mean of its members' softmax outputs
    memory: dict[str, Tensor] = field(default_factory=dict)  # further state of the method
    personal: LocalRule | None = None  # whose personal predictors the sites have


def auto_fedavg(federation: Federation, plan: Plan, start: Round) -> Iterator[Round]:
    """Server executes: T rounds, learning the weights every t0; yields the state after each."""
    w, calls = start.w, plan.calls(federation, start.memory)
    beta0 = plan.initial(federation.sites)
    beta = beta0 if start.beta is None else start.beta
    for t in range(start.t + 1, plan.T + 1):
        trained = federation.local_train(t, w, T=plan.T)
        w_k = trained.w_k
        if learn := calls.due(t):  # t mod t0 = 0
            new = learn_agg_weight(federation, plan, t, w_k, beta0 if plan.reinitialise else beta)
            beta = calls.kept(t, w_k, beta, new)
        alpha = plan.gamma.alpha(beta)
        w = federation.as_sent(w_k.combine(among(alpha, federation, w_k), plan.layers))
        yield Round(t, w, beta, alpha, w_k, trained.losses, learn, memory=calls.memory)


def learn_agg_weight(federation: Federation, plan: Plan, t: int, w_k: Bank, beta: Tensor) -> Tensor:
    """LearnAggWeight(w_1 .. w_K, beta^0): S steps on beta, averaged over the clients after each."""
    update = (plan.learner or at_clients)(federation, plan, t, w_k)
    step = plan.server_optimiser().start()
    present = [*federation.rows(w_k.sites), *range(federation.K, len(beta))]  # FedLAW's g is last
    beta_s = beta[present]
    for s in plan.steps:
        theta, theta_k = plan.gamma.free(beta_s), update(s, beta_s)
        average = plan.average(federation.clip(t, s, theta, theta_k, plan.clip), federation.sites)
        before, beta_s = beta_s, plan.gamma.beta(step(theta, average))
        for row, site in enumerate(w_k.sites):
            if site not in theta_k:  # it missed this step: its own entry is left alone
                beta_s[row] = before[row]
    return beta.index_copy(0, torch.tensor(present), beta_s)


def at_clients(federation: Federation, plan: Plan, t: int, w_k: Bank) -> Update:
    """Every client gets the K-1 models of the others, and takes its steps on beta itself."""
    federation.share_models(t, w_k)
    return lambda s, beta: federation.update_beta(t, s, beta, **plan.message(s))


def among(alpha: Tensor, federation: Federation, w_k: Bank) -> Tensor:
    """Alpha of the clients that replied, normalised to sum to one again if some did not."""
    kept = alpha[federation.rows(w_k.sites)]
    return kept if len(w_k.sites) == federation.K else kept / kept.sum(dim=0, keepdim=True)


def local_train(network: LocalTrainer, rule: LocalRule, work: LocalWork) -> tuple[Model, Tensor]:
    """LocalTrain(k, w) at client k: M_k steps. Returns w_k, in the network's memory, and losses."""
    network.load(work.start)
    losses = rule.train(network, work)
    return network.state(), losses


def update_beta(
    network: LocalTrainer, w_k: Bank, beta: Tensor, x: Batch, how: Facts, seed: int
) -> tuple[Tensor, Tensor]:
    """One step on beta at client k, from a mini-batch x of its own: (theta^{s,k}, loss)."""
    mixture = Mixture.asked(w_k, beta, how, network.layout, seed)
    gradient, loss = network.differentiate(mixture.w, x, how["mode"])
    return mixture.step(gradient, how["rate"], how["smoothing"]), loss
