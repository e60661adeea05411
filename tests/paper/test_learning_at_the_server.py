"""Learned at the server, beta is the paper's for one shared sample of alpha (decision 34).

`learning = "server"` sends the clients one mixture w instead of all w_k and takes their gradients
there. For the softmax nothing is drawn, so nothing else differs. The Dirichlet draws one alpha for
all instead of one per client: to compare, the clients' draws are replaced by the shared one.
"""

import pytest
import torch

from autofedavg.algorithm import Round
from autofedavg.core.seeds import Purpose, Seeds
from autofedavg.federation.port import Federation
from autofedavg.methods.auto_fedavg import AutoFedAvg
from toy import DirectFleet, float64, mlp, norm_net, rounds_of, toy_problem

T = 3


class OneDraw(Seeds):
    """All clients, and the server, draw the same alpha; everything else is each one's own."""

    def number(self, client, purpose, t=0, s=0):
        return super().number("all" if purpose == Purpose.ALPHA else client, purpose, t, s)


def learned(learning, network, dtype=torch.float64, **settings):
    """Every round of a run of three clients, and what they were asked."""
    problem = toy_problem(3, network, dtype=dtype)
    transport = DirectFleet(problem, seeds=OneDraw(7))
    w0, layout = problem.initial(Seeds(7))
    method = AutoFedAvg(S=5, learning=learning, **settings)
    federation = Federation(transport, seeds=OneDraw(7))
    return list(method.rounds(federation, layout, T, Round(0, w0))), transport


@pytest.mark.parametrize("weights", ["network", "layer"])
@pytest.mark.parametrize("constraint", ["softmax", "dirichlet"])
@pytest.mark.parametrize(
    ("network", "more"),
    [
        (mlp, {}),
        (mlp, {"beta_optimiser": "sgd", "beta_rate": 5.0}),
        (norm_net, {}),
        (norm_net, {"mode": "train"}),
        (norm_net, {"learn_on": "train", "t0": 2}),
        (norm_net, {"keep_above_one": "softplus"}),
    ],
    ids=["plain", "sgd", "batch norm", "training mode", "on training data", "softplus"],
)
def test_the_same_beta_in_float64_for_the_same_sample(weights, constraint, network, more):
    """1e-6 is what was promised; the arithmetic is the same, so 1e-12 is asked."""
    settings = {"weights": weights, "constraint": constraint, **more}
    here, _ = learned("server", network, **settings)
    there, _ = learned("clients", network, **settings)
    for one, other in zip(here, there, strict=True):
        torch.testing.assert_close(one.beta, other.beta, rtol=0, atol=1e-12)
        torch.testing.assert_close(one.alpha, other.alpha, rtol=0, atol=1e-12)
        torch.testing.assert_close(one.w.values, other.w.values, rtol=0, atol=1e-12)
        assert torch.equal(one.w.counters, other.w.counters)
    assert (here[-1].alpha - here[-1].alpha.mean(dim=0)).abs().max() > 1e-3


@pytest.mark.parametrize("constraint", ["softmax", "dirichlet"])
def test_the_same_beta_with_the_smoothing_loss(constraint):
    settings = {"weights": "layer", "constraint": constraint, "smoothing": 5.0}
    here, _ = learned("server", mlp, **settings)
    there, _ = learned("clients", mlp, **settings)
    torch.testing.assert_close(here[-1].beta, there[-1].beta, rtol=0, atol=1e-12)
    rough, _ = learned("server", mlp, weights="layer", constraint=constraint)
    assert not torch.allclose(here[-1].beta, rough[-1].beta, rtol=0, atol=1e-6)


def test_with_a_sample_each_the_dirichlet_s_clients_go_another_way():
    """What the shared sample changes: the comparison above is not an empty one."""
    problem = toy_problem(3, mlp, dtype=torch.float64)
    shared = rounds_of(AutoFedAvg(S=5, learning="server"), DirectFleet(problem), T)[-1]
    own = rounds_of(AutoFedAvg(S=5), DirectFleet(problem), T)[-1]
    assert (shared.beta - own.beta).abs().max() > 1e-2


def test_one_sample_a_step_is_shared_and_every_step_has_its_own():
    _, transport = learned("server", mlp, t0=3)
    asked = [message.arrays["values"] for message in transport.sent("differentiate")]
    assert len(asked) == 15
    for step in range(5):
        assert all(torch.equal(w, asked[3 * step]) for w in asked[3 * step : 3 * step + 3])
    assert len({w.numpy().tobytes() for w in asked}) == 5


@pytest.mark.parametrize("network", [mlp, norm_net])
def test_no_client_is_sent_another_s_model(network):
    """Only mixtures go down: nothing that a client alone trained."""
    rounds, transport = learned("server", network)
    assert {verb for verb, _, _ in transport.asked} == {"local_train", "differentiate"}
    for _, _, message in transport.asked:
        assert not {key for key in message.arrays if "/" in key}
        assert set(message.arrays) <= {"values", "counters"}
    trained = {row.numpy().tobytes() for r in rounds for row in r.w_k.values}
    sent = {message.arrays["values"].numpy().tobytes() for _, _, message in transport.asked}
    assert not trained & sent


def test_the_mixture_carries_averaged_buffers_and_the_largest_counter():
    rounds, transport = learned("server", norm_net, constraint="softmax", t0=3)
    first = transport.sent("differentiate", "A")[0]
    w_k = rounds[-1].w_k
    even = w_k.combine(float64([1 / 3, 1 / 3, 1 / 3]))
    torch.testing.assert_close(first.arrays["values"], even.values)
    assert torch.equal(first.arrays["counters"], w_k.counters.amax(dim=0))
