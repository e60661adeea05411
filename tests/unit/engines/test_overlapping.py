"""Clients that train side by side give the answers of clients that train one after another."""

import random
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autofedavg.algorithm import Round
from autofedavg.core.beta_optimiser import BetaOptimiser
from autofedavg.core.blind import BlindPlan
from autofedavg.core.errors import ConfigError, DataError
from autofedavg.core.seeds import Purpose, Seeds, global_seed
from autofedavg.core.trainer import LocalTrainer, Training
from autofedavg.engines.simulator import stacking
from autofedavg.engines.simulator.overlapping import OverlappedGroup, why_not_overlapped
from autofedavg.engines.simulator.simulator import Simulator
from autofedavg.engines.simulator.stacking import group_of
from autofedavg.federation.client import Client, ClientGroup
from autofedavg.federation.client_state import ClientState
from autofedavg.federation.messages import Message, arrays_of
from autofedavg.federation.port import Federation
from autofedavg.federation.secure_sum import SumOver
from autofedavg.methods.auto_fedavg import AutoFedAvg
from autofedavg.tasks.loaders import LoaderData, LoaderSite
from toy import (
    CPU,
    METRIC,
    ToySite,
    cross_entropy,
    mlp,
    norm_net,
    rounds_of,
    toy_problem,
)
from toy import TRAINING as TOY

TRAINING = Training(iterations=4, batch_size=4, learning_rate=0.05)


