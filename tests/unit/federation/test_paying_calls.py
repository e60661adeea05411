"""t0 = "auto": whether a call paid, measured through the port, and what follows from it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autofedavg.core.call_schedule import BATCHES
from autofedavg.core.constraints import Dirichlet, Softmax, moved_to
from autofedavg.federation.messages import Message
from autofedavg.federation.paying_calls import ERRORS, Gain, paired_gain
from autofedavg.methods.auto_fedavg import AutoFedAvg
from judged_runs import ONE_STEP, judged
from toy import (
    DirectFleet,
    PointSite,
    float64,
    mlp,
    norm_net,
    point_problem,
    rounds_of,
    same_round,
    toy_problem,
)

WAYS = [
    {},
    {"learning": "server"},
    {"weights": "layer"},
    {"constraint": "softmax"},
    {"steps_per_message": 5},
    {"objective": "size", "when_idle": "sizes"},
    {"learning": "server", "when_idle": "sizes", "weights": "layer"},
]


def hospitals(bad=6.0, n=1):
    """A and B train towards the point that all learn the weights on; C trains away from it."""
    sites = {"A": PointSite((2.0,), (1.0,)), "B": PointSite((2.0,), (1.0,))}
    sites["C"] = PointSite((bad,), (1.0,), n)
    return DirectFleet(point_problem((0.0,), sites), ONE_STEP)


# --- whether a call paid ----------------------------------------------------------------------


@pytest.mark.parametrize("learning", ["clients", "server"])
@pytest.mark.parametrize("constraint", ["softmax", "dirichlet"])
def test_calls_pay_where_one_site_is_bad(learning, constraint):
    rounds, verdicts, _ = judged(hospitals(-6.0), 20, learning=learning, constraint=constraint)
    assert [r.t for r in rounds if r.learned] == [1, 2, 5, 12]
    assert [v["paid"] for v in verdicts if v] == [True] * 4
    assert all(v["gain"] > 0 for v in verdicts if v)
    assert [v["next"] for v in verdicts if v] == [2, 5, 12, 27]
    assert rounds[-1].alpha[2] < rounds[0].alpha[2] < 1 / 3


@pytest.mark.parametrize("learning", ["clients", "server"])
def test_no_call_pays_where_all_sites_are_alike(learning):
    """The same data everywhere, so the same models: no weights are better than others."""
    rounds, verdicts, _ = judged(hospitals(2.0), 20, learning=learning)
    assert [r.t for r in rounds if r.learned] == [1, 4, 19]
    for verdict in filter(None, verdicts):
        assert not verdict["paid"]
        assert verdict["gain"] == pytest.approx(0.0, abs=1e-12)
    assert all(torch.equal(r.beta, rounds[0].beta) for r in rounds)
    assert torch.equal(rounds[-1].alpha, torch.full((3,), 1 / 3, dtype=torch.float64))


def test_the_gain_is_the_mean_over_sites_of_losses_on_the_same_batches():
    """By hand from the models and the clients' own data."""
    fleet = DirectFleet(toy_problem(3, mlp, dtype=torch.float64))
    (done, *_), (verdict, *_), _ = judged(fleet, 1, constraint="softmax")
    (before, after), facts = _asked(fleet)
    torch.testing.assert_close(before, float64([1 / 3] * 3))
    torch.testing.assert_close(after, done.alpha if verdict["paid"] else after)
    lower = []
    for name, client in fleet.clients.items():
        bank = client.client_state.bank(facts["digest"])
        losses = [
            [
                float(client.trainer.loss(bank.combine(alpha), _batch(fleet, name, s)))
                for s in range(6, 6 + BATCHES)
            ]
            for alpha in (before, after)
        ]
        lower.append(np.subtract(*losses))
    errors = [site.std(ddof=1) / math.sqrt(BATCHES) for site in lower]
    assert verdict["gain"] == pytest.approx(np.mean(lower), rel=1e-9)
    assert verdict["error"] == pytest.approx(math.sqrt(sum(e**2 for e in errors)) / 3, rel=1e-9)
    assert verdict["paid"] == (verdict["gain"] > ERRORS * verdict["error"])


def _asked(fleet):
    message = fleet.sent("mixture_losses", "A")[0]
    return message.arrays["alpha"], message.facts


def _batch(fleet, name, s):
    return fleet.problem.sites[name].weight_batch(fleet.seeds, 1, s, "validation", 4)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_no_step_was_taken_on_the_batches_that_judge_it(way):
    seen = []

    class Fleet(DirectFleet):
        def ask(self, verb, messages, within):
            self.verb = verb
            return super().ask(verb, messages, within)

    fleet = Fleet(toy_problem(3, mlp))
    for site in fleet.problem.sites.values():
        drawn = site.weight_batch

        def noted(seeds, t, s, *rest, drawn=drawn):
            seen.append((fleet.verb, s))
            return drawn(seeds, t, s, *rest)

        site.weight_batch = noted
    judged(fleet, 1, **way)
    steps = {s for verb, s in seen if verb in ("update_beta", "differentiate")}
    judging = {s for verb, s in seen if verb in ("mixture_losses", "model_losses")}
    assert steps == set(range(1, 6))
    assert judging == set(range(6, 6 + BATCHES))


