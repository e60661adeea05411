"""FedAdam, FedYogi, FedAdagrad, FedExP and IMA: known answers, by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from aggregations import aggregation, next_round
from autofedavg.algorithm import Round
from autofedavg.core.trainer import Training
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.experiment.models import load_state, save_state
from autofedavg.federation.port import Federation
from autofedavg.federation.settings import Exchange
from autofedavg.methods.fedadagrad import FedAdagrad
from autofedavg.methods.fedadam import FedAdam
from autofedavg.methods.fedavg import FedAvg
from autofedavg.methods.fedexp import FedExP
from autofedavg.methods.fedyogi import FedYogi
from autofedavg.methods.ima import IMA
from toy import DirectFleet, lose, norm_net, rounds_of, toy_problem

TRAINING = Training(epochs=1)
ADAPTIVE = [FedAdam, FedYogi, FedAdagrad]
ALL = [FedAdam(), FedYogi(), FedAdagrad(), FedExP(), FedExP(average=False), IMA(), IMA(start=0.0)]


def named(value) -> str:
    return value.__name__ if isinstance(value, type) else repr(value)


def plain(at) -> torch.Tensor:
    return FedAvg().aggregate(at).values


# --- FedAdam, FedYogi, FedAdagrad ---------------------------------------------------------------


@pytest.mark.parametrize("kind", ADAPTIVE, ids=named)
def test_without_a_move_the_model_stays(kind) -> None:
    at = aggregation([[0.0, 0.0], [0.0, 0.0]], [0.3, 0.1], [0.3, 0.7])
    after = kind().aggregate(at).values
    torch.testing.assert_close(after, at.w.values, rtol=0, atol=1e-15)


@pytest.mark.parametrize("kind", ADAPTIVE, ids=named)
def test_with_a_large_tau_it_is_fedavg(kind) -> None:
    """sqrt(v) + tau is tau where v forgets at once, and 2 tau where it stays at tau^2."""
    adam = kind is FedAdam
    how = {"beta2": 0.0} if adam else {}
    method = kind(beta1=0.0, tau=1e6, server_rate=1e6 if adam else 2e6, **how)
    at = aggregation([[0.1, 0.7], [0.3, -0.2]], [0.3, 0.1], [0.3, 0.7])
    at = next_round(method, at, [[0.5, 0.1], [-0.3, 0.2]])
    torch.testing.assert_close(method.aggregate(at).values, plain(at), rtol=1e-5, atol=1e-6)


SECOND = {  # v after Delta_bar = 1 and then 3, from v = 0.25
    FedAdam: [0.75 * 0.25 + 0.25 * 1, 0.75 * 0.4375 + 0.25 * 9],
    FedYogi: [0.25 + 0.25 * 1, 0.5 + 0.25 * 9],
    FedAdagrad: [1.25, 10.25],
}


@pytest.mark.parametrize("kind", ADAPTIVE, ids=named)
def test_two_steps_by_hand(kind) -> None:
    how = {} if kind is FedAdagrad else {"beta2": 0.75}
    method = kind(beta1=0.5, tau=0.5, server_rate=0.1, **how)
    first = aggregation([[1.0], [1.0]])
    second = next_round(method, first, [[3.0], [3.0]])
    v1, v2 = SECOND[kind]
    w1 = 0.1 * 0.5 / (math.sqrt(v1) + 0.5)
    assert second.w.values.tolist() == pytest.approx([w1])
    assert second.memory["v"].tolist() == pytest.approx([v1])
    after = method.aggregate(second).values
    m2 = 0.5 * 0.5 + 0.5 * 3
    assert second.memory["m"].tolist() == pytest.approx([m2])
    assert after.tolist() == pytest.approx([w1 + 0.1 * m2 / (math.sqrt(v2) + 0.5)])


def test_yogi_lowers_v_where_updates_are_smaller_than_it() -> None:
    method = FedYogi(beta2=0.75, tau=2.0)
    at = aggregation([[1.0]])
    method.aggregate(at)
    assert at.memory["v"].tolist() == [4 - 0.25]


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=6))
def test_v_stays_positive_and_the_model_finite(moves) -> None:
    for kind in ADAPTIVE:
        method, at = kind(), aggregation([[0.0]])
        for move in moves:
            at = next_round(method, at, [[move]])
            assert float(at.memory["v"]) > 0
        assert torch.isfinite(method.aggregate(at).values).all()


def test_the_papers_defaults() -> None:
    assert (FedAdam().beta1, FedAdam().beta2, FedAdam().tau) == (0.9, 0.99, 1e-3)
    assert (FedAdam().server_rate, FedYogi().server_rate) == (0.01, 0.01)
    assert (FedAdagrad().beta1, FedAdagrad().server_rate) == (0.0, 0.1)


@pytest.mark.parametrize("method", ALL, ids=named)
def test_buffers_are_averaged_and_not_stepped(method) -> None:
    transport = DirectFleet(toy_problem(3, norm_net))
    (done,) = rounds_of(method, transport, 1)
    (fedavg,) = rounds_of(FedAvg(), DirectFleet(toy_problem(3, norm_net)), 1)
    end = transport.problem.initial(transport.seeds)[1].trainable
    assert len(done.w.values) > end
    assert torch.equal(done.w.values[end:], fedavg.w.values[end:])
    assert torch.equal(done.w.counters, fedavg.w.counters)


# --- FedExP -------------------------------------------------------------------------------------


def test_equal_updates_take_a_step_of_one_with_fedavgs_bits() -> None:
    at = aggregation([[0.1, 0.7]] * 3, [0.3, 0.1], [0.2, 0.3, 0.5])
    method = FedExP()
    assert method.rate(at) == 1
    assert torch.equal(method.aggregate(at).values, plain(at))


@pytest.mark.parametrize("sites", [2, 3, 8])
def test_orthogonal_updates_of_one_length_take_a_step_of_half_their_number(sites) -> None:
    at = aggregation((5 * torch.eye(sites)).tolist())
    method = FedExP(epsilon=1e-12)
    assert method.rate(at) == pytest.approx(sites / 2)
    after = method.aggregate(at).values
    assert after.tolist() == pytest.approx([5 / 2] * sites)


def test_epsilon_counts_once_a_site_and_bounds_the_step() -> None:
    """sum_k p_k |Delta_k|^2 = 4, Delta_bar = 0: 4 / (2 * 2 epsilon)."""
    at = aggregation([[2.0], [-2.0]])
    assert FedExP(epsilon=0.1).rate(at) == pytest.approx(10)
    assert FedExP().aggregate(at).values.tolist() == [0.0]


def test_sizes_count_in_the_step() -> None:
    at = aggregation([[4.0], [0.0]], p=[0.25, 0.75])
    assert FedExP(epsilon=1e-12).rate(at) == pytest.approx(0.25 * 16 / (2 * 1))


@pytest.mark.parametrize("average", [True, False])
def test_the_round_s_model_is_the_mean_of_two_iterates_and_sites_start_from_the_last(
    average,
) -> None:
    problem = toy_problem(3)
    transport = DirectFleet(problem)
    done = rounds_of(FedExP(average=average), transport, 3)
    starts = [m.arrays["values"] for m in transport.sent("local_train", "A")]
    if not average:
        assert all(torch.equal(a.w.values, b) for a, b in zip(done, starts[1:], strict=False))
        assert done[-1].memory == {}
        return
    assert torch.equal(done[0].w.values, starts[1])  # round 1: one iterate
    end = problem.initial(transport.seeds)[1].trainable
    for t in (1, 2):
        iterate = done[t].memory["iterate"]
        mean = (iterate + starts[t]) / 2
        torch.testing.assert_close(done[t].w.values[:end], mean[:end], rtol=0, atol=0)
        if t < 2:
            assert torch.equal(starts[t + 1], iterate)


def test_the_iterates_are_those_of_the_run_without_averaging() -> None:
    averaged = rounds_of(FedExP(), DirectFleet(toy_problem(3)), 4)
    bare = rounds_of(FedExP(average=False), DirectFleet(toy_problem(3)), 4)
    for one, other in zip(averaged[1:], bare[1:], strict=True):
        assert torch.equal(one.memory["iterate"], other.w.values)
        assert not torch.equal(one.w.values, other.w.values)


def test_with_one_site_and_no_average_it_is_fedavg_bit_for_bit() -> None:
    ours, theirs = (
        rounds_of(method, DirectFleet(toy_problem(1)), 3)[-1]
        for method in (FedExP(average=False), FedAvg())
    )
    assert torch.equal(ours.w.values, theirs.w.values)
    layout = aggregation([[1.0]]).layout
    assert FedExP(average=False).equals_fedavg(1, layout, TRAINING)
    assert not FedExP().equals_fedavg(1, layout, TRAINING)
    assert not FedExP(average=False).equals_fedavg(2, layout, TRAINING)


@pytest.mark.parametrize("how", ["bfloat16", "difference"])
@pytest.mark.parametrize("method", ALL, ids=named)
def test_lossy_encodings_resume_with_the_same_bits(method, how) -> None:
    exchange = Exchange(down=how, up=how)
    whole = rounds_of(method, DirectFleet(toy_problem(3)), 4, exchange=exchange)
    rest = rounds_of(method, DirectFleet(toy_problem(3)), 4, whole[1], exchange=exchange)
    assert torch.equal(whole[-1].w.values, rest[-1].w.values)


def test_both_of_fedexps_models_travel_in_half_the_bytes() -> None:
    transport = DirectFleet(toy_problem(3))
    rounds_of(FedExP(), transport, 3, exchange=Exchange(down="bfloat16"))
    last = transport.sent("local_train", "A")[-1]
    assert set(last.arrays) == {"halves"}


# --- IMA ----------------------------------------------------------------------------------------


def test_ima_averages_the_last_aggregates_from_its_round_on() -> None:
    """Moves of 1: w = 1, 2, 3, then the mean of the last three aggregates."""
    method = IMA(start=0.75, window=3)
    at, seen, aggregates = aggregation([[1.0]], T=4), [], []
    for _ in range(4):
        aggregates.append(float(at.w.values) + 1)
        at = next_round(method, at, [[1.0]])
        seen.append(float(at.w.values))
    assert aggregates == [1, 2, 3, 3]  # sites start from the mean
    assert seen == pytest.approx([1, 2, (1 + 2 + 3) / 3, (2 + 3 + 3) / 3])


def test_ima_keeps_no_more_than_its_window_and_nothing_early() -> None:
    method, at = IMA(start=0.5, window=2), aggregation([[1.0]], T=8)
    kept = []
    for _ in range(8):
        at = next_round(method, at, [[1.0]])
        kept.append(len(at.memory))
    assert kept == [0, 0, 1, 2, 2, 2, 2, 2]


@pytest.mark.parametrize("start", [0.0, 0.75])
def test_a_window_of_one_is_fedavg_bit_for_bit(start) -> None:
    ours, theirs = (
        rounds_of(method, DirectFleet(toy_problem(3, norm_net)), 4)[-1]
        for method in (IMA(window=1, start=start), FedAvg())
    )
    assert torch.equal(ours.w.values, theirs.w.values)
    assert ours.memory == {}
    assert IMA(window=1).equals_fedavg(3, aggregation([[1.0]]).layout, TRAINING)
    assert not IMA().equals_fedavg(3, aggregation([[1.0]]).layout, TRAINING)


def test_before_its_round_ima_is_fedavg_bit_for_bit() -> None:
    ours, theirs = (
        rounds_of(method, DirectFleet(toy_problem(3)), 4) for method in (IMA(), FedAvg())
    )
    same = [torch.equal(a.w.values, b.w.values) for a, b in zip(ours, theirs, strict=True)]
    assert same == [True, True, False, False]


# --- all ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ALL, ids=named)
def test_a_run_goes_on_from_a_checkpoint_on_disk_with_the_same_bits(method, tmp_path) -> None:
    transport = DirectFleet(toy_problem(3, norm_net))
    w0, layout = transport.problem.initial(transport.seeds)
    saved = []
    for state in method.rounds(Federation(transport), layout, 8, Round(0, w0)):
        folder = RunFolder.create(tmp_path / str(state.t), "", {})
        save_state(folder, state, {})
        saved.append(load_state(folder.load_round(), ("A", "B", "C")))
    for stop in (1, 5, 6):
        rest = rounds_of(method, DirectFleet(toy_problem(3, norm_net)), 8, saved[stop - 1])
        assert torch.equal(saved[-1].w.values, rest[-1].w.values)
        assert torch.equal(saved[-1].w.counters, rest[-1].w.counters)


@pytest.mark.parametrize("method", ALL, ids=named)
def test_a_run_goes_on_without_an_absent_site(method) -> None:
    transport = DirectFleet(toy_problem(3), intercept=lose("B", verb="local_train", t=2))
    done = rounds_of(method, transport, 3, quorum=2)
    assert all(torch.isfinite(state.w.values).all() for state in done)
    assert done[1].w_k.sites == ("A", "C")


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        *((kind, {"beta1": 1.0}) for kind in ADAPTIVE),
        *((kind, {"tau": 0.0}) for kind in ADAPTIVE),
        *((kind, {"server_rate": math.inf}) for kind in ADAPTIVE),
        (FedAdam, {"beta2": -0.1}),
        (FedYogi, {"beta2": 1.0}),
        (FedExP, {"epsilon": 0.0}),
        (IMA, {"window": 0}),
        (IMA, {"start": 1.5}),
    ],
)
def test_settings_out_of_range_are_refused(kind, wrong) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        kind(**wrong)


def test_adagrad_has_no_beta2() -> None:
    with pytest.raises(ValidationError, match="beta2"):
        FedAdagrad(beta2=0.9)
