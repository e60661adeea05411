"""What must hold however beta is learned: symmetry, repeatable requests, the algorithm of old."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autofedavg.algorithm import learn_agg_weight
from autofedavg.core.constraints import smoothing
from autofedavg.core.problem import Problem
from autofedavg.core.seeds import Purpose, Seeds
from autofedavg.federation.messages import Message
from autofedavg.federation.port import Federation
from autofedavg.methods.auto_fedavg import AutoFedAvg
from toy import (
    METRIC,
    DirectFleet,
    by_pytorch,
    cross_entropy,
    make_client,
    mlp,
    norm_net,
    rounds_of,
    toy_problem,
    toy_site,
)

NAMES = "ABCD"


@st.composite
def ways(draw, S):
    """Who learns, and how many steps a message has."""
    if draw(st.booleans()):
        return {"S": S, "learning": "server"}
    return {"S": S, "steps_per_message": draw(st.integers(1, S))}


@settings(max_examples=25)
@given(
    data=st.data(), order=st.permutations(range(4)), weights=st.sampled_from(["network", "layer"])
)
def test_permuting_clients_permutes_alpha(data, order, weights):
    """Full batches and the softmax: nothing is drawn, so a name is only a name."""
    how = data.draw(ways(S=data.draw(st.integers(1, 5))))
    optimiser = data.draw(st.sampled_from(["adam", "sgd"]))
    method = AutoFedAvg(
        constraint="softmax", weights=weights, beta_optimiser=optimiser, beta_rate=0.3, **how
    )

    def run(kinds):
        sites = {
            name: toy_site(name, k, dtype=torch.float64, full=True)
            for name, k in zip(NAMES, kinds, strict=True)
        }
        problem = Problem(lambda: mlp(torch.float64), cross_entropy, sites, METRIC)
        return rounds_of(method, DirectFleet(problem), 1)[-1].alpha

    straight, permuted = run(range(4)), run(order)
    torch.testing.assert_close(permuted, straight[list(order)], rtol=0, atol=1e-9)
    assert (straight - 0.25).abs().max() > 1e-4


@settings(max_examples=25)
@given(
    data=st.data(),
    t=st.integers(1, 50),
    verb=st.sampled_from(["update_beta", "differentiate"]),
    mode=st.sampled_from(["eval", "train"]),
    constraint=st.sampled_from(["softmax", "dirichlet"]),
)
def test_repeating_a_request_gives_the_same_answer(data, t, verb, mode, constraint):
    """Also after another request, and from a client that has just come back."""
    S = data.draw(st.integers(1, 4))
    m = data.draw(st.integers(1, S))
    problem = toy_problem(2, norm_net)
    transport = DirectFleet(problem)
    federation = Federation(transport)
    w0, layout = problem.initial(Seeds(7))
    plan = AutoFedAvg(constraint=constraint, mode=mode, S=S, steps_per_message=m).plan(layout, 1)
    bank = federation.local_train(t, w0, T=t).w_k
    federation.share_models(t, bank)
    for s in plan.steps:
        federation.update_beta(t, s, plan.gamma.initial(2), **plan.message(s))
        federation.differentiate(t, s, w0, "AB", layout.trainable, data=plan.data, mode=mode)
    asked = transport.sent(verb, "A")
    message = data.draw(st.sampled_from(asked))
    back = make_client(problem, "A")
    back.client_state.keep_bank(bank, transport.sent("update_beta", "A")[0].facts["digest"])
    first, again = (
        copied(transport.clients["A"].answer(verb, each)) for each in (message, message)
    )
    transport.clients["A"].answer("local_train", transport.sent("local_train", "A")[0])
    for other in (again, transport.clients["A"].answer(verb, message), back.answer(verb, message)):
        assert other.facts == first.facts
        assert all(torch.equal(other.arrays[key], first.arrays[key]) for key in first.arrays)
        assert set(other.arrays) == set(first.arrays)


def copied(message):
    return Message({key: array.clone() for key, array in message.arrays.items()}, message.facts)


@settings(max_examples=40)
@given(
    constraint=st.sampled_from(["softmax", "dirichlet"]),
    weights=st.sampled_from(["network", "layer"]),
    optimiser=st.sampled_from(["adam", "sgd"]),
    keep=st.sampled_from(["floor", "softplus"]),
    mode=st.sampled_from(["eval", "train"]),
    smooth=st.sampled_from([0.0, 2.0]),
    S=st.integers(1, 4),
)
def test_one_step_a_message_is_algorithm_1_walked_back_by_autograd(
    constraint, weights, optimiser, keep, mode, smooth, S
):
    """Against LearnAggWeight written out in one piece, as it was before messages held steps."""
    method = AutoFedAvg(
        constraint=constraint,
        weights=weights,
        beta_optimiser=optimiser,
        keep_above_one=keep,
        mode=mode,
        smoothing=smooth if weights == "layer" else 0.0,
        S=S,
        steps_per_message=1,
    )
    problem = toy_problem(3, norm_net)
    transport = DirectFleet(problem)
    federation = Federation(transport)
    w0, layout = problem.initial(Seeds(7))
    plan = method.plan(layout, 1)
    bank = federation.local_train(1, w0, T=1).w_k
    beta = plan.gamma.initial(3, plan.layers.P if plan.layers else None)
    found = learn_agg_weight(federation, plan, 1, bank, beta)
    wanted = by_autograd(transport.clients, plan, bank, beta)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def by_autograd(clients, plan, bank, beta):
    step = plan.optimiser.start()
    for s in range(1, plan.S + 1):
        theta_k = [step_by_autograd(client, plan, bank, beta, s) for client in clients.values()]
        average = torch.stack(theta_k).mean(dim=0)
        beta = plan.gamma.beta(step(plan.gamma.free(beta), average))
    return beta


def step_by_autograd(client, plan, bank, beta, s):
    seed = client.seeds.number(client.site, Purpose.ALPHA, 1, s)
    x = client.data.weight_batch(client.seeds, 1, s, plan.data, 4)
    theta = plan.gamma.free(beta).requires_grad_()
    with client.seeded(Purpose.NETWORK, 1, s):
        alpha = by_pytorch(plan.gamma, plan.gamma.beta(theta), seed)
        w = bank.combine(alpha, plan.layers)
        gradient, _ = client.trainer.differentiate(w, x, plan.mode)
    objective = (alpha * bank.project(gradient, plan.layers)).sum()
    if plan.layers is not None and plan.smoothing:
        mean = plan.gamma.mean(plan.gamma.beta(theta))
        objective = objective + plan.smoothing * smoothing(mean)
    (slope,) = torch.autograd.grad(objective, theta)
    return theta.detach() - plan.optimiser.client_rate * slope
