"""The crew that trains together, over a stack that works on the CPU."""

import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

from autofedavg.core.bank import Bank, Model
from autofedavg.core.beta_optimiser import BetaOptimiser
from autofedavg.core.blind import BlindPlan
from autofedavg.core.forms import Form
from autofedavg.core.layout import no_counters
from autofedavg.core.seeds import Seeds
from autofedavg.core.trainer import LocalTrainer, Training
from autofedavg.engines.simulator import stackable
from autofedavg.engines.simulator.stackable import why_not_together
from autofedavg.engines.simulator.stacking import StackedGroup, group_of
from autofedavg.federation.client import Client, ClientGroup
from autofedavg.federation.client_state import ClientState
from autofedavg.federation.messages import Message, arrays_of
from autofedavg.federation.secure_sum import SumOver
from autofedavg.tasks.cifar.files import LabelledImages
from autofedavg.tasks.cifar.network_input import cifar_loss
from autofedavg.tasks.cifar.site import CifarSite

CPU = torch.device("cpu")
TRAINING = Training(
    epochs=1,
    batch_size=16,
    optimiser="sgd",
    learning_rate=0.01,
    weight_decay=1e-4,
    precision="bf16",
)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16 * 256, 10),
    )  # fmt: skip


def half_frozen() -> nn.Module:
    made = network()
    made[0].requires_grad_(False)
    return made


def site(name: str, n: int) -> CifarSite:
    random = np.random.default_rng(n)
    images = random.integers(256, size=(n, 3, 32, 32)).astype(np.uint8)
    pictures = LabelledImages(images, (np.arange(n) % 10).astype(np.uint8))
    names = [f"{name}-{i}" for i in range(n)]
    return CifarSite(name, pictures, names, pictures, names, 0, False)


def clients_of(
    training=TRAINING, sizes=(20, 33, 40), build=network, loss=cifar_loss, **how
) -> dict[str, Client]:
    torch.manual_seed(0)
    bench = LocalTrainer(build(), loss, training, CPU)
    names = "abc"[: len(sizes)]
    return {
        name: Client(name, site(name, n), bench, Seeds(1), ClientState(), **how)
        for name, n in zip(names, sizes, strict=True)
    }


class PlainStack:
    """Trains as the workbench does, from the numbers that a stack is told."""

    device = CPU

    def __init__(self, clients) -> None:
        self.clients = list(clients.values())
        self.models, self.calls = {}, []

    def put(self, client, values):
        self.models[client] = values

    def model(self, client):
        return self.models[client]

    def train(self, work, seeds, how):
        self.calls.append((sorted(work), tuple(how)))
        assert len(set(seeds.values())) == len(seeds)
        losses = {}
        for k, steps in work.items():
            bench = self.clients[k].trainer
            bench.load(Model(self.models[k], no_counters(CPU)))
            losses[k] = bench.train(self.batches(k, steps), how[0], mu=how[3])
            self.models[k] = bench.model().values
        return losses

    def hold(self, digest, values):
        self.bank = Bank(tuple("abc"), values, torch.zeros(len(values), 0, dtype=torch.int64))

    def weigh(self, work, alpha, layers):
        self.last = dict(work)
        self.calls.append(("weigh", sorted(work)))
        found = []
        for (k, steps), weights in zip(work.items(), alpha, strict=True):
            (batch,) = self.batches(k, steps)
            mixture = self.bank.combine(weights, layers)
            gradient, loss = self.clients[k].trainer.differentiate(mixture, batch, "eval")
            slopes = self.bank.project(gradient, layers)
            found.append(torch.cat([loss.reshape(1).double(), slopes.reshape(-1)]))
        return torch.stack(found)

    def prepare(self, work):
        self.prepared = dict(work)

    def batches(self, k, steps):
        images, labels = self.clients[k].data.pictures()
        for pick, move in zip(steps.picks, steps.moves, strict=True):
            pick, move = pick[pick >= 0].astype(np.int64), move[pick >= 0].astype(np.int64)
            shift = torch.from_numpy(np.stack([move // 2 // 9, move // 2 % 9], axis=1))
            yield images[pick], labels[pick], shift, torch.from_numpy(move % 2 == 1)


@pytest.fixture
def group():
    clients = clients_of()
    made = StackedGroup(clients)
    made._made = PlainStack(clients)
    return made


def asked(clients, **facts) -> dict[str, Message]:
    some = next(iter(clients.values()))
    w = some.trainer.layout.read(some.trainer.network)
    w = Model(w.values.clone(), w.counters)
    return {name: Message(arrays_of(w), {"t": 1, "T": 5} | facts) for name in clients}


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"rule": {"name": "prox", "mu": 0.5}},
        {"rate": 0.1},
        {"up": "bfloat16"},
        {"up": "difference"},
        {"tell": ["steps", "reach"]},
    ],
    ids=str,
)
def test_answers_are_those_of_clients_who_work_alone(group, facts) -> None:
    alone = clients_of()
    messages = asked(alone, **facts)
    together = group.answer("local_train", messages)
    wanted = ClientGroup(alone).answer("local_train", messages)
    assert list(together) == list(wanted)
    for name, message in wanted.items():
        assert together[name].facts == message.facts
        assert together[name].arrays.keys() == message.arrays.keys()
        assert all(torch.equal(together[name].arrays[key], a) for key, a in message.arrays.items())
    (call,) = group._made.calls
    assert call[0] == [0, 1, 2]
    own = group._clients["b"].client_state.own()
    assert torch.equal(own.values, alone["b"].client_state.own().values)


