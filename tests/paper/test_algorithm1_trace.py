"""Algorithm 1 worked out in plain numbers: two clients, one weight, t0 = 2, S = 2, softmax.

Client A pulls w towards 2, client B towards -4; one local step goes half the way. A learns the
weights on the point 1.25, B on -0.25. With one weight, dL_k/dalpha_j = (w - v_k) w_j.

The softmax draws nothing, so the trace is the same whoever takes the steps (decision 34).
"""

from math import exp

import pytest
import torch

from autofedavg.core.trainer import Training
from autofedavg.methods.auto_fedavg import AutoFedAvg
from toy import DirectFleet, PointSite, point_problem, rounds_of

TARGET = {"A": 2.0, "B": -4.0}
VALIDATION = {"A": 1.25, "B": -0.25}
RATE = 0.32
T, T0, S = 6, 2, 2


@pytest.fixture(scope="module", params=["clients", "server"])
def rounds(request):
    sites = {k: PointSite((TARGET[k],), (VALIDATION[k],)) for k in "AB"}
    training = Training(iterations=1, optimiser="sgd", learning_rate=0.5, momentum=0.0)
    method = AutoFedAvg(
        constraint="softmax",
        t0=T0,
        S=S,
        beta_optimiser="sgd",
        beta_rate=RATE,
        beta0=0.0,
        learning=request.param,
    )
    return rounds_of(method, DirectFleet(point_problem((0.0,), sites), training), T)


def numbers(round):
    return round.w.values.item(), round.beta.tolist(), round.alpha.tolist()


def test_round_one_is_an_even_average(rounds):
    # w_A = 0 + 0.5 (2 - 0) = 1, w_B = -2, alpha = (1/2, 1/2)
    assert rounds[0].w_k.values.flatten().tolist() == [1.0, -2.0]
    assert numbers(rounds[0]) == (-0.5, [0.0, 0.0], [0.5, 0.5])
    assert not rounds[0].learned


def test_round_two_learns(rounds):
    # w_A = -0.5 + 0.5 (2 + 0.5) = 0.75, w_B = -0.5 + 0.5 (-4 + 0.5) = -2.25
    # s = 1: w = -0.75; softmax gives dL/dbeta_A = alpha_A alpha_B (g_A - g_B), and -that for B
    #   A: w - v = -2.0, g = (-1.5, 4.5),     slope = 0.25 (-6.0) = -1.5
    #   B: w - v = -0.5, g = (-0.375, 1.125), slope = 0.25 (-1.5) = -0.375
    #   beta_A = 0 - 0.32 (-0.9375) = 0.3, beta_B = -0.3
    alpha = 1 / (1 + exp(-0.6))
    w = alpha * 0.75 - (1 - alpha) * 2.25
    slope_a = alpha * (1 - alpha) * (w - 1.25) * 3.0
    slope_b = alpha * (1 - alpha) * (w + 0.25) * 3.0
    beta = 0.3 - 0.32 * (slope_a + slope_b) / 2
    alpha = 1 / (1 + exp(-2 * beta))
    found_w, found_beta, found_alpha = numbers(rounds[1])
    assert rounds[1].w_k.values.flatten().tolist() == [0.75, -2.25]
    assert found_beta == pytest.approx([beta, -beta], abs=1e-14)
    assert found_alpha == pytest.approx([alpha, 1 - alpha], abs=1e-14)
    assert found_w == pytest.approx(alpha * 0.75 - (1 - alpha) * 2.25, abs=1e-14)
    assert rounds[1].learned


def test_round_three_keeps_alpha(rounds):
    w, _, alpha = numbers(rounds[1])
    assert numbers(rounds[2])[1:] == numbers(rounds[1])[1:]
    assert not rounds[2].learned
    w_a, w_b = w + 0.5 * (2 - w), w + 0.5 * (-4 - w)
    assert numbers(rounds[2])[0] == pytest.approx(alpha[0] * w_a + alpha[1] * w_b, abs=1e-14)


def test_every_round_is_algorithm_1_in_plain_numbers(rounds):
    w, beta = 0.0, {"A": 0.0, "B": 0.0}
    alpha = {"A": 0.5, "B": 0.5}
    for t in range(1, T + 1):
        w_k = {k: w - 0.5 * (w - TARGET[k]) for k in "AB"}
        if t % T0 == 0:
            for _ in range(S):
                mixing = softmax(beta)
                mixed = sum(mixing[k] * w_k[k] for k in "AB")
                sent_back = []
                for k in "AB":
                    g = {j: (mixed - VALIDATION[k]) * w_k[j] for j in "AB"}
                    mean = sum(mixing[j] * g[j] for j in "AB")
                    stepped = {j: beta[j] - RATE * mixing[j] * (g[j] - mean) for j in "AB"}
                    sent_back.append(stepped)
                beta = {j: (sent_back[0][j] + sent_back[1][j]) / 2 for j in "AB"}
            alpha = softmax(beta)
        w = alpha["A"] * w_k["A"] + alpha["B"] * w_k["B"]
        found_w, found_beta, found_alpha = numbers(rounds[t - 1])
        assert found_w == pytest.approx(w, abs=1e-13)
        assert found_beta == pytest.approx([beta["A"], beta["B"]], abs=1e-13)
        assert found_alpha == pytest.approx([alpha["A"], alpha["B"]], abs=1e-13)
        assert rounds[t - 1].learned == (t % T0 == 0)


def test_learning_moves_w_towards_the_validation_points(rounds):
    """Both points lie above the even average: A, the upper client, must gain."""
    assert rounds[-1].alpha[0] > rounds[1].alpha[0] > 0.5
    assert torch.equal(rounds[0].alpha, torch.full((2,), 0.5, dtype=torch.float64))


def softmax(beta):
    total = sum(exp(b) for b in beta.values())
    return {k: exp(b) / total for k, b in beta.items()}
