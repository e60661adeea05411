"""Blind learning with differential privacy: noise at the site, below the mask (decision 65)."""

from collections import Counter

import pytest
import torch

from autofedavg.algorithm import Round
from autofedavg.core.bank import Layout
from autofedavg.core.privacy import Privacy
from autofedavg.core.seeds import Seeds
from autofedavg.experiment.privacy_account import PrivacyAccount
from autofedavg.experiment.private_rows import budgets
from autofedavg.federation.port import Federation
from autofedavg.methods.auto_fedavg import AutoFedAvg
from toy import METRIC, TRAINING, DirectFleet, lose, mlp, toy_problem

THETA = Privacy(theta_clip=1.0, theta_noise=2.0)
BOTH = Privacy(theta_clip=1.0, theta_noise=2.0, train_clip=1.0, train_noise=2.0)
T = 3


def run(privacy, fleet=None, quorum=0, **settings):
    """The rounds, what each remarked, what sites have spent, and the fleet."""
    fleet = fleet or DirectFleet(toy_problem(4, mlp), privacy=privacy)
    federation = Federation(
        fleet, metric=METRIC, seeds=Seeds(7), privacy=privacy, quorum=quorum or None
    )
    w0, layout = fleet.problem.initial(Seeds(7))
    method = AutoFedAvg(**{"learning": "blind", "constraint": "softmax", "batches": 3, **settings})
    rounds, lines, spent = [], [], []
    for state in method.rounds(federation, layout, T, Round(0, w0)):
        rounds.append(state.w.values.clone())
        lines.append(federation.take_remarks()["blind"])
        spent.append(federation.take_spent())
    return rounds, lines, spent, fleet


@pytest.mark.parametrize("privacy", [THETA, BOTH], ids=["theta", "both"])
@pytest.mark.parametrize("learn_on", ["validation", "train"])
def test_what_is_spent_is_what_was_forecast(privacy, learn_on):
    _, _, spent, fleet = run(privacy, learn_on=learn_on)
    method = AutoFedAvg(learning="blind", constraint="softmax", batches=3, learn_on=learn_on)
    wanted = budgets(
        privacy, method, TRAINING, T, Layout.of(fleet.problem.network()), fleet.problem.sites
    )
    account = PrivacyAccount(privacy)
    for line in spent:
        told = account.record(line)
    assert told["epsilon"] == pytest.approx({k: b.epsilon for k, b in wanted.items()})
    steps = Counter()
    for line in spent:
        for group, _, _, count in line.get("A", ()):
            steps[group] += count
    assert steps[learn_on] >= (T - 1) * 3  # no gradient after the last round
    ledger = fleet.clients["A"].private.ledger
    assert ledger.epsilon() == pytest.approx(wanted["A"].epsilon)


def test_noise_is_on_the_gradient_and_no_loss_leaves_a_site():
    plain, lines, _, _ = run(Privacy())
    noisy, told, _, _ = run(THETA)
    assert torch.equal(noisy[0], plain[0])  # nothing is learned yet
    assert not torch.equal(noisy[1], plain[1])
    assert all("learning_loss" in line for line in lines[1:])
    assert not any("learning_loss" in line for line in told)
    assert all("loss" in line for line in told)
    _, both, _, _ = run(BOTH)
    assert not any("loss" in line for line in both)


def test_the_same_request_has_the_same_noise():
    one, other = (run(BOTH)[0] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_further_attempt_costs_a_site_nothing():
    """D is lost while gradients are summed: the others answer a second attempt."""
    fleet = DirectFleet(toy_problem(4, mlp), privacy=THETA)
    fleet.intercept = lose("D", verb="masked_gradient", t=1)
    run(THETA, fleet, quorum=3)
    whole = run(THETA)[3]
    assert len(fleet.sent("masked_gradient", "A")) > len(whole.sent("masked_gradient", "A"))
    found, wanted = (f.clients["A"].private.ledger.epsilon() for f in (fleet, whole))
    assert found == pytest.approx(wanted)


def test_judged_steps_are_post_processing():
    _, lines, spent, _ = run(BOTH, t0="auto", batches=4)
    assert not any("learning_loss" in line for line in lines)
    assert sum(count for _, _, sigma, count in spent[1]["A"] if sigma == 2.0) >= 4
