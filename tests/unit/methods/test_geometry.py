"""FedAWA, FedLWS and L-DAWA: weights and factors that follow from the models' geometry, by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from aggregations import EMPTY, aggregation, next_round
from autofedavg.core.bank import Layout, Model
from autofedavg.core.trainer import Training
from autofedavg.methods.averaging import Aggregation
from autofedavg.methods.fedavg import FedAvg
from autofedavg.methods.fedawa import FedAWA, slope
from autofedavg.methods.fedlws import FedLWS
from autofedavg.methods.l_dawa import LDawa
from toy import DirectFleet, bank_of, float64, lose, mlp, norm_net, rounds_of, toy_problem

THREE = [[0.1, 0.7, 0.2], [0.3, -0.2, 0.1], [0.5, 0.9, -1.0]]
W, P = [0.3, 0.1, -0.4], [0.2, 0.3, 0.5]
TRAINING = Training(epochs=1)


def in_layers(network, moved, p=None) -> Aggregation:
    """A round whose clients have moved from this network's weights to its weights plus rows."""
    at = aggregation(moved, p=p)
    layout = Layout.of(network)
    w = layout.read(network)
    at.layout, at.w = layout, w
    at.w_k.values.copy_(w.values + torch.tensor(moved, dtype=torch.float64))
    return at


# --- FedAWA ---------------------------------------------------------------------------------------


def loss_of(w_k, w, x):
    """The method's loss, written with the models themselves."""
    a, moved = torch.softmax(x, dim=0), w_k - w
    far = torch.linalg.vector_norm(moved - a @ moved, dim=1)
    cosine = torch.cosine_similarity(w_k, w.expand_as(w_k), dim=1)
    return (a * far).sum() + (a * (1 - cosine)).sum()


def test_fedawas_first_round_has_the_softmax_of_the_sizes() -> None:
    at = aggregation(THREE, W, P)
    after = FedAWA().aggregate(at)
    a = torch.softmax(float64(P), dim=0)
    assert torch.equal(at.alpha, a)
    torch.testing.assert_close(after.values, a @ at.w_k.values, rtol=0, atol=1e-15)


def test_fedawas_slope_is_the_derivative_of_its_loss() -> None:
    at = aggregation(THREE, W, P)
    x = float64([0.3, -0.4, 1.0]).requires_grad_()
    (expected,) = torch.autograd.grad(loss_of(at.w_k.values, at.w.values, x), x)
    found = slope(at.gram(), torch.softmax(x.detach(), dim=0))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


def test_fedawa_takes_the_first_step_of_a_new_adam_in_every_round() -> None:
    method = FedAWA(rate=0.01)
    at = aggregation(THREE, W, P)
    x = float64(P).requires_grad_()
    for _ in range(2):
        adam = torch.optim.Adam([x], 0.01, (0.5, 0.999))
        x.grad = torch.autograd.grad(loss_of(at.w_k.values, at.w.values, x), x)[0]
        adam.step()
        at = next_round(method, at, THREE)
        torch.testing.assert_close(at.memory["x"], x.detach(), rtol=0, atol=1e-12)
    before = at.memory["x"].clone()
    method.aggregate(at)
    assert torch.equal(at.alpha, torch.softmax(before, dim=0))


def test_fedawa_gives_the_outlier_less() -> None:
    method, at = FedAWA(rate=0.1), aggregation([[1.0, 0.0], [1.1, 0.0], [-5.0, 3.0]], [1.0, 1.0])
    method.aggregate(at)
    x = at.memory["x"]
    assert x[2] < x[0]
    assert x[2] < x[1]


def test_identical_sites_keep_fedawas_weights_and_one_site_is_fedavg_bit_for_bit() -> None:
    method = FedAWA(rate=0.5)
    at = aggregation([THREE[0]] * 3, W)
    for _ in range(3):
        at = next_round(method, at, [THREE[0]] * 3)
    assert torch.softmax(at.memory["x"], dim=0).tolist() == pytest.approx([1 / 3] * 3, abs=1e-9)
    still = aggregation([[0.0, 0.0]] * 2, [0.0, 0.0])
    method.aggregate(still)
    assert torch.isfinite(still.memory["x"]).all()
    one = aggregation(THREE[:1], W)
    assert torch.equal(method.aggregate(one).values, FedAvg().aggregate(one).values)
    assert method.equals_fedavg(1, one.layout, TRAINING)
    assert not method.equals_fedavg(2, one.layout, TRAINING)


def test_fedawa_leaves_an_absent_sites_number_alone() -> None:
    at = aggregation(THREE[:2], W, P, sites="ABC")
    after = FedAWA(rate=0.1).aggregate(at)
    a = torch.softmax(float64(P[:2]), dim=0)
    assert at.alpha.tolist() == [*a.tolist(), 0.0]
    torch.testing.assert_close(after.values, a @ at.w_k.values)
    assert at.memory["x"][2] == P[2]
    assert (at.memory["x"][:2] != float64(P[:2])).all()