@pytest.mark.parametrize("learning", ["clients", "server"])
@pytest.mark.parametrize("learn_on", ["validation", "train", "holdout"])
def test_a_call_is_judged_on_the_split_that_it_learns_on(learn_on, learning):
    fleet = DirectFleet(toy_problem(3, mlp))
    judged(fleet, 1, learn_on=learn_on, learning=learning)
    asked = [*fleet.sent("mixture_losses"), *fleet.sent("model_losses")]
    assert {message.facts["data"] for message in asked} == {learn_on}


@pytest.mark.parametrize("network", [mlp, norm_net])
@pytest.mark.parametrize("weights", ["network", "layer"])
def test_clients_and_server_measure_the_same(weights, network):
    """The softmax draws nothing: the same beta, so the same losses of the same mixtures."""
    found = [
        judged(
            DirectFleet(toy_problem(3, network, dtype=torch.float64)),
            10,
            learning=learning,
            constraint="softmax",
            weights=weights,
            when_idle="sizes",
        )[1]
        for learning in ("clients", "server")
    ]
    for one, other in zip(*found, strict=True):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-12)
    assert sum(map(bool, found[0])) >= 2


losses = st.lists(
    st.lists(st.floats(-5, 5, width=32), min_size=3, max_size=3), min_size=2, max_size=5
)


@given(losses, losses, st.floats(-3, 3))
def test_a_gain_has_the_sign_of_what_is_lowered_and_noise_that_all_share_is_none(one, other, by):
    K = min(len(one), len(other))
    before, after = float64(one[:K]), float64(other[:K])
    shares = torch.full((K,), 1 / K, dtype=torch.float64)
    there, back = paired_gain(before, after, shares), paired_gain(after, before, shares)
    assert there.mean == pytest.approx(-back.mean, abs=1e-9)
    assert there.error == pytest.approx(back.error, abs=1e-9)
    assert not (there.beyond_noise and back.beyond_noise)
    same = paired_gain(before, before - by, shares)
    assert same.mean == pytest.approx(by, abs=1e-9)
    assert same.error == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("objective", "gain"), [("even", 1 / 3), ("size", 8 / 36)])
def test_a_gain_counts_sites_as_the_objective_does(objective, gain):
    """A, with 8 of 36 training cases, gains 1; nothing changes for the others."""

    def said(verb, site, message):
        if verb != "mixture_losses":
            return None
        losses = torch.full((2, BATCHES), 2.0, dtype=torch.float64)
        losses[1] -= float(site == "A")
        return Message({"losses": losses})

    fleet = DirectFleet(toy_problem(3, mlp), intercept=said)
    _, (verdict, *_), _ = judged(fleet, 1, objective=objective, clip_steps=0.0)
    assert verdict["gain"] == pytest.approx(gain)


def test_rounding_is_no_gain():
    assert not Gain(1e-7, 0.0, 1.0).beyond_noise
    assert Gain(1e-5, 0.0, 1.0).beyond_noise
    assert not Gain(0.19, 0.1, 1.0).beyond_noise
    assert not Gain(-0.5, 0.1, 1.0).beyond_noise


# --- what follows from it ----------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_going_on_from_any_round_gives_the_same_bits(way):
    def run(start=None):
        method = AutoFedAvg(**{"t0": "auto", "S": 5, **way})
        return rounds_of(method, DirectFleet(toy_problem(3, norm_net)), 15, start)

    whole = run()
    assert sum(r.learned for r in whole) == 3
    for stop in range(1, 15):
        for one, other in zip(whole[stop:], run(whole[stop - 1]), strict=True):
            assert same_round(one, other)
            assert one.learned == other.learned
            assert {k: int(v) for k, v in one.memory.items()} == {
                k: int(v) for k, v in other.memory.items()
            }


def worse(verb, site, message):
    """Every site says that the learned weights, the second ones, are worse than all others."""
    if verb != "mixture_losses":
        return None
    found = torch.ones(len(message.arrays["alpha"]), BATCHES, dtype=torch.float64)
    found[1] = 2.0
    return Message({"losses": found})


