"""Personal methods: the answers of their papers, and FedAvg's and local-only's bits."""

from dataclasses import dataclass, field

import pytest
import torch
from pydantic import ValidationError

from autofedavg.algorithm import Round
from autofedavg.core.bank import Layout, Model
from autofedavg.core.local_rules import LocalWork, Personal, kept_arrays, rule_of
from autofedavg.core.seeds import Seeds
from autofedavg.core.trainer import LocalTrainer, Training
from autofedavg.federation.port import Federation
from autofedavg.methods.apfl import APFL, Mixed
from autofedavg.methods.ditto import Ditto
from autofedavg.methods.fedavg import FedAvg
from autofedavg.methods.fedavg_ft import FedAvgFineTuned
from autofedavg.methods.fedbn import FedBN
from autofedavg.methods.l2gd import L2GD
from autofedavg.methods.local_only import LocalOnly
from autofedavg.methods.pfedme import Envelope, PFedMe
from toy import CPU, METRIC, TRAINING, DirectFleet, Point, float64, half_squared_distance, lose

from toy import mlp, norm_net, rounds_of, same_round, toy_problem  # isort: skip

ADAM = Training(iterations=3, batch_size=4, learning_rate=0.05)
SITES = "ABC"


@dataclass
class Run:
    """All rounds of a method: global models, what sites kept, their predictors, by round."""

    w: list[Model] = field(default_factory=list)
    w_k: list[dict[str, torch.Tensor]] = field(default_factory=list)
    kept: list[dict[str, dict[str, torch.Tensor]]] = field(default_factory=list)
    predictors: list[dict[str, Model]] = field(default_factory=list)


def run(method, T=3, network=norm_net, training=ADAM, **fleet) -> Run:
    problem = toy_problem(3, network)
    federation = Federation(DirectFleet(problem, training, **fleet), metric=METRIC, quorum=1)
    w0, layout = problem.initial(Seeds(7))
    found = Run()
    for state in method.rounds(federation, layout, T, method.begin(federation, Round(0, w0))):
        kept = federation.kept(federation.personal.states)
        found.w.append(state.w.clone() if isinstance(state.w, Model) else state.w)
        found.w_k.append({site: state.w_k[site].values.clone() for site in state.w_k.sites})
        found.kept.append(kept)
        if state.personal:
            predictor = state.personal.predictor
            found.predictors.append({k: predictor(layout, state.w, kept[k]) for k in kept})
    return found


def equal(one: Model, other: Model) -> bool:
    return torch.equal(one.values, other.values) and torch.equal(one.counters, other.counters)


@pytest.mark.parametrize("method", [Ditto(), APFL(), APFL(mix=1.0), FedAvgFineTuned()])
@pytest.mark.parametrize("training", [TRAINING, ADAM])
def test_the_global_model_is_fedavgs_bit_for_bit(method, training) -> None:
    ours, theirs = run(method, training=training), run(FedAvg(), training=training)
    assert all(map(equal, ours.w, theirs.w))


def test_a_fine_tuned_model_is_the_sites_own() -> None:
    found = run(FedAvgFineTuned())
    for w_k, predictors in zip(found.w_k, found.predictors, strict=True):
        assert all(torch.equal(predictors[site].values, w_k[site]) for site in SITES)


@pytest.mark.parametrize(
    "method", [Ditto(pull=0.0), APFL(mix=1.0, adaptive=False), L2GD(share=0.0)], ids=str
)
@pytest.mark.parametrize("training", [TRAINING, ADAM])
def test_without_a_pull_the_personal_model_is_local_onlys_bit_for_bit(method, training) -> None:
    ours, alone = run(method, training=training), run(LocalOnly(), training=training)
    for predictors, w_k in zip(ours.predictors, alone.w_k, strict=True):
        assert all(torch.equal(predictors[site].values, w_k[site]) for site in SITES)


def test_dittos_pull_of_one_over_the_rate_leads_to_w_in_one_step() -> None:
    """v - eta (0 + lambda (v - w)) with eta lambda = 1."""
    training = Training(iterations=1, optimiser="sgd", momentum=0.0, learning_rate=0.25)
    flat = LocalTrainer(Point((0.0, 0.0)), lambda net, x: (net.w * x).sum(), training, CPU)
    start = Model(float64([3.0, -2.0]), torch.empty(0, dtype=torch.int64))
    v = Model(float64([7.0, 9.0]), start.counters)
    work = LocalWork(start, lambda: [float64([0.0, 0.0])], 0.25, kept=kept_arrays(v))
    flat.load(start)
    Personal(mu=4.0).train(flat, work)
    assert work.keep["values"].tolist() == [3.0, -2.0]
    assert flat.flat.tolist() == [3.0, -2.0]


