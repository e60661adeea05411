"""No client's step on beta takes over: one far longer than the others' does not count."""

import math

import pytest
import torch

from autofedavg.algorithm import Round
from autofedavg.core.problem import Problem
from autofedavg.core.seeds import Seeds
from autofedavg.federation.messages import Message
from autofedavg.federation.port import Federation
from autofedavg.federation.steps import outliers
from autofedavg.methods.auto_fedavg import AutoFedAvg
from toy import METRIC, DirectFleet, cross_entropy, float64, mlp, toy_site

NAMES = "ABCDEFGHIJ"


def sites(K):
    made = {name: toy_site(name, k) for k, name in enumerate(NAMES[:K])}
    return Problem(mlp, cross_entropy, made, METRIC)


def greedy(size):
    """Site B says that all weight is its own."""

    def intercept(verb, site, message):
        if (verb, site) != ("update_beta", "B"):
            return None
        theta = torch.full_like(message.arrays["beta"], -size)
        theta[1] = size
        return Message({"theta": theta}, {"loss": 0.1})

    return intercept


def run(transport, method):
    """Three rounds: the last one, and all events."""
    federation = Federation(transport)
    w0, layout = transport.problem.initial(Seeds(7))
    *_, last = method.rounds(federation, layout, 3, Round(0, w0))
    return last, federation.take_events()


def learned(K, intercept, **settings):
    last, events = run(DirectFleet(sites(K), intercept=intercept), AutoFedAvg(**settings))
    return float(last.alpha[1]), events


@pytest.mark.parametrize(("K", "taken", "kept"), [(3, 0.99, 0.6), (10, 0.95, 0.25)])
@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_one_site_does_not_take_over(K, taken, kept, optimiser):
    """Three calls of twenty steps. Honest, B gets 0.53 of three and 0.21 of ten here."""
    before, none = learned(K, greedy(1e6), beta_optimiser=optimiser, clip_steps=0.0)
    after, events = learned(K, greedy(1e6), beta_optimiser=optimiser)
    assert before > taken
    assert none == []
    assert after < kept
    assert {(event["site"], event["what"], event["call"]) for event in events} == {
        ("B", "clipped", "update_beta")
    }
    assert len(events) == 3 * 20
    assert events[0]["s"] == 1
    size = 1e6 * math.sqrt(K)
    assert events[0]["reason"].startswith(f"its step on beta is {size:.3g} long, the others' 0.")


@pytest.mark.parametrize("weights", ["network", "layer"])
@pytest.mark.parametrize("constraint", ["dirichlet", "softmax"])
@pytest.mark.parametrize("how", [{}, {"learning": "server"}, {"steps_per_message": 5}], ids=str)
def test_honest_runs_keep_their_bits(weights, constraint, how):
    settings = {"weights": weights, "constraint": constraint, **how}
    one, other = (
        run(DirectFleet(sites(4)), AutoFedAvg(clip_steps=most, **settings)) for most in (0.0, 100.0)
    )
    assert torch.equal(one[0].beta, other[0].beta)
    assert torch.equal(one[0].w.values, other[0].w.values)
    assert other[1] == []


def test_a_step_beyond_the_limit_does_not_count_and_says_so():
    federation = Federation(DirectFleet(sites(3)))
    theta = float64([1.0, 1.0, 1.0])
    theta_k = {"A": theta + float64([3.0, 4.0, 0.0]), "B": theta - 1e-3, "C": theta + 1e-3}
    assert federation.clip(2, 7, theta, theta_k, 3000.0) is theta_k
    cut = federation.clip(2, 7, theta, theta_k, 2800.0)
    assert cut == {**theta_k, "A": theta}
    (event,) = federation.take_events()
    assert (event["site"], event["what"], event["s"]) == ("A", "clipped", 7)
    assert event["reason"] == ("its step on beta is 5 long, the others' 0.00173: it does not count")


def test_a_step_that_is_not_finite_is_left_out_whatever_is_set(caplog):
    """A gradient of 3e38 gives one at the server, where nobody else looks at it."""
    theta = float64([1.0, 1.0])
    theta_k = {"A": theta + math.inf, "B": theta + 1.0}
    federation = Federation(DirectFleet(sites(2)))
    for number in (math.inf, math.nan):
        theta_k["A"] = theta + number
        cut = federation.clip(1, 1, theta, theta_k, 0.0)
        assert torch.equal(cut["A"], theta)
        assert torch.equal(cut["B"], theta_k["B"])
    assert [event["what"] for event in federation.take_events()] == ["clipped"] * 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]  # once, then in the file


@pytest.mark.parametrize("constraint", ["dirichlet", "softmax"])
def test_a_gradient_beyond_all_reason_does_not_end_a_run(constraint):
    def intercept(verb, site, message):
        if (verb, site) != ("differentiate", "B"):
            return None
        return Message({"gradient": torch.full((51,), 3e38)}, {"loss": 0.1})

    share, events = learned(3, intercept, learning="server", constraint=constraint)
    assert 0 < share < 0.75
    assert {(event["site"], event["what"]) for event in events} == {("B", "clipped")}


def test_of_two_sites_nobody_can_say_which_is_wrong():
    assert outliers({"A": 1.0, "B": 1e9}, 100.0) == {}
    assert outliers({"A": 1.0}, 100.0) == {}
    assert outliers({"A": 0.0, "B": 0.0, "C": 1.0}, 100.0) == {}  # far from zero is everything
    assert outliers({"A": 0.0, "B": 1.0, "C": 51.0}, 100.0) == {"C": 0.5}
    assert outliers({"A": 1.0, "B": 2.0, "C": 150.0, "D": 500.0}, 100.0) == {"D": 2.0}