@given(st.permutations(range(3)), st.lists(st.floats(-3, 3), min_size=9, max_size=9))
def test_permuting_sites_permutes_fedawas_weights(order, numbers) -> None:
    rows = [numbers[:3], numbers[3:6], numbers[6:]]
    slopes = [
        slope(aggregation([rows[k] for k in which], W).gram(), float64([P[k] for k in which]))
        for which in (range(3), order)
    ]
    torch.testing.assert_close(slopes[1], slopes[0][list(order)], rtol=0, atol=1e-7)
    assert abs(float(slopes[0].sum())) < 1e-9
    at = aggregation(rows, W, P)
    FedAWA().aggregate(at)
    assert float(at.alpha.sum()) == pytest.approx(1)
    assert (at.alpha > 0).all()


# --- FedLWS ---------------------------------------------------------------------------------------


def test_fedlws_shrinks_identical_models_by_the_least_tau() -> None:
    at = aggregation([[0.0, 5.0]] * 3, [3.0, 4.0])
    expected = 5 / (5 + 0.01 * 5)
    assert FedLWS().aggregate(at).values.tolist() == pytest.approx([3 * expected, 9 * expected])
    assert at.alpha.tolist() == [1 / 3] * 3


def test_fedlwss_tau_is_the_mean_distance_from_the_even_mean() -> None:
    """Delta = (0, 4), p = (1/4, 3/4): mean distance 2, Delta_bar 3."""
    at = aggregation([[0.0], [4.0]], [1.0], [0.25, 0.75])
    after = FedLWS(strength=0.05).aggregate(at).values
    assert after.tolist() == pytest.approx([4 / (1 + 0.1 * 3)])
    assert FedLWS().aggregate(at).values.tolist() == pytest.approx([4 / (1 + 0.06 * 3)])
    assert FedLWS(strength=9.0).aggregate(at).values.tolist() == pytest.approx([4 / (1 + 0.2 * 3)])


def test_fedlws_shrinks_layer_by_layer_and_leaves_normalisation_and_statistics_alone() -> None:
    network = norm_net(torch.float64)
    size = Layout.of(network).size
    moved = torch.randn(2, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    at = in_layers(network, moved.tolist(), [0.3, 0.7])
    plain, shrunk = FedAvg().aggregate(at).values, FedLWS().aggregate(at).values
    named = {e.name: slice(e.start, e.stop) for e in at.layout.entries}
    for name, part in named.items():
        if name.startswith("1."):
            assert torch.equal(shrunk[part], plain[part]), name
    for layer in ("0", "4"):
        first, last = named[f"{layer}.weight"].start, named[f"{layer}.bias"].stop
        own = moved[:, first:last]
        tau = (0.03 * (own - own.mean(0)).norm(dim=1).mean()).clamp(0.01, 0.2)
        w = at.w.values[first:last].norm()
        factor = w / (w + tau * (float64([0.3, 0.7]) @ own).norm())
        torch.testing.assert_close(shrunk[first:last], factor * plain[first:last])
        assert factor < 0.99


def test_fedlws_lets_a_layer_of_zeros_grow() -> None:
    at = aggregation([[1.0, 2.0], [3.0, 2.0]])
    assert FedLWS().aggregate(at).values.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("neutral", [{"strength": 0.0, "least": 0.0}, {"least": 0.0, "most": 0.0}])
def test_fedlws_without_tau_is_fedavg_bit_for_bit(neutral) -> None:
    problem, method = toy_problem(3, norm_net), FedLWS(**neutral)
    ours, theirs = (rounds_of(m, DirectFleet(problem), 2)[-1] for m in (method, FedAvg()))
    assert torch.equal(ours.w.values, theirs.w.values)
    assert method.equals_fedavg(3, problem.initial(DirectFleet(problem).seeds)[1], TRAINING)
    assert not FedLWS().equals_fedavg(3, Layout.of(mlp()), TRAINING)


@given(
    moved=st.lists(st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=4), min_size=1, max_size=5),
    w=st.lists(st.floats(-1e3, 1e3), min_size=4, max_size=4),
    strength=st.floats(0, 1e6),
)
def test_fedlws_shrinks_by_no_more_than_its_limits_however_far_sites_moved(
    moved, w, strength
) -> None:
    """So that what it sends is never longer than FedAvg's model, and never not a number."""
    method, at = FedLWS(strength=strength), aggregation(moved, w)
    plain, shrunk = FedAvg().aggregate(at).values, method.aggregate(at).values
    size, far = float(at.w.values.norm()), float(at.move.norm())
    assert torch.isfinite(shrunk).all()
    if size == 0:
        assert torch.equal(shrunk, plain)
        return
    least, most = (size / (size + tau * far) for tau in (method.most, method.least))
    ratio = shrunk.norm() / plain.norm() if plain.any() else torch.ones(())
    assert least * (1 - 1e-6) <= float(ratio) <= min(1.0, most * (1 + 1e-6)) or not plain.any()