def test_parts_of_a_sum_are_those_of_clients_who_work_alone() -> None:
    """Blind learning: trained together, and only integers come back."""
    clients, alone = (clients_of(masked=False) for _ in range(2))
    group = StackedGroup(clients)
    group._made = PlainStack(clients)
    plan = BlindPlan("softmax", 0.0, BetaOptimiser("adam", 0.3), sketch=100)
    over = SumOver(dict.fromkeys(clients, ""), 1)
    facts = {"blind": plan.note(), "sum": over.note(), "kept": "", "hold": []}
    messages = asked(alone, **facts)
    together = group.answer("local_train", messages)
    for name, message in ClientGroup(alone).answer("local_train", messages).items():
        assert together[name].facts == message.facts
        assert set(message.arrays) == {"narrow", "wide"}
        assert all(torch.equal(together[name].arrays[key], a) for key, a in message.arrays.items())
    (call,) = group._made.calls
    assert call[0] == [0, 1, 2]


def test_rounds_one_after_another_have_their_own_batches(group) -> None:
    alone = clients_of()
    for t in (1, 2, 4):
        messages = asked(alone, t=t)
        together = group.answer("local_train", messages)
        for name, message in ClientGroup(alone).answer("local_train", messages).items():
            assert torch.equal(together[name].arrays["values"], message.arrays["values"])


def test_those_who_are_asked_otherwise_train_apart(group) -> None:
    messages = asked(group._clients)
    messages["b"] = asked(group._clients, rule={"name": "prox", "mu": 0.1})["b"]
    messages["c"] = Message({}, {"t": 1, "T": 5, "sent": {"coding": "same", "digest": "?"}})
    answers = group.answer("local_train", messages)
    assert answers["c"].facts == {"missing": True}
    assert [(who, how[3]) for who, how in group._made.calls] == [([0], 0.0), ([1], 0.1)]


def test_a_local_rule_that_the_stack_does_not_know_goes_to_the_clients(group, caplog) -> None:
    alone = clients_of()
    messages = asked(alone, rule={"name": "shift"})
    length = next(iter(alone.values())).trainer.layout.trainable
    for name, message in messages.items():
        shift = {"along/shift": torch.full((length,), 0.01)}
        messages[name] = Message({**message.arrays, **shift}, message.facts)
    with caplog.at_level("INFO", logger="autofedavg"):
        for _ in range(2):
            answers = group.answer("local_train", messages)
    assert not group._made.calls
    said = "clients take their steps one after another by the local rule 'shift'"
    assert caplog.text.count(said) == 1
    for name, message in ClientGroup(alone).answer("local_train", messages).items():
        assert torch.equal(answers[name].arrays["values"], message.arrays["values"])


