"""The losses that judge a call of LearnAggWeight: sites that are lost, forgetful or wrong."""

import math

import pytest
import torch

from autofedavg.algorithm import Round
from autofedavg.core.call_schedule import BATCHES
from autofedavg.core.errors import FederationError, TrainingError
from autofedavg.core.seeds import Seeds
from autofedavg.federation.messages import Message, NoReply
from autofedavg.federation.port import Federation
from autofedavg.federation.settings import Exchange
from autofedavg.methods.auto_fedavg import AutoFedAvg
from toy import DirectFleet, forge, mlp, toy_problem


def judged(transport, T, quorum=None, exchange=None, **settings):
    """Every round, its verdict, and all events."""
    federation = Federation(transport, quorum=quorum, exchange=exchange or Exchange())
    w0, layout = transport.problem.initial(Seeds(7))
    method = AutoFedAvg(**{"t0": "auto", "S": 5, **settings})
    rounds, verdicts = [], []
    for done in method.rounds(federation, layout, T, Round(0, w0)):
        rounds.append(done)
        verdicts.append(federation.take_verdict())
    return rounds, verdicts, federation.take_events()


def test_sites_that_do_not_say_their_losses_are_left_out_of_the_judgement():
    for learning, verb in (("clients", "mixture_losses"), ("server", "model_losses")):
        fleet = DirectFleet(toy_problem(3, mlp))
        fleet.intercept = lambda asked, site, message, verb=verb: (
            NoReply("gone") if (asked, site) == (verb, "B") else None
        )
        rounds, verdicts, events = judged(fleet, 2, quorum=2, learning=learning)
        assert all(verdicts[:1])
        assert {(e["call"], e["site"]) for e in events if e["what"] == "lost"} == {(verb, "B")}
        assert len(rounds) == 2


def test_a_site_that_misses_one_of_the_mixtures_has_no_pair():
    """The server sends two; B answers the first alone, and is not asked for a third."""
    fleet, asked = DirectFleet(toy_problem(3, mlp)), []

    def intercept(verb, site, message):
        if (verb, site) != ("model_losses", "B"):
            return None
        asked.append(message)
        return NoReply("gone") if len(asked) > 1 else None

    fleet.intercept = intercept
    exchange = Exchange(retries=0)
    how = {"learning": "server", "when_idle": "sizes"}
    _, verdicts, _ = judged(fleet, 1, quorum=2, exchange=exchange, **how)
    assert len(asked) == 2
    assert verdicts[0]["gain"] != 0


def test_a_site_that_lost_the_models_before_the_judgement_is_sent_them_again():
    def forgetful(verb, site, message):
        if (verb, site) == ("mixture_losses", "B") and not lost:
            lost.append(site)
            fleet.clients["B"].client_state.keep_bank(None, "")
        return

    lost = []
    plain, (expected, *_), _ = judged(DirectFleet(toy_problem(3, mlp)), 1)
    fleet = DirectFleet(toy_problem(3, mlp), intercept=forgetful)
    again, (found, *_), _ = judged(fleet, 1)
    assert lost == ["B"]
    assert found == expected
    assert torch.equal(plain[0].w.values, again[0].w.values)


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        (torch.ones(2, BATCHES), "not 2 x 8 losses"),
        (torch.ones(3, BATCHES, dtype=torch.float64), "not 2 x 8 losses"),
        (torch.full((2, BATCHES), 1e7, dtype=torch.float64), "a loss is 1e"),
        (torch.full((2, BATCHES), math.nan, dtype=torch.float64), "a loss is nan"),
    ],
    ids=["float32", "shape", "too large", "nan"],
)
def test_losses_that_cannot_be_are_refused(losses, words):
    fleet = DirectFleet(toy_problem(3, mlp))
    fleet.intercept = forge("B", "mixture_losses", Message({"losses": losses}))
    with pytest.raises(FederationError, match=words):
        judged(fleet, 1)


def test_more_than_losses_is_refused():
    fleet = DirectFleet(toy_problem(3, mlp))
    told = torch.ones(2, BATCHES, dtype=torch.float64)
    fleet.intercept = forge("B", "mixture_losses", Message({"losses": told, "more": told}))
    with pytest.raises(FederationError, match="more"):
        judged(fleet, 1)


@pytest.mark.parametrize("how", ["bfloat16", "difference"])
def test_mixtures_travel_encoded(how):
    exchange = Exchange(down=how, up=how)
    fleet = DirectFleet(toy_problem(3, mlp))
    _, verdicts, _ = judged(fleet, 10, exchange=exchange, learning="server")
    assert verdicts[0]["next"] in (2, 4)
    coding = [m.facts["sent"]["coding"] for m in fleet.sent("model_losses", "A")]
    assert set(coding) == {how}


def test_a_site_without_the_reference_of_a_difference_is_sent_the_mixture_whole():
    fleet, said = DirectFleet(toy_problem(3, mlp)), []

    def forget(verb, site, message):
        if verb == "model_losses" and site == "A" and not said:
            said.append(site)
            return Message({}, {"missing": True})
        return None

    fleet.intercept = forget
    plain = judged(DirectFleet(toy_problem(3, mlp)), 1, learning="server")[1]
    again = judged(fleet, 1, learning="server")[1]
    assert said == ["A"]
    assert again == plain


def test_a_model_of_another_network_is_refused_at_the_site():
    client = DirectFleet(toy_problem(3, mlp)).clients["A"]
    facts = {"t": 1, "s": 6, "steps": 2, "data": "validation"}
    with pytest.raises(TrainingError, match="was sent 3 numbers of"):
        client.answer("model_losses", Message({"values": torch.zeros(3)}, facts))
    sent = {"sent": {"coding": "difference", "reference": "0" * 32}}
    reply = client.answer("model_losses", Message({}, {**facts, **sent}))
    assert reply.facts == {"missing": True}


def test_losses_that_are_not_finite_name_site_round_and_step():
    client = DirectFleet(toy_problem(3, mlp)).clients["A"]
    values = torch.full_like(client.trainer.flat, math.inf)
    facts = {"t": 4, "s": 6, "steps": 2, "data": "validation"}
    with pytest.raises(TrainingError, match="client A, model_losses, round 4, step 6"):
        client.answer("model_losses", Message({"values": values}, facts))