def test_apfl_without_a_share_of_its_own_predicts_with_the_global_model() -> None:
    found = run(APFL(mix=0.0, adaptive=False))
    for w, predictors in zip(found.w, found.predictors, strict=True):
        assert all(equal(predictors[site], w) for site in SITES)


def test_apfls_step_and_its_share_by_hand() -> None:
    """L = (x - b)^2 / 2, plain steps of 1/2: w 0 -> 1, v 4 -> 3.75 by a (m - b), a -> 1/4."""
    training = Training(iterations=1, optimiser="sgd", momentum=0.0, learning_rate=0.5)
    flat = LocalTrainer(Point((0.0,)), half_squared_distance, training, CPU)
    none = torch.empty(0, dtype=torch.int64)
    kept = {**kept_arrays(Model(float64([4.0]), none)), "a": float64([0.5])}
    work = LocalWork(Model(float64([0.0]), none), lambda: [float64([2.0])], 0.5, kept=kept)
    flat.load(work.start)
    Mixed(mix=0.9, adaptive=True).train(flat, work)
    m = 0.5 * 4 + 0.5 * 1  # 2.5: its gradient is 0.5
    assert flat.flat.tolist() == [1.0]
    assert work.keep["values"].tolist() == [4 - 0.5 * 0.5 * (m - 2)]
    assert work.keep["a"].tolist() == [max(0.0, 0.5 - 0.5 * (4 - 1) * (m - 2))]
    mixed = Mixed(mix=0.9, adaptive=True).predictor(
        Layout.of(Point((0.0,))), Model(float64([2.0]), none), {**kept, "a": float64([0.25])}
    )
    assert mixed.values.tolist() == [2.5]


def test_apfls_share_is_learned_unless_it_is_fixed() -> None:
    learned, fixed = run(APFL(), training=TRAINING), run(APFL(adaptive=False), training=TRAINING)
    shares = [learned.kept[-1][site]["a"].item() for site in SITES]
    assert all(0 <= a <= 1 and a != 0.5 for a in shares)
    assert [fixed.kept[-1][site]["a"].item() for site in SITES] == [0.5] * 3


def enveloped(pull: float, inner_rate: float, steps: int, rate: float, w=1.0, b=4.0, decay=0.0):
    """One batch of L = (x - b)^2 / 2: (w_k, theta)."""
    training = Training(iterations=1, optimiser="sgd", weight_decay=decay)
    flat = LocalTrainer(Point((w,)), half_squared_distance, training, CPU)
    start = Model(float64([w]), torch.empty(0, dtype=torch.int64))
    work = LocalWork(start, lambda: [float64([b])], 1.0)
    rule = Envelope(pull=pull, inner_rate=inner_rate, inner_steps=steps, rate=rate)
    rule.train(flat, work)
    return flat.flat.item(), work.keep["values"].item()


@pytest.mark.parametrize("pull", [0.5, 2.0, 15.0])
def test_pfedmes_inner_problem_has_its_closed_form(pull) -> None:
    w, b, rate = 1.0, 4.0, 0.01
    w_k, theta = enveloped(pull, 0.9 / (1 + pull), 400, rate)
    assert theta == pytest.approx((b + pull * w) / (1 + pull), abs=1e-12)
    assert w_k == pytest.approx(w - rate * pull * (w - b) / (1 + pull), abs=1e-12)


def test_pfedmes_great_pull_is_a_gradient_step_and_none_leaves_w_alone() -> None:
    w_k, _ = enveloped(1e6, 0.9e-6, 400, 0.1)
    assert w_k == pytest.approx(1 - 0.1 * (1 - 4), abs=1e-5)
    w_k, theta = enveloped(0.0, 0.1, 5, 0.1)
    assert (w_k, theta != 1.0) == (1.0, True)
    found = run(PFedMe(pull=0.0), network=mlp)
    w0 = toy_problem(3).initial(Seeds(7))[0].values
    torch.testing.assert_close(found.w[-1].values, w0, rtol=0, atol=1e-6)


def test_pfedmes_theta_is_decayed_as_the_training_says() -> None:
    _, theta = enveloped(0.0, 0.1, 1, 0.1, decay=0.5)
    assert theta == pytest.approx(1 - 0.1 * ((1 - 4) + 0.5))


def test_pfedmes_predictor_is_theta_and_its_server_goes_part_of_the_way() -> None:
    found = run(PFedMe(), T=1, network=mlp)
    assert all(not torch.equal(found.predictors[0][k].values, found.w_k[0][k]) for k in SITES)
    w0 = toy_problem(3).initial(Seeds(7))[0].values
    half = run(PFedMe(server_rate=0.5), T=1, network=mlp).w[0].values
    torch.testing.assert_close(half, (w0 + found.w[0].values) / 2)