@pytest.mark.parametrize("verb", ["local_train", "update_beta"])
def test_what_no_client_knows_is_refused_by_each(group, verb) -> None:
    messages = asked(group._clients) if verb == "local_train" else ready_to_weigh(group._clients)
    messages = {name: Message(n.arrays, {**n.facts, "unheard": 1}) for name, n in messages.items()}
    answers = group.answer(verb, messages)
    assert not group._made.calls
    assert all("unknown value 'unheard'" in message.facts["error"] for message in answers.values())


def test_a_loss_that_is_not_finite_is_that_clients_error(group) -> None:
    messages = asked(group._clients)
    spoilt = messages["b"].arrays["values"].clone()
    spoilt[0] = torch.nan
    messages["b"] = Message({**messages["b"].arrays, "values": spoilt}, messages["b"].facts)
    answers = group.answer("local_train", messages)
    assert "error" in answers["b"].facts
    assert "client b" in str(answers["b"].facts)
    assert all("loss" in answers[name].facts for name in "ac")


# --- networks in other forms ------------------------------------------------------------------

GROWN = Form((24, 10), 1)


class FormedStack(PlainStack):
    """Trains networks of one form."""

    def train(self, work, seeds, how):
        self.calls.append((sorted(work), tuple(how)))
        losses = {}
        for k, steps in work.items():
            bench = self.clients[k].trainer.variant(GROWN, TRAINING)
            bench.load(Model(self.models[k], no_counters(CPU), GROWN))
            losses[k] = bench.train(self.batches(k, steps), how[0], mu=how[3])
            self.models[k] = bench.model().values
        return losses


def formed(clients, form) -> dict[str, Message]:
    some = next(iter(clients.values()))
    torch.manual_seed(3)
    w = Model(torch.randn(some.trainer.layout.formed(form).size) / 20, no_counters(CPU), form)
    facts = {"t": 1, "T": 5, "form": form.note()}
    return {name: Message(arrays_of(w), facts) for name in clients}


def same(one, other) -> None:
    assert list(one) == list(other)
    for name, message in other.items():
        assert one[name].facts == message.facts
        assert torch.equal(one[name].arrays["values"], message.arrays["values"])


def test_networks_of_one_form_are_trained_together(group) -> None:
    alone = clients_of()
    group._made, group._form = FormedStack(group._clients), GROWN
    messages = formed(alone, GROWN)
    same(group.answer("local_train", messages), ClientGroup(alone).answer("local_train", messages))
    assert [who for who, _ in group._made.calls] == [[0, 1, 2]]
    assert group._clients["b"].client_state.own().form == GROWN


def test_forms_that_do_not_fit_are_trained_one_by_one(group) -> None:
    alone, wide = clients_of(sizes=(20, 33)), Form((513, 10))
    messages = formed(alone, wide)
    same(group.answer("local_train", messages), ClientGroup(alone).answer("local_train", messages))
    assert not group._made.calls


def test_a_new_form_has_a_stack_of_its_own(monkeypatch) -> None:
    made = []

    class Recorded:
        def __init__(self, layers, layout, pictures, batch, slots, width, frozen) -> None:
            self.about = [(layer.inputs, layer.outputs) for layer in layers], layout.size, frozen
            self.pictures = pictures
            made.append(self)

    module = ModuleType("autofedavg.engines.simulator.stacked.stack")
    module.Stack, module.Pictures = Recorded, lambda *parts: parts
    monkeypatch.setitem(sys.modules, module.__name__, module)
    group = StackedGroup(clients_of(TRAINING.model_copy(update={"batch_size": 64})))
    first = group._stack(None)
    assert group._stack(None) is first
    second = group._stack(GROWN)
    assert group._stack(GROWN) is second
    assert [stack.about for stack in made] == [
        ([(3, 16), (16 * 256, 10)], 16 * 28 + 10 * 4097, 0),
        ([(3, 32), (32 * 256, 10)], 24 * 28 + 10 * (24 * 256 + 1), 1),
    ]
    assert second.pictures is first.pictures
    assert group._stack(None) is not first


