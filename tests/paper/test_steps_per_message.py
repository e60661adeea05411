"""Several steps on beta a message, for fewer messages: the paper's future work (Sec. 5).

Decision 33: a client takes m steps of the row's optimiser by itself, each with the batch and the
sample it has with m = 1, keeping beta legal in between; the server averages theta and does no more.
"""

from math import ceil, exp

import pytest
import torch

from autofedavg import algorithm
from autofedavg.core.beta_optimiser import BetaOptimiser
from autofedavg.core.constraints import Dirichlet, Softmax
from autofedavg.core.seeds import Purpose, Seeds
from autofedavg.core.trainer import Training
from autofedavg.federation.messages import Message
from autofedavg.methods.auto_fedavg import AutoFedAvg
from toy import (
    DirectFleet,
    PointSite,
    ToySite,
    bank_of,
    float64,
    make_client,
    mlp,
    norm_net,
    point_problem,
    rounds_of,
    same_round,
    toy_problem,
)

TARGET = {"A": 2.0, "B": -4.0}
VALIDATION = {"A": 1.25, "B": -0.25}
RATE, S = 0.32, 5
W_K = {"A": 1.0, "B": -2.0}  # one local step from 0, half the way to each target


def one_round(m, **settings):
    """LearnAggWeight on two points and one weight, as in the trace of Algorithm 1."""
    sites = {k: PointSite((TARGET[k],), (VALIDATION[k],)) for k in "AB"}
    training = Training(iterations=1, optimiser="sgd", learning_rate=0.5, momentum=0.0)
    method = AutoFedAvg(constraint="softmax", S=S, beta_rate=RATE, steps_per_message=m, **settings)
    transport = DirectFleet(point_problem((0.0,), sites), training)
    (only,) = rounds_of(method, transport, 1)
    assert only.w_k.values.flatten().tolist() == list(W_K.values())
    return only.beta.tolist(), transport


def softmax(beta):
    total = sum(exp(b) for b in beta.values())
    return {k: exp(b) / total for k, b in beta.items()}


def slope_of(k, beta):
    """dL_k/dbeta in plain numbers."""
    mixing = softmax(beta)
    mixed = sum(mixing[j] * W_K[j] for j in "AB")
    g = {j: (mixed - VALIDATION[k]) * W_K[j] for j in "AB"}
    mean = sum(mixing[j] * g[j] for j in "AB")
    return {j: mixing[j] * (g[j] - mean) for j in "AB"}


@pytest.mark.parametrize("m", [1, 2, 3, 5])
def test_plain_steps_in_plain_numbers(m):
    beta, left = {"A": 0.0, "B": 0.0}, S
    while left:
        ends = []
        for k in "AB":
            own = dict(beta)
            for _ in range(min(m, left)):
                slope = slope_of(k, own)
                own = {j: own[j] - RATE * slope[j] for j in "AB"}
            ends.append(own)
        beta = {j: (ends[0][j] + ends[1][j]) / 2 for j in "AB"}
        left -= min(m, left)
    found, transport = one_round(m, beta_optimiser="sgd")
    assert found == pytest.approx([beta["A"], beta["B"]], abs=1e-14)
    assert len(transport.sent("update_beta", "A")) == ceil(S / m)


@pytest.mark.parametrize("m", [2, 3, 5])
def test_adam_is_the_client_s_own_and_fresh_in_every_message(m):
    beta = float64([0.0, 0.0])
    for first in range(0, S, m):
        ends = []
        for k in "AB":
            own = beta.clone().requires_grad_()
            adam = torch.optim.Adam([own], lr=RATE, betas=(0.5, 0.999))
            for _ in range(min(m, S - first)):
                slope = slope_of(k, dict(zip("AB", own.tolist(), strict=True)))
                own.grad = float64([slope["A"], slope["B"]])
                adam.step()
            ends.append(own.detach())
        beta = (ends[0] + ends[1]) / 2
    found, _ = one_round(m, beta_optimiser="adam")
    assert found == pytest.approx(beta.tolist(), abs=1e-14)


def test_adam_at_the_server_is_another_algorithm():
    """With one step a message Adam sees the mean gradient; with more, each client's own."""
    assert one_round(1)[0] != pytest.approx(one_round(2)[0], abs=1e-3)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_one_step_a_message_says_nothing_that_was_not_said_before(optimiser):
    """The messages of Algorithm 1 to the letter: the same bytes, the same bits."""
    _, transport = one_round(1, beta_optimiser=optimiser)
    for s, message in enumerate(transport.sent("update_beta", "A"), start=1):
        assert set(message.arrays) == {"beta"}
        assert message.facts["s"] == s
        known = {"t", "s", "digest", "gamma", "rate", "layers", "mode", "smoothing", "data"}
        assert set(message.facts) == known