class Uneven(ToySite):
    """Sites that take different numbers of steps, write down when, and may fail."""

    def train_batches(self, seeds, t, training):
        random = seeds.generator(self.name, Purpose.TRAIN_BATCHES, t)
        for step in range(1, (self.steps or len(self.splits["train"][0]) // 4) + 1):
            self.order.append(self.name)
            if step == self.fails_at:
                raise self.failure
            yield self._batch("train", training.batch_size, random)


def clients_of(lengths=(4, 2, 3), network=norm_net, training=TRAINING, **how):
    """Clients of one trainer, and the order in which they take their batches."""
    problem, order = toy_problem(len(lengths), network), []
    with global_seed(3):
        trainer = LocalTrainer(problem.network(), problem.loss, training, CPU)
    clients = {}
    for (name, plain), steps in zip(problem.sites.items(), lengths, strict=True):
        site = Uneven(name, plain.splits)
        site.steps, site.order, site.fails_at, site.failure = steps, order, 0, None
        clients[name] = Client(name, site, trainer, Seeds(5), ClientState(), **how)
    return clients, order


def asked(clients, t=1, **facts):
    some = next(iter(clients.values()))
    w = some.trainer.layout.read(some.trainer.network).clone()
    return {name: Message(arrays_of(w), {"t": t, "T": 5} | facts) for name in clients}


def same(found, wanted) -> None:
    assert list(found) == list(wanted)
    for name, message in wanted.items():
        assert found[name].facts == message.facts
        assert found[name].arrays.keys() == message.arrays.keys()
        for key, array in message.arrays.items():
            assert torch.equal(found[name].arrays[key], array), (name, key)


def overlapped(clients, at_once=3) -> OverlappedGroup:
    return OverlappedGroup(clients, at_once=lambda: at_once)


RULES = [
    None,
    {"name": "prox", "mu": 0.5},
    {"name": "keep"},
    {"name": "personal", "mu": 0.1},
    {"name": "fedbn"},
    {"name": "apfl", "mix": 0.3, "adaptive": True},
    {"name": "pfedme", "pull": 2.0, "inner_rate": 0.1, "inner_steps": 2, "rate": 0.1},
]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_answers_are_those_of_clients_who_train_one_after_another(rule, at_once) -> None:
    """Dropout and batch norm are in the network: randomness and buffers must not mix."""
    (alone, _), (clients, _) = clients_of(), clients_of()
    one_by_one, group = ClientGroup(alone), overlapped(clients, at_once)
    kept = {}
    for t in (1, 2, 3):
        facts = {} if rule is None else {"rule": rule}
        messages = asked(alone, t, tell=["steps"], **facts)
        for name, digest in kept.items():
            messages[name].facts["kept"] = digest
        wanted = one_by_one.answer("local_train", messages)
        same(group.answer("local_train", messages), wanted)
        kept = {n: m.facts["kept"] for n, m in wanted.items() if "kept" in m.facts}
    assert len(group._lanes) == at_once


def test_learning_takes_no_more_lanes_than_training_had_room_for() -> None:
    """A lane is a network, with recorded steps, in the GPU's memory."""
    clients, _ = clients_of()
    group = overlapped(clients, 2)
    models = asked(clients)
    group.answer("local_train", models)
    how = {"t": 1, "s": 1, "data": "validation", "mode": "eval"}
    messages = {name: Message(message.arrays, how) for name, message in models.items()}
    answers = group.answer("differentiate", messages)
    assert all("gradient" in answer.arrays for answer in answers.values())
    assert len(group._lanes) == 2


def test_steps_are_interleaved() -> None:
    clients, order = clients_of((4, 2, 3))
    overlapped(clients, 2).answer("local_train", asked(clients))
    assert "".join(order) == "ABABAACCC"


def test_the_longest_begin_first() -> None:
    """Sites of the toy problem have two, three and four batches of four cases."""
    clients, order = clients_of((0, 0, 0), training=Training(epochs=1, batch_size=4))
    answers = overlapped(clients, 2).answer("local_train", asked(clients))
    assert "".join(order) == "CBCBCBCAA"
    assert list(answers) == ["A", "B", "C"]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(1, 6), st.integers(1, 9))
def test_any_lengths_and_any_number_at_once(lengths, at_once, t) -> None:
    (alone, _), (clients, order) = clients_of(lengths), clients_of(lengths)
    messages = asked(alone, t)
    wanted = ClientGroup(alone).answer("local_train", messages)
    same(overlapped(clients, at_once).answer("local_train", messages), wanted)
    assert sorted(order) == sorted(
        n for n, k in zip(clients, lengths, strict=True) for _ in range(k)
    )


def test_a_site_that_fails_is_answered_for_and_the_others_train() -> None:
    (alone, _), (clients, _) = clients_of(), clients_of()
    for every in (alone, clients):
        every["B"].data.fails_at, every["B"].data.failure = 2, DataError("torn file", where="B")
    messages = asked(alone)
    wanted = ClientGroup(alone).answer("local_train", messages)
    group = overlapped(clients)
    same(group.answer("local_train", messages), wanted)
    assert "torn file" in str(wanted["B"].facts)
    for every in (alone, clients):
        every["B"].data.fails_at = 0
    messages = asked(alone, 2)
    same(group.answer("local_train", messages), ClientGroup(alone).answer("local_train", messages))


def test_an_unexpected_error_ends_all_and_leaves_nothing_behind() -> None:
    clients, order = clients_of((4, 4, 4))
    clients["B"].data.fails_at, clients["B"].data.failure = 2, ZeroDivisionError("a bug")
    group, threads = overlapped(clients), threading.active_count()
    torch.manual_seed(11), np.random.seed(11), random.seed(11)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        group.answer("local_train", asked(clients))
    drawn = torch.rand(2), np.random.rand(), random.random()
    torch.manual_seed(11), np.random.seed(11), random.seed(11)
    assert torch.equal(drawn[0], torch.rand(2))
    assert drawn[1:] == (np.random.rand(), random.random())
    assert "".join(order) == "ABCAB"
    assert threading.active_count() == threads
    clients["B"].data.fails_at = 0
    alone, _ = clients_of((4, 4, 4))
    messages = asked(alone)
    same(group.answer("local_train", messages), ClientGroup(alone).answer("local_train", messages))


def test_requests_that_cannot_be_met_are_answered_as_ever() -> None:
    (alone, _), (clients, _) = clients_of(), clients_of()
    messages = asked(alone)
    messages["A"] = Message({}, {"t": 1, "T": 5, "sent": {"coding": "same", "digest": "?"}})
    messages["C"] = Message(messages["C"].arrays, {"t": 1, "T": 5, "surprise": 1})
    wanted = ClientGroup(alone).answer("local_train", messages)
    assert wanted["A"].facts == {"missing": True}
    assert "surprise" in str(wanted["C"].facts)
    same(overlapped(clients).answer("local_train", messages), wanted)


def test_other_requests_are_answered_one_by_one() -> None:
    (alone, _), (clients, _) = clients_of(), clients_of()
    group, training = overlapped(clients), asked(alone)
    for every in (ClientGroup(alone), group):
        every.answer("local_train", training)
    messages = {name: Message({}, {"metric": "score"}) for name in clients}
    wanted = ClientGroup(alone).answer("validate_local", messages)
    same(group.answer("validate_local", messages), wanted)


def test_blind_learning_sends_the_same_parts() -> None:
    (alone, _), (clients, _) = clients_of(masked=False), clients_of(masked=False)
    plan = BlindPlan("softmax", 0.0, BetaOptimiser("adam", 0.3), sketch=10)
    over = SumOver(dict.fromkeys(clients, ""), 1)
    facts = {"blind": plan.note(), "sum": over.note(), "kept": "", "hold": []}
    messages = asked(alone, **facts)
    wanted = ClientGroup(alone).answer("local_train", messages)
    same(overlapped(clients).answer("local_train", messages), wanted)


def test_loaders_that_shuffle_by_global_randomness() -> None:
    def made():
        problem = toy_problem(3)
        with global_seed(3):
            trainer = LocalTrainer(mlp(), cross_entropy, TRAINING, CPU)
        clients = {}
        for name, site in problem.sites.items():
            data = torch.utils.data.TensorDataset(*site.splits["train"])
            loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
            loaders = LoaderData(name, LoaderSite(loader, loader), lambda net, batch: batch[1])
            clients[name] = Client(name, loaders, trainer, Seeds(5), ClientState())
        return clients

    alone, clients = made(), made()
    messages = asked(alone)
    wanted = ClientGroup(alone).answer("local_train", messages)
    same(overlapped(clients).answer("local_train", messages), wanted)


LEARNING = {
    "at clients": AutoFedAvg(t0=1, S=3, learn_on="train"),
    "several steps a message": AutoFedAvg(t0=1, S=4, steps_per_message=2),
    "at the server": AutoFedAvg(t0=1, S=3, learning="server"),
    "blind": AutoFedAvg(learning="blind", constraint="softmax", show_weights=True),
}


@pytest.mark.parametrize("method", LEARNING.values(), ids=LEARNING)
def test_weights_are_learned_as_one_after_another(method) -> None:
    runs, problem = [], toy_problem(3, norm_net)
    for group in (ClientGroup, overlapped):
        with Simulator(problem, TOY, Seeds(7), workers=1, threads=1) as simulator:
            simulator._groups = [group(simulator._groups[0]._clients)]
            federation = Federation(simulator, metric=METRIC)
            w, layout = problem.initial(Seeds(7))
            start = method.begin(federation, Round(0, w))
            rounds = method.rounds(federation, layout, 3, start)
            runs.append([(r.w.values.clone(), r.alpha, dict(r.losses)) for r in rounds])
    for (w, alpha, losses), (exact, weights, lost) in zip(*runs, strict=True):
        assert torch.equal(w, exact)
        assert torch.equal(alpha, weights)
        assert losses == lost


def test_gradients_are_under_way_at_once(monkeypatch) -> None:
    """Every site's gradient is launched before the first one is waited for."""
    seen, differentiate = [], LocalTrainer.differentiate

    def noted(self, *what):
        seen.append("launch")
        found = differentiate(self, *what)
        seen.append("use")
        return found

    monkeypatch.setattr(LocalTrainer, "differentiate", noted)
    problem = toy_problem(3)
    with Simulator(problem, TOY, Seeds(7), workers=1, threads=1) as simulator:
        simulator._groups = [overlapped(simulator._groups[0]._clients)]
        rounds_of(AutoFedAvg(t0=1, S=2), simulator, 1, problem=problem)
    assert seen == (["launch"] * 3 + ["use"] * 3) * 2


def test_which_clients_overlap() -> None:
    clients, _ = clients_of()
    trainer = clients["A"].trainer
    assert why_not_overlapped(clients) == "their steps cannot be recorded"
    trainer.recorded = True
    assert why_not_overlapped(clients) == ""
    clients["A"].private = object()
    assert why_not_overlapped(clients) == "their steps are differentially private"


def of_a_gpu(recorded: bool, names: int = 3) -> dict:
    clients, _ = clients_of()
    trainer = clients["A"].trainer
    trainer.device, trainer.recorded = torch.device("cuda"), recorded
    return dict(list(clients.items())[:names])


def test_a_gpus_clients_and_what_the_log_says(monkeypatch, caplog) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with caplog.at_level("INFO", logger="autofedavg"):
        found = [type(group_of(of_a_gpu(recorded=True), beside)) for beside in (1, 2)]
    assert found == [ClientGroup, OverlappedGroup]
    alone, beside = caplog.messages
    assert alone.startswith("clients take their steps one after another: ")
    assert beside.startswith("at most 2 clients take their steps side by side, not as one: ")


def test_sites_that_cannot_train_side_by_side_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"2 sites cannot .* their steps cannot be recorded"):
        group_of(of_a_gpu(recorded=False), 2)
    with pytest.raises(ConfigError, match="2 sites cannot train side by side: there is one site"):
        group_of(of_a_gpu(recorded=True, names=1), 2)


def test_clients_that_train_as_one_are_not_side_by_side(monkeypatch) -> None:
    monkeypatch.setattr(stacking, "why_not_together", lambda clients: "")
    with pytest.raises(ConfigError, match="on this GPU they take their steps as one"):
        group_of(of_a_gpu(recorded=True), 2)