def test_what_is_not_training_is_answered_one_by_one(group) -> None:
    answers = group.answer("class_counts", {name: Message({}, {}) for name in "ab"})
    assert [sum(answers[name].facts["classes"]) for name in "ab"] == [20, 33]


def test_on_a_cpu_everybody_works_alone() -> None:
    assert type(group_of(clients_of())) is ClientGroup


def test_why_not_together(monkeypatch) -> None:
    monkeypatch.setattr(stackable, "find_spec", lambda name: name)
    fitting = TRAINING.model_copy(update={"batch_size": 64})
    assert why_not_together(clients_of(fitting)) == ""
    assert "a batch of 48" in why_not_together(
        clients_of(TRAINING.model_copy(update={"batch_size": 48}))
    )
    assert "bf16" in why_not_together(
        clients_of(TRAINING.model_copy(update={"precision": "float32"}))
    )
    assert "layers" in why_not_together(
        clients_of(fitting, build=lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)))
    )
    private = clients_of(fitting)
    private["a"].private = object()
    assert "differentially private" in why_not_together(private)
    odd = clients_of(fitting)
    odd["a"].data = object()
    assert "pictures" in why_not_together(odd)
    smooth = clients_of(fitting, loss=lambda network, batch: 0.9 * cifar_loss(network, batch))
    assert "loss" in why_not_together(smooth)
    assert "frozen" in why_not_together(clients_of(fitting, build=half_frozen))
    old = clients_of(fitting)
    for client in old.values():
        client.trainer.device = torch.device("cuda")
    for capability, told in (((7, 5), "the GPU has no bf16"), ((8, 0), "")):
        monkeypatch.setattr(
            torch.cuda, "get_device_capability", lambda device, found=capability: found
        )
        assert why_not_together(old) == told
    monkeypatch.setattr(stackable, "find_spec", lambda name: None)
    assert "Triton" in why_not_together(clients_of(fitting))


def ready_to_weigh(clients) -> dict[str, Message]:
    """Clients that hold three models; what they are asked for a step on beta."""
    some = clients["a"].trainer.layout
    values = torch.stack(
        [torch.randn(some.size, generator=torch.Generator().manual_seed(k)) / 50 for k in range(3)]
    )
    bank = Bank(tuple("abc"), values, torch.zeros(3, 0, dtype=torch.int64))
    for client in clients.values():
        client.client_state.keep_bank(bank, "these")
    beta = torch.tensor([6.0, 5.0, 7.0], dtype=torch.float64)
    how = {"t": 3, "s": 2, "digest": "these", "gamma": {"name": "dirichlet"}, "layers": None,
           "rate": 0.5, "smoothing": 0.0, "mode": "eval", "data": "train"}  # fmt: skip
    message = Message({"beta": beta}, how)
    return dict.fromkeys(clients, message)


def changed(messages, **facts) -> dict[str, Message]:
    message = Message(messages["a"].arrays, messages["a"].facts | facts)
    if facts.get("layers"):
        message.arrays["beta"] = message.arrays["beta"][:, None].repeat(1, 2)
    return dict.fromkeys(messages, message)


@pytest.mark.parametrize(
    "facts", [{}, {"gamma": {"name": "softmax"}}, {"layers": "module", "smoothing": 0.3}], ids=str
)
def test_steps_on_beta_are_those_of_clients_who_work_alone(group, facts) -> None:
    alone = clients_of()
    for s in (2, 3, 7):  # batches that were drawn ahead, and others
        messages = changed(ready_to_weigh(group._clients), **facts, s=s)
        wanted = ClientGroup(alone).answer(
            "update_beta", changed(ready_to_weigh(alone), **facts, s=s)
        )
        together = group.answer("update_beta", messages)
        assert list(together) == list(wanted)
        for name, message in wanted.items():
            assert torch.allclose(
                together[name].arrays["theta"], message.arrays["theta"], atol=1e-12
            )
            assert together[name].facts == message.facts
    assert len(group._made.calls) == 3
    thetas = [message.arrays["theta"] for message in together.values()]
    assert not torch.equal(thetas[0], thetas[1])