def test_pfedme_refuses_steps_that_swing() -> None:
    with pytest.raises(ValidationError, match=r"inner_rate \* pull must be below 1.*0.1 \* 15"):
        PFedMe(inner_rate=0.1)
    with pytest.raises(ValidationError, match="below 1"):
        PFedMe(inner_rate=0.5, pull=2.0)


def test_l2gd_of_whole_shares_is_fedavg_even_bit_for_bit() -> None:
    ours, theirs = run(L2GD(share=1.0)), run(FedAvg(weights="even"))
    assert all(map(equal, ours.w, theirs.w))
    layout = Layout.of(norm_net())
    assert "even weights" in L2GD(share=1.0).equals_fedavg(3, layout, ADAM)
    assert L2GD().equals_fedavg(3, layout, ADAM) == ""


def test_l2gd_moves_models_part_of_the_way_and_sends_each_site_its_own() -> None:
    transport = DirectFleet(toy_problem(3), TRAINING)
    first, second = rounds_of(L2GD(share=0.25), transport, 2)
    mean = first.w_k.values.mean(0)
    torch.testing.assert_close(first.w.values, mean)
    torch.testing.assert_close(first.memory["x_k"], 0.75 * first.w_k.values + 0.25 * mean)
    for k, site in enumerate(SITES):
        sent = transport.sent("local_train", site)[1].arrays
        assert set(sent) == {"values"}  # no more traffic than FedAvg's
        assert torch.equal(sent["values"], first.memory["x_k"][k])
    assert second.t == 2


def test_an_absent_site_keeps_its_row_of_l2gd() -> None:
    away = DirectFleet(toy_problem(3), TRAINING, intercept=lose("B", verb="local_train", t=2))
    first, second = rounds_of(L2GD(), away, 2, quorum=2)
    assert torch.equal(first.memory["x_k"][1], second.memory["x_k"][1])
    assert not torch.equal(first.memory["x_k"][0], second.memory["x_k"][0])
    torch.testing.assert_close(second.w.values, second.w_k.values.mean(0))


def test_fedbn_without_such_layers_is_fedavg_bit_for_bit() -> None:
    ours, theirs = run(FedBN(), network=mlp), run(FedAvg(), network=mlp)
    assert all(map(equal, ours.w, theirs.w))
    assert all(equal(ours.predictors[-1][site], ours.w[-1]) for site in SITES)
    assert "no normalisation layer" in FedBN().equals_fedavg(3, Layout.of(mlp()), ADAM)
    assert FedBN().equals_fedavg(3, Layout.of(norm_net()), ADAM) == ""


def test_fedbns_sites_keep_their_normalisation_and_share_the_rest() -> None:
    found = run(FedBN())
    layout = Layout.of(norm_net())
    own = torch.zeros(layout.size, dtype=torch.bool)
    for start, stop in layout.normalisation:
        own[start:stop] = True
    assert own.sum() == 4 * 6  # scale, offset, mean, variance
    for w, w_k, predictors in zip(found.w, found.w_k, found.predictors, strict=True):
        for site in SITES:
            assert torch.equal(predictors[site].values[own], w_k[site][own])
            assert torch.equal(predictors[site].values[~own], w.values[~own])
    assert [predictors.counters.tolist() for predictors in found.predictors[-1].values()] == [
        [9]
    ] * 3
    plain = run(FedAvg())
    assert equal(found.w[0], plain.w[0])  # nothing is kept yet in round 1
    assert not equal(found.w[1], plain.w[1])


@pytest.mark.parametrize("method", [Ditto(), APFL(), PFedMe(), L2GD(), FedBN()], ids=str)
def test_one_site_that_is_away_goes_on_from_what_it_kept(method) -> None:
    """Its state is that of the round before, and the others' are as new."""
    found = run(method, intercept=lose("B", verb="local_train", t=2))
    one, two = found.kept[0], found.kept[1]
    assert all(torch.equal(one["B"][name], two["B"][name]) for name in one["B"])
    assert any(not torch.equal(one["A"][name], two["A"][name]) for name in one["A"])


@pytest.mark.parametrize("method", [Ditto(), APFL(), PFedMe(), L2GD(), FedBN()], ids=str)
def test_the_rule_of_a_request_is_the_rule_of_the_method(method) -> None:
    rule = method.local(Layout.of(norm_net())).rule
    assert rule_of(rule.note(), "here") == rule
    assert rule.keeps


def test_the_same_run_twice_has_the_same_bits() -> None:
    one, two = (rounds_of(APFL(), DirectFleet(toy_problem(3, norm_net), ADAM), 2) for _ in "12")
    assert all(map(same_round, one, two))
