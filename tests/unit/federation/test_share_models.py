"""How models travel: none to whom it belongs, none twice, and the same bits in every encoding."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from autofedavg.algorithm import Round
from autofedavg.core.bank import Model
from autofedavg.core.seeds import Seeds
from autofedavg.core.trainer import LocalTrainer
from autofedavg.engines.simulator.simulator import Simulator
from autofedavg.federation.client import Client
from autofedavg.federation.client_state import ClientState
from autofedavg.federation.encoding import as_received
from autofedavg.federation.messages import Message, NoReply
from autofedavg.federation.port import Federation
from autofedavg.federation.settings import Exchange
from autofedavg.methods import METHODS
from autofedavg.methods.auto_fedavg import AutoFedAvg
from autofedavg.methods.fedavg import FedAvg
from flaky import Fault, FlakyFleet
from toy import (
    BETA,
    HOW,
    METRIC,
    TRAINING,
    DirectFleet,
    float64,
    lose,
    mlp,
    norm_net,
    rounds_of,
    same_round,
    toy_problem,
)

ENCODINGS = ["float32", "bfloat16", "difference"]
PAIRS = [Exchange(down=down, up=up) for down, up in product(ENCODINGS, ENCODINGS)]
LOSSY = PAIRS[1:]


def named(exchange):
    return f"{exchange.down}-{exchange.up}"


@pytest.fixture
def problem():
    """With batch norm: floating buffers and integer counters."""
    return toy_problem(3, norm_net)


def carried(transport, verb, site=None):
    """The models of each request, by the site they belong to."""
    return [sorted({key.partition("/")[2] for key in n.arrays}) for n in transport.sent(verb, site)]


def begun(transport, exchange=None, **more):
    federation = Federation(transport, exchange=exchange or Exchange(), **more)
    w0, _ = transport.problem.initial(Seeds(7))
    bank = federation.local_train(1, w0, T=2).w_k
    return federation, bank


# --- who is sent what -----------------------------------------------------------------------------


def test_everybody_is_sent_the_others_models_once(problem):
    transport = DirectFleet(problem)
    federation, bank = begun(transport)
    federation.share_models(1, bank)
    assert [carried(transport, "share_models", name) for name in "ABC"] == [
        [["B", "C"]],
        [["A", "C"]],
        [["A", "B"]],
    ]


def test_a_repeated_share_sends_digests_and_no_model(problem):
    transport = DirectFleet(problem)
    federation, bank = begun(transport)
    federation.share_models(1, bank)
    federation.take_account()
    federation.share_models(1, bank)
    assert carried(transport, "share_models", "A")[1:] == [[]]
    assert federation.take_account()["share_models"].down < 3 * 400
    assert list(federation.update_beta(1, 1, BETA, **HOW)) == ["A", "B", "C"]


@pytest.mark.parametrize("arrived", [True, False], ids=["the answer", "the request"])
def test_a_retried_share_sends_digests_first_and_only_what_is_missing(problem, arrived):
    transport = DirectFleet(problem)
    federation, bank = begun(transport)
    lost = []

    def intercept(verb, site, message):
        if (verb, site) != ("share_models", "B") or lost:
            return None
        lost.append(site)
        if arrived:
            transport.clients["B"].answer(verb, message)
        return NoReply("gone")

    transport.intercept = intercept
    federation.share_models(1, bank)
    sent = carried(transport, "share_models", "B")
    assert sent == [["A", "C"], []] + ([] if arrived else [["A", "C"]])
    assert list(federation.update_beta(1, 1, BETA, **HOW)) == ["A", "B", "C"]


def test_a_client_keeps_the_models_it_has_until_the_rest_comes(problem):
    transport = DirectFleet(problem)
    federation, bank = begun(transport)
    client = transport.clients["A"]
    federation.share_models(1, bank)
    (whole,) = transport.sent("share_models", "A")
    client.client_state = ClientState()
    parts = {key: array for key, array in whole.arrays.items() if key.endswith("/B")}
    assert client.answer("share_models", Message(parts, whole.facts)).facts == {
        "missing": ["A", "C"]
    }
    rest = {key: array for key, array in whole.arrays.items() if key.endswith("/C")}
    assert client.answer("share_models", Message(rest, whole.facts)).facts == {"missing": ["A"]}
    client.client_state.keep_own(bank["A"])
    assert client.answer("share_models", Message({}, whole.facts)).facts == {}
    assert torch.equal(client.client_state.bank(whole.facts["digest"]).values, bank.values)
    assert client.client_state.parts() == {}


def test_a_site_whose_model_is_changed_on_its_way_is_sent_the_server_s(problem):
    """A privacy filter at B: the bank holds what the server has, and B is sent it from then on."""

    class Filtered(DirectFleet):
        def ask(self, verb, messages, within):
            answers = super().ask(verb, messages, within)
            if verb == "local_train":
                own = answers["B"]
                arrays = {**own.arrays, "values": own.arrays["values"].round(decimals=2)}
                answers["B"] = Message(arrays, own.facts)
            return answers

    transport = Filtered(problem)
    federation, bank = begun(transport)
    federation.share_models(1, bank)
    assert carried(transport, "share_models", "B") == [["A", "C"], ["B"]]
    digest = transport.sent("share_models", "B")[0].facts["digest"]
    for name in "ABC":
        assert torch.equal(transport.clients[name].client_state.bank(digest).values, bank.values)
    again = federation.local_train(2, bank["A"], T=2).w_k
    federation.share_models(2, again)
    assert carried(transport, "share_models", "B")[2:] == [["A", "B", "C"]]
    assert carried(transport, "share_models", "A")[1:] == [["B", "C"]]


def test_a_site_that_restarted_is_not_taken_for_one_with_a_filter(problem):
    transport = DirectFleet(problem)
    federation, bank = begun(transport)
    transport.clients["B"].client_state = ClientState()
    federation.share_models(1, bank)
    assert carried(transport, "share_models", "B") == [["A", "C"], ["B"]]
    again = federation.local_train(2, bank["A"], T=2).w_k
    federation.share_models(2, again)
    assert carried(transport, "share_models", "B")[2:] == [["A", "C"]]


def test_a_site_that_lost_its_own_model_is_sent_it_to_validate(problem):
    transport = DirectFleet(problem)
    federation, bank = begun(transport)
    expected = federation.validate_local(1, bank, METRIC)
    transport.clients["B"].client_state = ClientState()
    assert federation.validate_local(1, bank, METRIC) == expected
    assert [(e["site"], e["what"]) for e in federation.take_events()] == [("B", "resent")]


def test_a_site_with_a_stranger_s_model_is_sent_its_own_to_validate(problem):
    """Clients on other machines compare digests; in the simulator there is one memory."""
    transport = DirectFleet(problem)
    federation, bank = begun(transport, remote=True)
    expected = federation.validate_local(1, bank, METRIC)
    assert carried(transport, "validate_local") == [[], [], []]
    transport.clients["B"].client_state.keep_own(bank["A"].clone())
    assert federation.validate_local(1, bank, METRIC) == expected
    assert [(e["site"], e["what"]) for e in federation.take_events()] == [("B", "resent")]
    assert torch.equal(transport.clients["B"].client_state.own().values, bank["B"].values)
    simulated, bank = begun(DirectFleet(problem))
    simulated.validate_local(1, bank, METRIC)
    assert simulated.transport.sent("validate_local", "B")[0].facts == {"t": 1, "metric": METRIC}


def test_a_site_with_a_filter_is_sent_the_server_s_model_to_validate_at_once(problem):
    """The score that is recorded belongs to the model that the server keeps."""

    def rounded(verb, site, message):
        if (verb, site) != ("local_train", "B"):
            return None
        answer = transport.clients["B"].answer(verb, message)
        arrays = {**answer.arrays, "values": answer.arrays["values"].round(decimals=2)}
        return Message(arrays, answer.facts)

    transport = DirectFleet(problem, intercept=rounded)
    federation, bank = begun(transport, remote=True)
    federation.validate_local(1, bank, METRIC)
    again = federation.local_train(2, bank["A"], T=2).w_k
    federation.validate_local(2, again, METRIC)
    assert [sorted(n.arrays) for n in transport.sent("validate_local", "B")] == [
        [],
        ["counters", "values"],
        ["counters", "values"],
    ]
    assert len(federation.take_events()) == 1


# --- encodings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("exchange", PAIRS, ids=named)
def test_server_and_clients_hold_the_same_bits(problem, exchange):
    """The model they start from, their own model, and all models that beta is learned on."""
    transport = DirectFleet(problem)
    federation = Federation(transport, exchange=exchange)
    w, layout = problem.initial(Seeds(7))
    plan = AutoFedAvg(S=2).plan(layout, 3)
    for t in (1, 2, 3):
        bank = federation.local_train(t, w, T=3).w_k
        for name in "ABC":
            assert transport.clients[name].client_state.own().digest() == bank[name].digest()
        federation.share_models(t, bank)
        facts = transport.sent("share_models", "A")[-1].facts
        banks = [transport.clients[name].client_state.bank(facts["digest"]) for name in "ABC"]
        expected = {
            name: as_received(bank[name], exchange.down, w)
            if (exchange.down, exchange.up) != ("difference", "difference")
            else bank[name]
            for name in "ABC"
        }
        for held in banks:
            assert {k: held[k].digest() for k in "ABC"} == {
                k: m.digest() for k, m in expected.items()
            }
        federation.update_beta(t, 1, plan.gamma.initial(3), **plan.message(1))
        w = federation.as_sent(bank.combine(float64([0.2, 0.3, 0.5])))
        seen: list[str] = []
        for client in transport.clients.values():
            client.trainer.load = lambda model, seen=seen: seen.append(model.digest())
        federation.evaluate(w, "validation")
        for client in transport.clients.values():
            del client.trainer.load
        assert seen == [w.digest()] * 3


def test_float32_changes_nothing_at_all(problem):
    method = AutoFedAvg(S=2)
    plain = DirectFleet(problem)
    exact = DirectFleet(problem)
    one = rounds_of(method, plain, 3)
    assert all(map(same_round, one, rounds_of(method, exact, 3, exchange=Exchange())))
    assert all(
        "sent" not in message.facts and "up" not in message.facts for _, _, message in plain.asked
    )


@pytest.mark.parametrize("exchange", LOSSY, ids=named)
@pytest.mark.parametrize("method", [FedAvg(), AutoFedAvg(S=2, t0=2)], ids=["fedavg", "auto"])
def test_a_lossy_run_that_was_stopped_goes_on_with_the_same_bits(problem, exchange, method):
    """After a restart nobody has a reference, so models travel whole; what arrives is the same."""
    whole = rounds_of(method, DirectFleet(problem), 5, exchange=exchange)
    for stop in (1, 2, 4):
        rest = rounds_of(method, DirectFleet(problem), 5, whole[stop - 1], exchange=exchange)
        assert all(map(same_round, whole[stop:], rest))


@pytest.mark.parametrize("exchange", LOSSY, ids=named)
def test_a_lossy_run_does_not_depend_on_what_sites_forget_or_miss_asking(problem, exchange):
    method = AutoFedAvg(S=2, t0=2)
    whole = rounds_of(method, DirectFleet(problem), 4, exchange=exchange)
    faults = [
        Fault("B", "local_train", "forgets", t=3, times=1),
        Fault("A", "local_train", "lost", t=2, times=1),
        Fault("C", "share_models", "forgets", t=4, times=1),
        Fault("A", "update_beta", "forgets", t=2, s=2, times=1),
        Fault("B", "share_models", "lost", t=4, times=1),
    ]
    flaky = FlakyFleet(problem, faults)
    assert all(map(same_round, whole, rounds_of(method, flaky, 4, exchange=exchange)))
    assert all(fault.met == 1 for fault in faults)


@pytest.mark.parametrize("exchange", LOSSY, ids=named)
def test_lossy_models_are_close_to_exact_ones(exchange):
    """In a smooth network: with ReLU and four cases a batch, any change may grow."""
    problem, method = toy_problem(3), AutoFedAvg(S=2, t0=2)
    exact = rounds_of(method, DirectFleet(problem), 3)[-1]
    lossy = rounds_of(method, DirectFleet(problem), 3, exchange=exchange)[-1]
    assert not torch.equal(exact.w.values, lossy.w.values)
    assert torch.allclose(exact.w.values, lossy.w.values, atol=0.01)


@pytest.mark.parametrize("name", ["ensemble", "local-only", "fedma"])
@pytest.mark.parametrize("exchange", LOSSY, ids=named)
def test_methods_without_a_global_model_have_resumed_bits_too(name, exchange):
    problem = toy_problem(3, mlp)
    method = METHODS[name]()
    whole = rounds_of(method, DirectFleet(problem), 4, exchange=exchange)
    rest = rounds_of(method, DirectFleet(problem), 4, whole[1], exchange=exchange)
    assert all(map(same_round, whole[2:], rest))


def test_a_site_that_missed_a_model_is_sent_the_next_one_whole(problem):
    """A difference from a model that it lacks would cost a second message."""
    fleet = DirectFleet(problem, intercept=lose("B", verb="local_train", t=2))
    exchange = Exchange(down="difference", retries=0)
    federation = Federation(fleet, quorum=2, exchange=exchange)
    w0, layout = problem.initial(Seeds(7))
    for _ in FedAvg().rounds(federation, layout, 3, Round(0, w0)):
        pass
    sent = {
        site: [message.facts["sent"]["coding"] for message in fleet.sent("local_train", site)]
        for site in "AB"
    }
    assert sent == {
        "A": ["float32", "difference", "difference"],
        "B": ["float32", "difference", "float32"],
    }
    assert not [event for event in federation.take_events() if event["what"] == "resent"]


@pytest.mark.parametrize("exchange", LOSSY, ids=named)
def test_every_request_may_be_repeated_in_every_encoding(problem, exchange):
    transport = DirectFleet(problem)
    rounds_of(AutoFedAvg(S=2, t0=2), transport, 3, exchange=exchange)
    asked = [(verb, message) for verb, site, message in transport.asked if site == "A"]
    other = DirectFleet(problem).clients["A"]
    for verb, message in asked:
        first = other.answer(verb, message)
        first = Message({k: a.clone() for k, a in first.arrays.items()}, dict(first.facts))
        again = other.answer(verb, message)
        assert again.facts == first.facts
        assert all(torch.equal(a, first.arrays[k]) for k, a in again.arrays.items())


def test_bytes_are_counted_as_they_travel():
    """A network that is large enough for its own bytes to matter; validated in every round."""
    problem = toy_problem(3, lambda dtype: torch.nn.Sequential(mlp(), torch.nn.Linear(3, 4000)))

    def cost(exchange):
        federation = Federation(DirectFleet(problem), exchange=exchange)
        w, layout = problem.initial(Seeds(7))
        for t in (1, 2, 3):
            federation.take_account()
            bank = federation.local_train(t, w, T=3).w_k
            w = federation.as_sent(bank.combine(float64([0.2, 0.3, 0.5])))
            federation.evaluate(w, "validation")
        account = federation.take_account()
        one = 3 * layout.nbytes
        train, evaluate = account["local_train"], account["evaluate"]
        return train.down / one, train.up / one, evaluate.down / one

    assert cost(Exchange()) == pytest.approx((1, 1, 1), abs=0.01)
    assert cost(Exchange(down="bfloat16")) == pytest.approx((0.5, 1, 0.5), abs=0.01)
    # Validating has brought the model that the next round starts from.
    assert cost(Exchange(down="difference")) == pytest.approx((0, 1, 0.258), abs=0.01)
    both = Exchange(down="difference", up="difference")
    assert cost(both) == pytest.approx((0, 0.258, 0.258), abs=0.01)


@pytest.mark.parametrize("verb", ["local_train", "evaluate", "differentiate"])
def test_a_site_without_the_reference_is_sent_the_whole_model(problem, verb):
    transport = DirectFleet(problem)
    federation = Federation(transport, exchange=Exchange(down="difference"))
    w, layout = problem.initial(Seeds(7))
    bank = federation.local_train(1, w, T=2).w_k
    w = federation.as_sent(bank.combine(float64([0.2, 0.3, 0.5])))
    calls = {
        "local_train": lambda: federation.local_train(2, w, T=2).losses,
        "evaluate": lambda: federation.evaluate(w, "validation").by_site(METRIC),
        "differentiate": lambda: {
            k: g.tolist()
            for k, g in federation.differentiate(
                2, 1, bank["A"], ("A", "B"), layout.trainable, mode="eval", data="validation"
            ).items()
        },
    }
    if verb == "differentiate":
        federation.local_train(2, w, T=2)
    expected = calls[verb]()
    federation.take_events()
    transport.clients["B"].client_state = ClientState()
    assert calls[verb]() == expected
    assert [(e["site"], e["what"]) for e in federation.take_events()] == [("B", "resent")]


def test_a_reference_with_other_bits_is_not_built_upon(problem):
    """A site whose copy differs ends at another digest, says so, and is sent the whole model."""
    transport = DirectFleet(problem)
    federation = Federation(transport, exchange=Exchange(down="difference"))
    w, _ = problem.initial(Seeds(7))
    bank = federation.local_train(1, w, T=2).w_k
    w = federation.as_sent(bank.combine(float64([0.2, 0.3, 0.5])))
    client_state = transport.clients["B"].client_state
    digest = transport.sent("local_train", "B")[0].facts["sent"]["digest"]
    kept = client_state.reference(digest)
    client_state.keep_reference(replace(kept, values=kept.values + 1), digest)
    federation.evaluate(w, "validation")
    assert [(e["site"], e["what"]) for e in federation.take_events()] == [("B", "resent")]
    assert torch.equal(client_state.reference(w.digest()).values, w.values)


def test_models_that_are_not_the_round_s_travel_whole_and_exact(problem):
    """The test scores what is on disk, whatever the encoding."""
    for down in ("bfloat16", "difference"):
        transport = DirectFleet(problem)
        federation = Federation(transport, exchange=Exchange(down=down))
        w, _ = problem.initial(Seeds(7))
        federation.local_train(1, w, T=1)
        other = Model(w.values * 1.2345678, w.counters)
        federation.evaluate(other, "validation")
        message = transport.sent("evaluate", "A")[-1]
        assert torch.equal(message.arrays["values"], other.values)
        assert "sent" not in message.facts


def test_a_model_made_before_any_training_is_left_as_it_is(problem):
    w, _ = problem.initial(Seeds(7))
    federation = Federation(DirectFleet(problem), exchange=Exchange(down="difference"))
    assert federation.as_sent(w).digest() == w.digest()


@pytest.mark.parametrize("exchange", LOSSY, ids=named)
@pytest.mark.parametrize("workers", [1, 2])
def test_the_simulator_carries_the_same_bits_in_every_encoding(problem, exchange, workers):
    method = AutoFedAvg(S=2, t0=2)
    direct = rounds_of(method, DirectFleet(problem), 3, exchange=exchange)
    with Simulator(problem, TRAINING, Seeds(7), workers=workers) as transport:
        found = rounds_of(method, transport, 3, problem=problem, exchange=exchange)
    assert all(map(same_round, direct, found))


@pytest.mark.parametrize("learning", ["clients", "server"])
def test_learning_at_the_server_has_resumed_bits_too(problem, learning):
    method = AutoFedAvg(S=2, learning=learning)
    exchange = Exchange(down="difference", up="difference")
    whole = rounds_of(method, DirectFleet(problem), 3, exchange=exchange)
    rest = rounds_of(method, DirectFleet(problem), 3, whole[0], exchange=exchange)
    assert all(map(same_round, whole[1:], rest))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_site_with_a_gpu_holds_all_models_there(problem):
    """Its own model is on its GPU already; those of others arrive in main memory."""
    transport = DirectFleet(problem)
    federation, bank = begun(transport)
    federation.share_models(1, bank)
    (whole,) = transport.sent("share_models", "A")
    gpu = torch.device("cuda")
    network = problem.network().to(gpu)
    trainer = LocalTrainer(network, problem.loss, TRAINING, gpu)
    client = Client("A", problem.sites["A"], trainer, Seeds(7), ClientState())
    own = bank["A"]
    client.client_state.keep_own(Model(own.values.to(gpu), own.counters.to(gpu)))
    assert client.answer("share_models", whole).facts == {}
    held = client.client_state.bank(whole.facts["digest"])
    assert held.values.device.type == "cuda"
    assert torch.equal(held.values.cpu(), bank.values)