def test_fedlws_refuses_limits_that_cross() -> None:
    with pytest.raises(ValidationError, match=r"least = 0\.3 is above most = 0\.2"):
        FedLWS(least=0.3)


# --- L-DAWA ---------------------------------------------------------------------------------------


def test_l_dawa_of_models_that_did_not_move_is_the_model() -> None:
    at = aggregation([[0.0, 0.0, 0.0]] * 3, W)
    torch.testing.assert_close(LDawa().aggregate(at).values, at.w.values, rtol=0, atol=1e-15)
    assert at.alpha is None


def test_l_dawa_counts_by_the_cosine_negative_ones_included() -> None:
    """w = (1, 0); w_1 = (1, 1): cos 1/sqrt 2; w_2 = (-2, 0): cos -1; w_3 = (0, 3): cos 0."""
    at = aggregation([[0.0, 1.0], [-3.0, 0.0], [-1.0, 3.0]], [1.0, 0.0], P)
    root = 1 / math.sqrt(2)
    assert LDawa().aggregate(at).values.tolist() == pytest.approx([(root + 2) / 3, root / 3])


def test_l_dawa_goes_tensor_by_tensor_and_averages_statistics_by_size() -> None:
    bank, layout = bank_of(lambda: norm_net(torch.float64), 3)
    network = norm_net(torch.float64)
    w = layout.read(network)
    at = in_layers(network, (bank.values - w.values).tolist(), P)
    at = Aggregation(at.federation, layout, 1, 1, at.w, at.trained, float64(P))
    found = layout.state_dict(Model(LDawa().aggregate(at).values, EMPTY.new_zeros(1)))
    for entry in layout.entries:
        own = at.w_k.values[:, entry.start : entry.stop]
        reference = at.w.values[entry.start : entry.stop]
        if entry.start >= layout.trainable:
            expected = float64(P) @ own
        elif not reference.any():
            expected = own.mean(0)  # no direction to compare with
        else:
            expected = (torch.cosine_similarity(own, reference[None], dim=1) @ own) / 3
        torch.testing.assert_close(found[entry.name].flatten(), expected)
    assert not layout.state_dict(w)["1.bias"].any()


def test_l_dawa_averages_those_that_replied() -> None:
    at = aggregation([[1.0, 0.0], [3.0, 0.0]], [1.0, 0.0], P, sites="ABC")
    assert LDawa().aggregate(at).values.tolist() == pytest.approx([3.0, 0.0])


@given(st.permutations(range(3)))
def test_l_dawa_and_fedlws_do_not_depend_on_the_order_of_sites(order) -> None:
    for method in (LDawa(), FedLWS()):
        straight = method.aggregate(aggregation(THREE, W, P)).values
        rows, p = [THREE[k] for k in order], [P[k] for k in order]
        torch.testing.assert_close(method.aggregate(aggregation(rows, W, p)).values, straight)


@pytest.mark.parametrize("method", [FedAWA(), FedLWS(), LDawa()], ids=lambda m: m.name)
def test_a_lost_site_does_not_stop_them(method) -> None:
    problem = toy_problem(3, norm_net)
    transport = DirectFleet(problem, intercept=lose("B", verb="local_train", t=2))
    done = rounds_of(method, transport, 3, quorum=2)
    assert done[1].w_k.sites == ("A", "C")
    assert all(torch.isfinite(state.w.values).all() for state in done)


@pytest.mark.parametrize(
    ("method", "wrong"),
    [(FedAWA, {"rate": 0.0}), (FedAWA, {"rate": math.inf}), (FedLWS, {"strength": -1.0})],
)
def test_impossible_settings_are_refused(method, wrong) -> None:
    with pytest.raises(ValidationError):
        method(**wrong)


def test_a_network_with_frozen_parts_keeps_them() -> None:
    network = mlp(torch.float64)
    network[0].requires_grad_(False)
    layout = Layout.of(network)
    moved = torch.zeros(2, layout.size, dtype=torch.float64)
    moved[:, : layout.trainable] = 0.5
    at = in_layers(network, moved.tolist())
    for method in (FedAWA(), FedLWS(), LDawa()):
        after = method.aggregate(at).values
        torch.testing.assert_close(after[layout.trainable :], at.w.values[layout.trainable :])