@pytest.mark.parametrize("constraint", ["softmax", "dirichlet"])
def test_a_call_that_does_not_pay_leaves_the_weights_alone(constraint):
    fleet = DirectFleet(toy_problem(3, mlp), intercept=worse)
    rounds, verdicts, _ = judged(fleet, 10, constraint=constraint)
    assert [r.t for r in rounds if r.learned] == [1, 4]
    assert [v["gain"] for v in verdicts if v] == [-1.0, -1.0]
    assert torch.equal(rounds[-1].alpha, torch.full((3,), 1 / 3, dtype=torch.float64))


@pytest.mark.parametrize("weights", ["network", "layer"])
@pytest.mark.parametrize("constraint", ["softmax", "dirichlet"])
def test_weights_become_sizes_where_learned_ones_are_no_better(constraint, weights):
    """8, 12 and 16 training cases; sizes are as good as the weights before the call."""
    fleet = DirectFleet(toy_problem(3, mlp), intercept=worse)
    how = {"constraint": constraint, "weights": weights, "when_idle": "sizes"}
    rounds, verdicts, _ = judged(fleet, 10, **how)
    assert [v["to_sizes"] for v in verdicts if v] == [True, True]
    sizes = float64([8 / 36, 12 / 36, 16 / 36])
    sizes = sizes if weights == "network" else sizes[:, None].expand(3, 2)
    for done in rounds:
        torch.testing.assert_close(done.alpha, sizes)
    torch.testing.assert_close(
        fleet.sent("mixture_losses", "A")[1].arrays["alpha"][0], sizes
    )  # the next call starts from them


def test_weights_before_a_bad_call_are_compared_with_sizes_not_those_it_learned():
    """Learned ones are worse than sizes, and those before them better: these stay."""

    def said(verb, site, message):
        if verb != "mixture_losses":
            return None
        losses = float64([1.0, 4.0, 2.0])[:, None].expand(3, BATCHES)  # before, learned, sizes
        return Message({"losses": losses.contiguous()})

    fleet = DirectFleet(toy_problem(3, mlp), intercept=said)
    (done, *_), (verdict, *_), _ = judged(fleet, 1, when_idle="sizes")
    assert (verdict["gain"], verdict["over_sizes"]) == (-3.0, 1.0)
    assert (verdict["paid"], verdict["to_sizes"]) == (False, False)
    torch.testing.assert_close(done.alpha, float64([1 / 3] * 3))


@pytest.mark.parametrize("learning", ["clients", "server"])
def test_weights_that_are_better_than_sizes_stay(learning):
    """C is bad and by far the largest: it must not come back when learning has settled."""
    how = {"when_idle": "sizes", "beta_rate": 5.0, "S": 20, "learning": learning}
    rounds, verdicts, _ = judged(hospitals(-6.0, n=50), 40, **how)
    idle = [v for v in verdicts if v and not v["paid"]]
    assert idle
    assert not any(v["to_sizes"] for v in idle)
    assert all(v["over_sizes"] > 2 * v["over_sizes_error"] for v in idle)
    assert rounds[-1].alpha[2] < 0.2


@pytest.mark.parametrize("gamma", [Softmax(), Dirichlet(), Dirichlet(6.0, "softplus")], ids=str)
@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=5), st.floats(2, 9))
def test_beta_of_given_weights_has_them(gamma, shares, start):
    alpha = float64(shares) / sum(shares)
    beta = torch.full((len(shares),), start, dtype=torch.float64)
    found = moved_to(alpha, gamma, beta)
    torch.testing.assert_close(gamma.alpha(found), alpha, rtol=0, atol=1e-3)  # the floor
    layered = moved_to(alpha[:, None].expand(-1, 2), gamma, beta[:, None].expand(-1, 2))
    torch.testing.assert_close(layered, found[:, None].expand(-1, 2))


@pytest.mark.parametrize("learning", ["clients", "server"])
def test_one_site_cannot_decide_alone_that_no_call_pays(learning):
    """B says that its loss grows a hundred thousand times: it does not count, and is recorded."""
    call = "mixture_losses" if learning == "clients" else "model_losses"
    asked = []

    def lie(verb, site, message):
        if (verb, site) != (call, "B"):
            return None
        asked.append(message)
        models = 2 if learning == "clients" else 1
        found = torch.ones(models, BATCHES, dtype=torch.float64)
        found[-1] = 1e5 if learning == "clients" or len(asked) % 2 == 0 else 1.0
        return Message({"losses": found})

    fleet = hospitals(-6.0)
    fleet.intercept = lie
    _, verdicts, events = judged(fleet, 10, learning=learning)
    assert [v["paid"] for v in verdicts if v] == [True, True]
    assert {(e["call"], e["site"], e["what"]) for e in events} == {(call, "B", "clipped")}
    asked.clear()
    _, verdicts, _ = judged(fleet, 2, learning=learning, clip_steps=0.0)
    assert not verdicts[0]["paid"]
