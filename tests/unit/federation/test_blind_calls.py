"""Blind learning through the port: masks, lost and restarted sites, bad parts, resumed rounds."""

import pytest
import torch

from autofedavg.algorithm import Round
from autofedavg.core.seeds import Seeds
from autofedavg.engines.simulator.simulator import Simulator
from autofedavg.methods.auto_fedavg import AutoFedAvg
from blind_runs import T, blind_run, federation_of, same_rounds
from toy import TRAINING, DirectFleet, mlp, norm_net, toy_problem

VARIANTS = [
    {},
    {"constraint": "softmax", "sketch": 16},
    {"weights": "layer", "sketch": 30, "objective": "size", "start": "sizes"},
    {"constraint": "softmax", "weights": "layer", "layer": "tensor", "sketch": 0, "t0": 2},
    {"beta_optimiser": "sgd", "beta_rate": 20.0, "mode": "train", "learn_on": "train"},
    {"t0": "auto", "batches": 3, "constraint": "softmax", "start": "sizes"},
    {"t0": "auto", "weights": "layer", "sketch": 40},
]


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
@pytest.mark.parametrize("network", [mlp, norm_net])
def test_masks_change_no_bit_of_a_whole_run(network, settings):
    problem = toy_problem(4, network)
    fleet = DirectFleet(problem)
    with_masks = blind_run(fleet, problem, **settings)
    with Simulator(problem, TRAINING, Seeds(7), workers=1, threads=1) as simulator:
        without = blind_run(simulator, problem, **settings)
    assert same_rounds(with_masks, without)
    sent = [m.facts["sum"]["keys"] for m in fleet.sent("local_train")]
    assert all(len(key) == 64 for keys in sent for key in keys.values())


@pytest.mark.parametrize(
    "change",
    [
        {"constraint": "softmax"},
        {"weights": "layer"},
        {"weights": "layer", "layer": "tensor"},
        {"t0": 2},
        {"t0": "auto"},
        {"beta0": 3.0},
        {"start": "sizes"},
        {"beta_optimiser": "sgd"},
        {"beta_rate": 0.1},
        {"learn_on": "train"},
        {"learn_on": "holdout"},
        {"mode": "train"},
        {"objective": "size"},
        {"sketch": 9},
        {"batches": 1},
    ],
    ids=str,
)
def test_every_setting_changes_the_result(change):
    problem = toy_problem(3, norm_net)
    base = {"weights": "layer"} if len(change) > 1 else {}
    one, other = (blind_run(DirectFleet(problem), problem, **how) for how in (base, change))
    assert not torch.equal(one[-1].w.values, other[-1].w.values)


def test_workers_change_no_bit():
    problem = toy_problem(4, norm_net)
    found = []
    for workers in (1, 2):
        with Simulator(problem, TRAINING, Seeds(7), workers=workers, threads=1) as simulator:
            found.append(blind_run(simulator, problem))
    assert same_rounds(*found)


@pytest.mark.parametrize("stop", [1, 2, 3])
@pytest.mark.parametrize(("t0", "rounds"), [(1, 4), ("auto", 11)])
def test_a_run_continues_from_any_round_with_the_same_bits(stop, t0, rounds):
    problem = toy_problem(3, norm_net)
    how = {"show_weights": True, "t0": t0, "rounds": rounds}
    with Simulator(problem, TRAINING, Seeds(7), workers=1, threads=1) as simulator:
        whole = blind_run(simulator, problem, **how)
    with Simulator(problem, TRAINING, Seeds(7), workers=1, threads=1) as simulator:
        before = federation_of(simulator)
        first = blind_run(simulator, problem, federation=before, stop=stop, **how)
        known, copies = before.personal, before.copies()
    with Simulator(problem, TRAINING, Seeds(7), workers=1, threads=1) as simulator:
        after = federation_of(simulator)
        after.resume_personal(known, copies)
        rest = blind_run(simulator, problem, federation=after, after=first[-1], **how)
    assert same_rounds(first + rest, whole)
    assert torch.equal(rest[-1].alpha, whole[-1].alpha)
    assert rest[-1].memory == whole[-1].memory