@pytest.mark.parametrize("weights", ["network", "layer"])
@pytest.mark.parametrize("constraint", ["softmax", "dirichlet"])
def test_a_whole_call_in_one_message(weights, constraint):
    method = AutoFedAvg(weights=weights, constraint=constraint, S=4, steps_per_message=4)
    transport = DirectFleet(toy_problem(3, norm_net))
    rounds = rounds_of(method, transport, 2)
    assert [message.facts["steps"] for message in transport.sent("update_beta", "B")] == [4, 4]
    assert not torch.equal(
        rounds[-1].alpha, method.gamma().alpha(torch.full_like(rounds[-1].beta, 6))
    )


@pytest.mark.parametrize("m", [1, 2, 5])
def test_every_step_has_the_batch_and_the_sample_it_has_alone(m):
    """By (seed, site, t, s): how steps are packed into messages changes no draw."""
    drawn = set()

    class Watched(Seeds):
        def number(self, client, purpose, t=0, s=0):
            if purpose in (Purpose.ALPHA, Purpose.AGGREGATE_BATCHES, Purpose.NETWORK) and s:
                drawn.add((client, purpose, t, s))
            return super().number(client, purpose, t, s)

    method = AutoFedAvg(S=S, steps_per_message=m)
    rounds_of(method, DirectFleet(toy_problem(2, norm_net), seeds=Watched(7)), 2)
    kinds = (Purpose.ALPHA, Purpose.AGGREGATE_BATCHES, Purpose.NETWORK)
    assert drawn == {(k, p, t, s) for k in "AB" for p in kinds for t in (1, 2) for s in range(1, 6)}


def one_message(monkeypatch, move, beta, s, how):
    """Client A's answer where every step is `move`, and the (s, beta) that its steps began at."""
    client, seen = make_client(toy_problem(2), "A"), []
    client.client_state.keep_bank(bank_of(mlp, 2)[0], "both")
    step_of = {client.seeds.number("A", Purpose.ALPHA, 1, at): at for at in range(1, 9)}

    def update_beta(network, w_k, beta, x, how, seed):
        seen.append((step_of[seed], beta))
        return move(beta), torch.tensor(0.5)

    monkeypatch.setattr(algorithm, "update_beta", update_beta)
    facts = {"t": 1, "s": s, "digest": "both", "data": "validation", "mode": "eval"}
    answer = client.answer("update_beta", Message({"beta": float64(beta)}, facts | how))
    return answer.arrays["theta"], seen


@pytest.mark.parametrize("keep", ["floor", "softplus"])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_beta_is_kept_legal_between_the_steps_of_a_message(monkeypatch, keep, kind):
    """Steps that would throw beta below 1, where Eq. 6 is no mode and the Dirichlet may not be."""
    gamma = Dirichlet(keep_above_one=keep)
    how = {"gamma": gamma.note(), "steps": 3, "optimiser": BetaOptimiser(kind, 20.0).note()}
    away = float64([40.0, -1.0])
    theta, seen = one_message(monkeypatch, lambda beta: gamma.free(beta) - away, [6.0, 6.0], 4, how)
    assert [s for s, _ in seen] == [4, 5, 6]
    assert torch.equal(seen[0][1], float64([6.0, 6.0]))
    assert all(bool((beta >= 1.001).all()) for _, beta in seen)
    assert seen[1][1][0] == pytest.approx(1.001)
    assert theta[0] < 1.001  # averaged as it is, and made legal by the server after that


def test_a_short_last_message_of_plain_steps_is_that_of_algorithm_1(monkeypatch):
    """With sgd a message of one step is the same for every m: only its packing is said."""
    plain = {"gamma": Softmax().note(), "rate": 0.3}
    packed = plain | {"steps": 1, "optimiser": BetaOptimiser("sgd", 0.3).note()}
    away = 0.3 * float64([1.0, -2.0])
    one, other = (
        one_message(monkeypatch, lambda beta: beta - away, [0.5, 0.1], 3, how)[0]
        for how in (plain, packed)
    )
    assert torch.equal(one, other)
    assert torch.equal(one, float64([0.5, 0.1]) - away)


def test_batches_that_ask_for_nothing_new_are_not_read_twice():
    """One batch a step, however steps are packed."""
    read = []

    class Counted(ToySite):
        def weight_batch(self, seeds, t, s, split, batch_size):
            read.append((self.name, t, s))
            return super().weight_batch(seeds, t, s, split, batch_size)

    problem = toy_problem(2, norm_net)
    for name, site in problem.sites.items():
        problem.sites[name] = Counted(name, site.splits)
    rounds_of(AutoFedAvg(S=5, steps_per_message=2), DirectFleet(problem), 1)
    assert sorted(read) == [(k, 1, s) for k in "AB" for s in range(1, 6)]


def test_the_setting_left_out_is_one():
    problem = toy_problem(3, norm_net)
    left_out = rounds_of(AutoFedAvg(S=3), DirectFleet(problem), 2)
    said = rounds_of(AutoFedAvg(S=3, steps_per_message=1), DirectFleet(problem), 2)
    assert all(map(same_round, left_out, said))