def test_a_step_that_is_asked_for_again_is_the_same_step(group) -> None:
    messages = changed(ready_to_weigh(group._clients), s=2)
    group.answer("update_beta", changed(messages, s=1))  # what step 2 draws is drawn ahead
    first, again = (group.answer("update_beta", messages) for _ in range(2))
    alone = group.answer("update_beta", {"b": messages["b"]})
    for name, message in first.items():
        assert torch.equal(again[name].arrays["theta"], message.arrays["theta"])
    assert torch.equal(alone["b"].arrays["theta"], first["b"].arrays["theta"])


def test_a_loss_at_a_mixture_that_is_not_finite_is_that_clients_error(group, monkeypatch) -> None:
    def spoilt(self, work, alpha, layers):
        found = weigh(self, work, alpha, layers)
        found[1, 0] = torch.inf
        return found

    weigh = PlainStack.weigh
    monkeypatch.setattr(PlainStack, "weigh", spoilt)
    answers = group.answer("update_beta", changed(ready_to_weigh(group._clients), s=3))
    assert "the loss is inf" in answers["b"].facts["error"]
    assert "client b, update_beta, round" in answers["b"].facts["where"]
    assert "theta" in answers["a"].arrays


def test_the_next_steps_batches_are_sent_ahead_and_used(group) -> None:
    for s in (2, 3):
        group.answer("update_beta", changed(ready_to_weigh(group._clients), s=s))
        if s == 2:
            ahead = group._made.prepared
    assert all(group._made.last[k] is steps for k, steps in ahead.items())


@pytest.mark.parametrize(
    "facts", [{"mode": "train"}, {"steps": 2, "optimiser": {"kind": "sgd", "rate": 0.1}}], ids=str
)
def test_other_steps_on_beta_are_taken_one_by_one(group, facts) -> None:
    answers = group.answer("update_beta", changed(ready_to_weigh(group._clients), **facts))
    assert all("theta" in message.arrays for message in answers.values())
    assert not group._made.calls


def test_a_shrink_factor_is_learned_one_by_one(group, caplog) -> None:
    def shrinking(clients):
        messages = changed(
            ready_to_weigh(clients), gamma={"name": "shrinking"}, layers="trained", rate=1.0
        )
        beta = torch.tensor([0.1, 0.2, 0.3, -0.1], dtype=torch.float64)
        return {name: Message({"beta": beta}, n.facts) for name, n in messages.items()}

    alone = clients_of()
    wanted = ClientGroup(alone).answer("update_beta", shrinking(alone))
    with caplog.at_level("INFO", logger="autofedavg"):
        for _ in range(2):
            answers = group.answer("update_beta", shrinking(group._clients))
    said = "clients take their steps one after another on beta with the constraint 'shrinking'"
    assert caplog.text.count(said) == 1
    assert not group._made.calls
    for name, message in wanted.items():
        assert torch.equal(answers[name].arrays["theta"], message.arrays["theta"])
        assert message.arrays["theta"].shape == (4,)


def test_who_lost_the_models_says_so(group) -> None:
    messages = ready_to_weigh(group._clients)
    group._clients["b"].client_state = ClientState()
    answers = group.answer("update_beta", messages)
    assert answers["b"].facts == {"missing": True}
    assert "theta" in answers["a"].arrays


def test_a_site_without_such_cases_is_an_error_of_its_own(group) -> None:
    messages = changed(ready_to_weigh(group._clients), data="holdout")
    answers = group.answer("update_beta", messages)
    assert all("there is no holdout image" in str(message.facts) for message in answers.values())
    assert not group._made.calls