@pytest.mark.parametrize("how", [{}, {"sketch": 16}, {"t0": "auto", "sketch": 16}], ids=str)
def test_a_step_moves_the_bytes_that_check_promises(how):
    """Integers up, and their sum down with the next model; scalars and names are not counted."""
    problem, learned = toy_problem(3, norm_net), []

    class Counting(DirectFleet):
        def ask(self, verb, messages, within):
            replies = super().ask(verb, messages, within)
            if verb == "masked_gradient":
                learned.append(replies["A"].arrays["narrow"].nbytes)
            return replies

    fleet = Counting(problem)
    blind_run(fleet, problem, **how)
    lessons = [m.arrays.get("lesson/y") for m in fleet.sent("local_train", "A")]
    down = [lesson.nbytes for lesson in lessons if lesson is not None]
    layout = fleet.clients["A"].trainer.layout
    promised = AutoFedAvg(learning="blind", **how).sketched_bytes(layout)
    assert [a + b for a, b in zip(learned, down, strict=True)] == [promised] * len(down)
    assert down


def test_the_first_round_is_fedavg_with_even_weights():
    """theta is equal everywhere: w^1 is the mean of the w_k, to the steps of fixed point."""
    problem = toy_problem(4, norm_net)
    (first,) = blind_run(DirectFleet(problem), problem, rounds=1)
    w0, _ = problem.initial(Seeds(7))
    w_k = federation_of(DirectFleet(problem)).local_train(1, w0, T=1).w_k
    torch.testing.assert_close(first.w.values, w_k.values.mean(dim=0), rtol=0, atol=1e-6)
    assert torch.equal(first.w.counters, w0.counters)
    assert first.w_k is None
    assert first.alpha is None
    assert first.losses == {}
    assert not first.learned


def test_weights_are_learned_and_shown_only_where_asked_for():
    problem = toy_problem(4)
    shown = blind_run(DirectFleet(problem), problem, constraint="softmax", show_weights=True)
    hidden = blind_run(DirectFleet(problem), problem, constraint="softmax")
    assert same_rounds(shown, hidden)
    assert all(state.alpha is None for state in hidden)
    alpha = shown[-1].alpha
    assert alpha.shape == (4,)
    assert float(alpha.sum()) == pytest.approx(1)
    assert float(alpha.max() - alpha.min()) > 0.05
    assert [state.learned for state in shown] == [False, True, True, True]
    layered = blind_run(DirectFleet(problem), problem, weights="layer", show_weights=True)
    assert layered[-1].alpha.shape == (4, 2)


def test_a_learning_round_has_the_effect_of_the_servers_step():
    """Without masks' lag in between: u of round 2 is the softmax step of learning = "server"."""
    problem = toy_problem(4, mlp, dtype=torch.float64)
    how = {"constraint": "softmax", "beta_optimiser": "sgd", "beta_rate": 20.0}
    blind = blind_run(
        DirectFleet(problem), problem, rounds=2, batches=1, sketch=0, show_weights=True, **how
    )
    w0, layout = problem.initial(Seeds(7))
    server = AutoFedAvg(learning="server", S=1, **how)
    (other,) = server.rounds(federation_of(DirectFleet(problem)), layout, 1, Round(0, w0))
    torch.testing.assert_close(blind[1].alpha, other.alpha, rtol=0, atol=1e-6)
    assert (other.alpha - 0.25).abs().max() > 1e-2


def test_the_round_says_what_was_learned_from_and_how_well_a_sketch_resolves_it(caplog):
    problem = toy_problem(4)
    transport = DirectFleet(problem)
    federation = federation_of(transport)
    w0, layout = problem.initial(Seeds(7))
    method = AutoFedAvg(learning="blind", sketch=9)
    rounds = method.rounds(federation, layout, T, Round(0, w0))
    lines = [federation.take_remarks() for _ in rounds]
    first, *others = [line["blind"] for line in lines]
    assert set(first) == {"numbers", "of", "loss"}
    for line in others:
        assert set(line) == {*first, "learning_loss", "cosine", "resolution"}
        assert 0 < line["cosine"] < 1
        assert line["resolution"] == pytest.approx(1 / 3)
        assert (line["numbers"], line["of"]) == (9, layout.trainable)
    assert lines[0]["answered"] == ["A", "B", "C", "D"]
    small = any(line["cosine"] < 1 / 3 for line in others)
    assert caplog.text.count("use a larger one") == small
    assert federation.take_remarks() == {}
