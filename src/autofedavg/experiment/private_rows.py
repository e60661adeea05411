"""Differential privacy of a row: what does not fit, and what each site will spend.

The forecast adds up what the method asks for in its rounds, as the sites' ledgers do during a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from autofedavg.core.accountant import Mechanism, composed, epsilon_of, parallel
from autofedavg.core.bank import Layout
from autofedavg.core.errors import ConfigError, DataError
from autofedavg.core.privacy import Privacy, mechanism, refuse_network
from autofedavg.core.problem import LocalData, PatientData
from autofedavg.core.trainer import Training
from autofedavg.federation.ledger import Account
from autofedavg.federation.private_steps import PRIVATE_RULES, steps_of
from autofedavg.federation.spending import WEIGHING
from autofedavg.methods.base import Method

NOT_COVERED = (
    "validation scores of every round, test scores, numbers of cases: epsilon does not cover them"
)
UNPROTECTED = (
    "no train_noise: models, blind ones in masked sums, leave without noise, and epsilon does not "
    "cover the patients that they are trained on"
)


@dataclass(frozen=True)
class Budget:
    """What a row will spend at one site.

    Attributes:
        epsilon: of the patient who is worst off.
        delta: at which it is meant.
        groups: `epsilon`, `patients` and noisy `sums` by group of patients, which share nobody.
        training: whether training is noisy, too.
        account: the releases behind it.
    """

    epsilon: float
    delta: float
    groups: Mapping[str, Mapping[str, float]]
    training: bool
    account: Account = field(repr=False)

    @property
    def plain(self) -> dict[str, Any]:
        """What people are told of it, as plain values."""
        told = ("epsilon", "delta", "groups", "training")
        return {name: getattr(self, name) for name in told}


def refuse_private(privacy: Privacy, method: Method, network: nn.Module, T: int) -> None:
    """Refuses settings that do not fit together, before any work.

    Raises:
        ConfigError: noise without effect, or a release that no noise covers.
    """
    if not privacy.on:
        return
    layout = Layout.of(network)
    asked = [method.asks(t, T, layout) for t in range(1, T + 1)]
    calls = {call for round_ in asked for call, facts in round_.items() if facts}
    trainings = [facts for round_ in asked for facts in round_.get("local_train", [])]
    wrong = []
    if privacy.theta and not calls & WEIGHING:
        wrong.append("theta_clip has no effect: the method asks sites for no step on beta")
    if calls & {"mixture_losses", "model_losses"}:
        wrong.append(
            "t0 = 'auto' judges calls by losses, which no noise covers, unless learning = 'blind'"
        )
    if any("probe" in facts for facts in trainings):
        wrong.append("the method asks for a loss before training, which no noise covers")
    if privacy.train:
        refuse_network(network, "privacy.train_clip")
        rules = {(facts.get("rule") or {}).get("name", "plain") for facts in trainings}
        wrong += [f"no noise covers the local rule {r!r}" for r in sorted(rules - {*PRIVATE_RULES})]
        if "class_counts" in calls:
            wrong.append("the method asks for training cases per class, which no noise covers")
        if method.needs_losses:
            wrong.append("the method weighs by training losses, which no noise covers")
    if wrong:
        name = getattr(method, "name", "the method")
        raise ConfigError(
            "; ".join(wrong),
            where=f"privacy, method {name}",
            remedy="use another method, or take the setting out",
        )


def budgets(
    privacy: Privacy,
    method: Method,
    training: Training,
    T: int,
    layout: Layout,
    sites: Mapping[str, LocalData],
) -> dict[str, Budget]:
    """What every site will spend in T rounds.

    Raises:
        ConfigError: a site would spend more than the row allows, or delta is too large for it.
        DataError: a site's data cannot be had patient by patient.
    """
    if not privacy.on:
        return {}
    asked = Counter(_asked(privacy, method, T, layout))
    found = {
        site: _budget(privacy, training, asked, site, data) for site, data in sorted(sites.items())
    }
    over = {site: b.epsilon for site, b in found.items() if 0 < privacy.epsilon < b.epsilon}
    if over:
        told = ", ".join(f"{site} {epsilon:.3g}" for site, epsilon in over.items())
        raise ConfigError(
            f"the row would spend more than epsilon = {privacy.epsilon:g} at delta = "
            f"{privacy.delta:g}: {told}",
            where="privacy.epsilon",
            remedy="raise the noise, or use fewer rounds or steps",
        )
    return found


def _asked(
    privacy: Privacy, method: Method, T: int, layout: Layout
) -> Iterator[tuple[str, str, int]]:
    """(kind, split, steps or passes) of every private release of T rounds."""
    for t in range(1, T + 1):
        asks = method.asks(t, T, layout)
        if privacy.train:
            for facts in asks["local_train"]:
                yield "train", "train", int(facts.get("passes", 1))
        if privacy.theta:
            for facts in (*asks.get("update_beta", ()), *asks.get("differentiate", ())):
                yield "theta", facts["data"], facts.get("steps", 1)
            for facts in asks.get("masked_gradient", ()):
                yield "theta", facts["data"], facts["batches"]


def _budget(
    privacy: Privacy,
    training: Training,
    asked: Counter[tuple[str, str, int]],
    site: str,
    data: LocalData,
) -> Budget:
    if not isinstance(data, PatientData):
        raise DataError(
            "the data cannot be had patient by patient",
            where=f"site {site}, privacy",
            remedy="use a task whose data can, or no [privacy]",
        )
    account: Account = {}
    patients: dict[str, int] = {}
    for (kind, split, count), times in asked.items():
        n, bound = data.patients(split), privacy.train if kind == "train" else privacy.theta
        if not n or bound is None or privacy.delta * n >= 1:
            raise ConfigError(
                f"delta = {privacy.delta:g} is no protection for {n} {split} patients",
                where=f"privacy.delta, site {site}",
                remedy="set it below 1/n" if n else f"give the site {split} cases",
            )
        steps = steps_of(training.changed(1.0, count, None), n) if kind == "train" else count
        group = "train" if data.shares_patients(split, "train") else split
        patients[group] = max(n, patients.get(group, 0))
        used = account.setdefault(group, Counter[Mechanism]())
        used[mechanism(bound, n, training.batch_size)] += times * steps
    groups = {
        group: {
            "epsilon": epsilon_of(composed(spent), privacy.delta),
            "patients": patients[group],
            "sums": sum(spent.values()),
        }
        for group, spent in account.items()
    }
    worst = epsilon_of(parallel(account.values()), privacy.delta)
    return Budget(worst, privacy.delta, groups, privacy.train is not None, account)


def budget_lines(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The forecast for people, from budgets as plain values."""
    lines = []
    for site, budget in found.items():
        parts = ", ".join(
            f"{group['epsilon']:.3g} for {group['patients']} {name} patients"
            f" and {group['sums']} noisy sums"
            for name, group in budget["groups"].items()
        )
        spent = f"epsilon {budget['epsilon']:.4g} at delta {budget['delta']:g}"
        lines.append(f"privacy at {site}: {spent} ({parts})")
    if not lines:
        return []
    noisy = all(budget["training"] for budget in found.values())
    return [*lines, f"privacy: {NOT_COVERED}", *([] if noisy else [f"privacy: {UNPROTECTED}"])]
