"""The crew that trains together, over a stack that works on the CPU."""

import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

from autofedavg.core.bank import Bank, Model
from autofedavg.core.forms import Form
from autofedavg.core.layout import no_counters
from autofedavg.core.seeds import Seeds
from autofedavg.core.trainer import Training, Workbench
from autofedavg.engines.simulator import stacking as stacked
from autofedavg.engines.simulator.stacking import StackedCrew, crew_of, why_not_together
from autofedavg.engines.simulator.workers import Crew
from autofedavg.federation import verbs as vocabulary
from autofedavg.federation.client import Client
from autofedavg.federation.client_state import MemoryShelf
from autofedavg.federation.messages import Note, arrays_of
from autofedavg.tasks.cifar.files import Pictures
from autofedavg.tasks.cifar.site import CifarSite, cifar_loss

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
    pictures = Pictures(images, (np.arange(n) % 10).astype(np.uint8))
    names = [f"{name}-{i}" for i in range(n)]
    return CifarSite(name, pictures, names, pictures, names, 0, False)


def clients_of(
    training=TRAINING, sizes=(20, 33, 40), build=network, loss=cifar_loss
) -> dict[str, Client]:
    torch.manual_seed(0)
    bench = Workbench(build(), loss, training, CPU)
    names = "abc"[: len(sizes)]
    return {
        name: Client(name, site(name, n), bench, Seeds(1), MemoryShelf())
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
            bench = self.clients[k].workbench
            bench.load(Model(self.models[k], no_counters(CPU)))
            losses[k] = bench.train(self.batches(k, steps), how[0], how[3])
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
            gradient, loss = self.clients[k].workbench.differentiate(mixture, batch, "eval")
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
def crew():
    clients = clients_of()
    made = StackedCrew(clients)
    made._made = PlainStack(clients)
    return made


def asked(clients, **facts) -> dict[str, Note]:
    some = next(iter(clients.values()))
    w = some.workbench.layout.read(some.workbench.network)
    w = Model(w.values.clone(), w.counters)
    return {name: Note(arrays_of(w), {"t": 1, "T": 5} | facts) for name in clients}


@pytest.mark.parametrize("facts", [{}, {"mu": 0.5}, {"rate": 0.1}, {"up": "bfloat16"}], ids=str)
def test_answers_are_those_of_clients_who_work_alone(crew, facts) -> None:
    alone = clients_of()
    notes = asked(alone, **facts)
    together = crew.answer("local_train", notes)
    wanted = Crew(alone).answer("local_train", notes)
    assert list(together) == list(wanted)
    for name, note in wanted.items():
        assert together[name].facts == note.facts
        assert together[name].arrays.keys() == note.arrays.keys()
        assert all(torch.equal(together[name].arrays[key], a) for key, a in note.arrays.items())
    (call,) = crew._made.calls
    assert call[0] == [0, 1, 2]
    own = crew._clients["b"].shelf.own()
    assert torch.equal(own.values, alone["b"].shelf.own().values)


def test_rounds_one_after_another_have_their_own_batches(crew) -> None:
    alone = clients_of()
    for t in (1, 2, 4):
        notes = asked(alone, t=t)
        together = crew.answer("local_train", notes)
        for name, note in Crew(alone).answer("local_train", notes).items():
            assert torch.equal(together[name].arrays["values"], note.arrays["values"])


def test_those_who_are_asked_otherwise_train_apart(crew) -> None:
    notes = asked(crew._clients)
    notes["b"] = asked(crew._clients, mu=0.1)["b"]
    notes["c"] = Note({}, {"t": 1, "T": 5, "sent": {"coding": "same", "digest": "?"}})
    answers = crew.answer("local_train", notes)
    assert answers["c"].facts == {"missing": True}
    assert [(who, how[3]) for who, how in crew._made.calls] == [([0], 0.0), ([1], 0.1)]


def test_a_request_that_says_more_than_the_stack_knows_goes_to_the_clients(
    crew, caplog, monkeypatch
) -> None:
    known = vocabulary.KNOWN["local_train"] | {"rule"}
    monkeypatch.setitem(vocabulary.KNOWN, "local_train", known)
    alone = clients_of()
    notes = asked(alone, rule="scaffold")
    with caplog.at_level("INFO", logger="autofedavg"):
        for _ in range(2):
            answers = crew.answer("local_train", notes)
    assert not crew._made.calls
    assert caplog.text.count("clients train one after another") == 1
    for name, note in Crew(alone).answer("local_train", notes).items():
        assert torch.equal(answers[name].arrays["values"], note.arrays["values"])


@pytest.mark.parametrize("verb", ["local_train", "update_beta"])
def test_what_no_client_knows_is_refused_by_each(crew, verb) -> None:
    notes = asked(crew._clients) if verb == "local_train" else ready_to_weigh(crew._clients)
    notes = {name: Note(n.arrays, {**n.facts, "unheard": 1}) for name, n in notes.items()}
    answers = crew.answer(verb, notes)
    assert not crew._made.calls
    assert all("unknown value 'unheard'" in note.facts["error"] for note in answers.values())


def test_a_loss_that_is_not_finite_is_that_clients_error(crew) -> None:
    notes = asked(crew._clients)
    spoilt = notes["b"].arrays["values"].clone()
    spoilt[0] = torch.nan
    notes["b"] = Note({**notes["b"].arrays, "values": spoilt}, notes["b"].facts)
    answers = crew.answer("local_train", notes)
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
            bench = self.clients[k].workbench.variant(GROWN, TRAINING)
            bench.load(Model(self.models[k], no_counters(CPU), GROWN))
            losses[k] = bench.train(self.batches(k, steps), how[0], how[3])
            self.models[k] = bench.model().values
        return losses


def formed(clients, form) -> dict[str, Note]:
    some = next(iter(clients.values()))
    torch.manual_seed(3)
    w = Model(torch.randn(some.workbench.layout.formed(form).size) / 20, no_counters(CPU), form)
    facts = {"t": 1, "T": 5, "form": form.note()}
    return {name: Note(arrays_of(w), facts) for name in clients}


def same(one, other) -> None:
    assert list(one) == list(other)
    for name, note in other.items():
        assert one[name].facts == note.facts
        assert torch.equal(one[name].arrays["values"], note.arrays["values"])


def test_networks_of_one_form_are_trained_together(crew) -> None:
    alone = clients_of()
    crew._made, crew._form = FormedStack(crew._clients), GROWN
    notes = formed(alone, GROWN)
    same(crew.answer("local_train", notes), Crew(alone).answer("local_train", notes))
    assert [who for who, _ in crew._made.calls] == [[0, 1, 2]]
    assert crew._clients["b"].shelf.own().form == GROWN


def test_forms_that_do_not_fit_are_trained_one_by_one(crew) -> None:
    alone, wide = clients_of(sizes=(20, 33)), Form((513, 10))
    notes = formed(alone, wide)
    same(crew.answer("local_train", notes), Crew(alone).answer("local_train", notes))
    assert not crew._made.calls


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
    crew = StackedCrew(clients_of(TRAINING.model_copy(update={"batch_size": 64})))
    first = crew._stack(None)
    assert crew._stack(None) is first
    second = crew._stack(GROWN)
    assert crew._stack(GROWN) is second
    assert [stack.about for stack in made] == [
        ([(3, 16), (16 * 256, 10)], 16 * 28 + 10 * 4097, 0),
        ([(3, 32), (32 * 256, 10)], 24 * 28 + 10 * (24 * 256 + 1), 1),
    ]
    assert second.pictures is first.pictures
    assert crew._stack(None) is not first


def test_what_is_not_training_is_answered_one_by_one(crew) -> None:
    answers = crew.answer("class_counts", {name: Note({}, {}) for name in "ab"})
    assert [sum(answers[name].facts["classes"]) for name in "ab"] == [20, 33]


def test_on_a_cpu_everybody_works_alone() -> None:
    assert type(crew_of(clients_of())) is Crew


def test_why_not_together(monkeypatch) -> None:
    monkeypatch.setattr(stacked, "find_spec", lambda name: name)
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
    odd = clients_of(fitting)
    odd["a"].data = object()
    assert "pictures" in why_not_together(odd)
    smooth = clients_of(fitting, loss=lambda network, batch: 0.9 * cifar_loss(network, batch))
    assert "loss" in why_not_together(smooth)
    assert "frozen" in why_not_together(clients_of(fitting, build=half_frozen))
    old = clients_of(fitting)
    for client in old.values():
        client.workbench.device = torch.device("cuda")
    for capability, told in (((7, 5), "the GPU has no bf16"), ((8, 0), "")):
        monkeypatch.setattr(
            torch.cuda, "get_device_capability", lambda device, found=capability: found
        )
        assert why_not_together(old) == told
    monkeypatch.setattr(stacked, "find_spec", lambda name: None)
    assert "Triton" in why_not_together(clients_of(fitting))


def ready_to_weigh(clients) -> dict[str, Note]:
    """Clients that hold three models; what they are asked for a step on beta."""
    some = clients["a"].workbench.layout
    values = torch.stack(
        [torch.randn(some.size, generator=torch.Generator().manual_seed(k)) / 50 for k in range(3)]
    )
    bank = Bank(tuple("abc"), values, torch.zeros(3, 0, dtype=torch.int64))
    for client in clients.values():
        client.shelf.keep_bank(bank, "these")
    beta = torch.tensor([6.0, 5.0, 7.0], dtype=torch.float64)
    how = {"t": 3, "s": 2, "digest": "these", "gamma": {"name": "dirichlet"}, "layers": None,
           "rate": 0.5, "smoothing": 0.0, "mode": "eval", "data": "train"}  # fmt: skip
    note = Note({"beta": beta}, how)
    return dict.fromkeys(clients, note)


def changed(notes, **facts) -> dict[str, Note]:
    note = Note(notes["a"].arrays, notes["a"].facts | facts)
    if facts.get("layers"):
        note.arrays["beta"] = note.arrays["beta"][:, None].repeat(1, 2)
    return dict.fromkeys(notes, note)


@pytest.mark.parametrize(
    "facts", [{}, {"gamma": {"name": "softmax"}}, {"layers": "module", "smoothing": 0.3}], ids=str
)
def test_steps_on_beta_are_those_of_clients_who_work_alone(crew, facts) -> None:
    alone = clients_of()
    for s in (2, 3, 7):  # batches that were drawn ahead, and others
        notes = changed(ready_to_weigh(crew._clients), **facts, s=s)
        wanted = Crew(alone).answer("update_beta", changed(ready_to_weigh(alone), **facts, s=s))
        together = crew.answer("update_beta", notes)
        assert list(together) == list(wanted)
        for name, note in wanted.items():
            assert torch.allclose(together[name].arrays["theta"], note.arrays["theta"], atol=1e-12)
            assert together[name].facts == note.facts
    assert len(crew._made.calls) == 3
    thetas = [note.arrays["theta"] for note in together.values()]
    assert not torch.equal(thetas[0], thetas[1])


def test_a_step_that_is_asked_for_again_is_the_same_step(crew) -> None:
    notes = changed(ready_to_weigh(crew._clients), s=2)
    crew.answer("update_beta", changed(notes, s=1))  # what step 2 draws is drawn ahead
    first, again = (crew.answer("update_beta", notes) for _ in range(2))
    alone = crew.answer("update_beta", {"b": notes["b"]})
    for name, note in first.items():
        assert torch.equal(again[name].arrays["theta"], note.arrays["theta"])
    assert torch.equal(alone["b"].arrays["theta"], first["b"].arrays["theta"])


def test_a_loss_at_a_mixture_that_is_not_finite_is_that_clients_error(crew, monkeypatch) -> None:
    def spoilt(self, work, alpha, layers):
        found = weigh(self, work, alpha, layers)
        found[1, 0] = torch.inf
        return found

    weigh = PlainStack.weigh
    monkeypatch.setattr(PlainStack, "weigh", spoilt)
    answers = crew.answer("update_beta", changed(ready_to_weigh(crew._clients), s=3))
    assert "the loss is inf" in answers["b"].facts["error"]
    assert "client b, update_beta, round" in answers["b"].facts["where"]
    assert "theta" in answers["a"].arrays


def test_the_next_steps_batches_are_sent_ahead_and_used(crew) -> None:
    for s in (2, 3):
        crew.answer("update_beta", changed(ready_to_weigh(crew._clients), s=s))
        if s == 2:
            ahead = crew._made.prepared
    assert all(crew._made.last[k] is steps for k, steps in ahead.items())


@pytest.mark.parametrize(
    "facts", [{"mode": "train"}, {"steps": 2, "optimiser": {"kind": "sgd", "rate": 0.1}}], ids=str
)
def test_other_steps_on_beta_are_taken_one_by_one(crew, facts) -> None:
    answers = crew.answer("update_beta", changed(ready_to_weigh(crew._clients), **facts))
    assert all("theta" in note.arrays for note in answers.values())
    assert not crew._made.calls


def test_who_lost_the_models_says_so(crew) -> None:
    notes = ready_to_weigh(crew._clients)
    crew._clients["b"].shelf = MemoryShelf()
    answers = crew.answer("update_beta", notes)
    assert answers["b"].facts == {"missing": True}
    assert "theta" in answers["a"].arrays


def test_a_site_without_such_cases_is_an_error_of_its_own(crew) -> None:
    notes = changed(ready_to_weigh(crew._clients), data="holdout")
    answers = crew.answer("update_beta", notes)
    assert all("there is no holdout image" in str(note.facts) for note in answers.values())
    assert not crew._made.calls
