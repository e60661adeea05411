"""Blind learning where something goes wrong: lost and restarted sites, bad parts, odd requests."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autofedavg.algorithm import Round
from autofedavg.core.bank import Model
from autofedavg.core.blind import Lesson
from autofedavg.core.errors import ConfigError, FederationError, TrainingError
from autofedavg.core.seeds import Seeds
from autofedavg.core.trainer import Training
from autofedavg.federation.client_state import ClientState
from autofedavg.federation.messages import Message, NoReply
from autofedavg.federation.settings import Exchange
from autofedavg.methods.auto_fedavg import AutoFedAvg
from blind_runs import blind_run, federation_of, same_rounds
from flaky import Fault, FlakyFleet
from toy import TRAINING, DirectFleet, float64, lose, norm_net, toy_problem

# --- sites that are lost ----------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["local_train", "masked_gradient"])
def test_a_lost_site_is_left_out_of_a_new_attempt(verb):
    problem, exchange = toy_problem(4), Exchange(retries=0)
    fleet = DirectFleet(problem, intercept=lose("C", verb=verb, t=2))
    federation = federation_of(fleet, quorum=3, exchange=exchange)
    blind_run(fleet, problem, federation=federation)
    asked = [m.facts["sum"] for m in fleet.sent(verb, "A") if m.facts["t"] == 2]
    assert [(list(over["keys"]), over["attempt"]) for over in asked] == [
        (["A", "B", "C", "D"], 1),
        (["A", "B", "D"], 2),
    ]
    events = federation.take_events()
    assert [(e["call"], e["site"]) for e in events if e["what"] == "lost"] == [(verb, "C")]
    assert [e["site"] for e in events if e["what"] == "returned"] == ["C"]


@pytest.mark.parametrize("K", [4, 17])
def test_without_a_lost_site_the_sum_is_that_of_the_others(K):
    """What a federation without it gives, bit for bit; 16 sites have finer steps than 17."""
    all_sites, fewer = toy_problem(K), toy_problem(K - 1)
    fleet = DirectFleet(all_sites, intercept=lose([*all_sites.sites][-1], verb="local_train"))
    federation = federation_of(fleet, quorum=3, exchange=Exchange(retries=0))
    some = blind_run(fleet, all_sites, federation=federation, rounds=1)
    others = blind_run(DirectFleet(fewer), fewer, rounds=1)
    assert same_rounds(some, others)


def test_a_site_that_missed_a_round_does_not_learn_from_it():
    problem, exchange = toy_problem(4), Exchange(retries=0)
    fleet = DirectFleet(problem, intercept=lose("C", verb="local_train", t=2))
    federation = federation_of(fleet, quorum=3, exchange=exchange)
    how = {"constraint": "softmax", "show_weights": True}
    states = blind_run(fleet, problem, federation=federation, **how)
    u = [dict(zip("ABCD", state.alpha.tolist(), strict=True)) for state in states]
    assert u[1]["C"] == 0.0
    theta = [kept["theta"] for kept in fleet.clients["C"].client_state.kept.states.values()]
    assert len(theta) == 2
    whole = blind_run(DirectFleet(problem), problem, **how)
    assert states[2].alpha[2] != whole[2].alpha[2]
    # Its u in round 3 is still u^0 = 1: it stepped in neither round 2 nor round 3.
    total = float(states[2].memory["U"])
    assert float(states[2].alpha[2]) == pytest.approx(1 / total, abs=1e-9)


def test_with_the_quorum_of_all_a_lost_site_ends_the_run():
    problem = toy_problem(4)
    fleet = DirectFleet(problem, intercept=lose("C", verb="local_train", t=2))
    with pytest.raises(FederationError, match="3 of 4 answered, 4 needed"):
        blind_run(fleet, problem, federation=federation_of(fleet, exchange=Exchange(retries=0)))


def test_a_sum_over_two_is_never_asked_for_whatever_the_quorum():
    problem = toy_problem(3)
    fleet = DirectFleet(problem, intercept=lose("C", verb="local_train"))
    with pytest.raises(FederationError, match="2 of 3 answered, 3 needed"):
        blind_run(
            fleet, problem, federation=federation_of(fleet, quorum=1, exchange=Exchange(retries=0))
        )
    sums = [message.facts["sum"]["keys"] for message in fleet.sent("local_train")]
    assert all(len(keys) == 3 for keys in sums)


def test_answers_of_an_abandoned_attempt_are_of_no_use():
    """What A, B and D sent for four sites is not their sum; neither with a late C's later part."""
    problem = toy_problem(4)
    seen: dict[tuple[str, int], Message] = {}

    class Curious(DirectFleet):
        def ask(self, verb, messages, within):
            replies = super().ask(verb, messages, within)
            if verb == "local_train":
                attempt = next(iter(messages.values())).facts["sum"]["attempt"]
                seen.update({(name, attempt): reply for name, reply in replies.items()})
            return replies

    fleet = Curious(problem, intercept=lose("C", verb="local_train", t=1))
    federation = federation_of(fleet, quorum=3, exchange=Exchange(retries=0))
    blind_run(fleet, problem, federation=federation, rounds=1)
    assert isinstance(seen["C", 1], NoReply)
    parts = {at: part.arrays["narrow"] for at, part in seen.items() if isinstance(part, Message)}
    real = parts["A", 2] + parts["B", 2] + parts["D", 2]
    assert int(real.abs().max()) < 2**26
    for mixed in (
        parts["A", 1] + parts["B", 1] + parts["D", 1],
        parts["A", 1] + parts["B", 2] + parts["D", 2],
        parts["A", 2] + parts["B", 2] + parts["D", 1],
    ):
        assert int(mixed.abs().max()) > 2**28
    # Asked for the first attempt again, nobody who answered the second one replies.
    old = next(m for verb, site, m in fleet.asked if (verb, site) == ("local_train", "A"))
    with pytest.raises(TrainingError, match=r"attempt 1 for .* comes after"):
        fleet.clients["A"].answer("local_train", old)


def test_a_further_attempt_does_not_train_again():
    problem, trained = toy_problem(4), []
    fleet = DirectFleet(problem, intercept=lose("C", verb="local_train", t=1))
    client = fleet.clients["A"]
    train = client.train
    client.train = lambda job: trained.append(job.t) or train(job)
    federation = federation_of(fleet, quorum=3, exchange=Exchange(retries=0))
    blind_run(fleet, problem, federation=federation, rounds=2)
    assert trained == [1, 2]
    assert len(fleet.sent("local_train", "A")) == 3


@pytest.mark.parametrize("other", ["model", "lesson"])
def test_a_round_that_is_asked_for_again_from_other_numbers_is_not_answered_from_memory(other):
    """The sum would mix trainings from two models; or show the difference of the two."""
    problem = toy_problem(3)
    fleet = DirectFleet(problem)
    federation, (w0, layout) = federation_of(fleet), problem.initial(Seeds(7))
    plan = AutoFedAvg(learning="blind", sketch=0).blind().plan
    how = {"T": 3, "plan": plan, "layout": layout}
    w = federation.masked_train(1, w0, **how).w
    lessons = [Lesson(torch.full((plan.length(layout),), x), float64([3.0])) for x in (0.1, 0.2)]
    states = dict(federation.personal.states)

    def second(model, lesson):
        federation.personal.states = dict(states)  # as a run has them that is resumed
        return federation.masked_train(2, model, lesson=lesson, **how)

    assert torch.equal(second(w, lessons[0]).w.values, second(w, lessons[0]).w.values)
    moved = Model(w.values + 0.1, w.counters) if other == "model" else w
    with pytest.raises(TrainingError, match="attempt 1 was answered with other numbers"):
        second(moved, lessons[other == "lesson"])


def test_a_site_that_joins_late_is_asked_for_its_key_then():
    problem = toy_problem(4)
    fleet = DirectFleet(problem, intercept=lose("D", verb="share_keys", t=1))
    federation = federation_of(fleet, quorum=3, exchange=Exchange(retries=0))
    blind_run(fleet, problem, federation=federation, rounds=2)
    assert [len(m.facts["sum"]["keys"]) for m in fleet.sent("local_train", "A")] == [3, 4]
    assert [m.facts["t"] for m in fleet.sent("share_keys")] == [1, 1, 1, 1, 1, 2]
    assert [m.facts["t"] for m in fleet.sent("share_keys", "D")] == [1, 1, 2]


# --- sites that forget, or say something wrong -----------------------------------------------


def test_a_site_that_starts_again_has_a_new_key_and_its_first_theta():
    problem = toy_problem(4)
    fleet = FlakyFleet(problem, [Fault("B", "local_train", "forgets", t=3, times=1)])
    federation = federation_of(fleet)
    how = {"constraint": "softmax", "show_weights": True}
    states = blind_run(fleet, problem, federation=federation, **how)
    attempts = [m.facts["sum"]["attempt"] for m in fleet.sent("local_train", "A")]
    assert attempts == [1, 1, 1, 2, 1]
    events = [(e["site"], e["what"]) for e in federation.take_events()]
    assert ("B", "restarted") in events
    total = float(states[2].memory["U"])
    assert float(states[2].alpha[1]) == pytest.approx(1 / total, abs=1e-9)
    assert float(states[3].alpha[1]) * float(states[3].memory["U"]) != pytest.approx(1)


def test_a_site_that_lost_its_key_and_model_before_a_gradient_is_given_both():
    problem = toy_problem(4)
    fleet = FlakyFleet(problem, [Fault("B", "masked_gradient", "forgets", t=2, times=1)])
    blind_run(fleet, problem)
    asked = [m for m in fleet.sent("masked_gradient", "B") if m.facts["t"] == 2]
    assert [m.facts["sum"]["attempt"] for m in asked] == [1, 1, 2]
    assert [("values" in m.arrays) for m in asked] == [False, True, False]


@pytest.mark.parametrize("verb", ["local_train", "masked_gradient"])
@pytest.mark.parametrize("what", ["shape", "type", "names", "error", "no facts"])
def test_a_part_that_cannot_be_used_ends_the_run_or_leaves_its_site_out(verb, what):
    if (verb, what) == ("masked_gradient", "no facts"):
        pytest.skip("it has none")
    problem = toy_problem(4)
    faults = [Fault("B", verb, what, t=2)]
    with pytest.raises((FederationError, TrainingError)):
        blind_run(FlakyFleet(problem, faults), problem)
    fleet = FlakyFleet(problem, faults)
    exchange = Exchange(bad_answers="drop", retries=0)
    blind_run(fleet, problem, federation=federation_of(fleet, quorum=3, exchange=exchange))
    last = [m for m in fleet.sent(verb, "A") if m.facts["t"] == 2][-1]
    assert list(last.facts["sum"]["keys"]) == ["A", "C", "D"]


@pytest.mark.parametrize("verb", ["local_train", "masked_gradient"])
def test_masks_that_do_not_cancel_are_noticed(verb):
    problem = toy_problem(4)

    def intercept(asked, site, message):
        if (asked, site) != (verb, "B"):
            return None
        keys = {**message.facts["sum"]["keys"], "A": "1" * 64}
        changed = {**message.facts, "sum": {**message.facts["sum"], "keys": keys}}
        return fleet.clients["B"].answer(verb, Message(message.arrays, changed))

    fleet = DirectFleet(problem, intercept=intercept)
    with pytest.raises(FederationError, match="masks have not cancelled"):
        blind_run(fleet, problem)


@pytest.mark.parametrize("key", [None, 7, "short", "g" * 64, ["a"]], ids=str)
def test_a_key_that_is_none_is_refused(key):
    problem = toy_problem(3)
    fleet = DirectFleet(
        problem,
        intercept=lambda verb, site, message: (
            Message({}, {"key": key}) if (verb, site) == ("share_keys", "B") else None
        ),
    )
    with pytest.raises(FederationError, match="its key is"):
        blind_run(fleet, problem)


@pytest.mark.parametrize("u", [None, [1.0, 2.0], ["x"], "1", [float("nan")]], ids=str)
def test_shown_weights_that_are_none_are_refused(u):
    problem = toy_problem(3)
    fleet = DirectFleet(problem)
    client = fleet.clients["B"]

    def intercept(verb, site, message):
        if (verb, site) != ("local_train", "B"):
            return None
        reply = client.answer(verb, message)
        return Message(reply.arrays, {**reply.facts, "u": u})

    fleet.intercept = intercept
    with pytest.raises(FederationError, match=r"its weights are|plain values"):
        blind_run(fleet, problem, show_weights=True)


def test_a_site_whose_key_never_stays_ends_the_run():
    problem = toy_problem(3)
    fleet = DirectFleet(problem)

    def intercept(verb, site, message):
        if (verb, site) == ("local_train", "B"):
            fleet.clients["B"].client_state = ClientState()

    fleet.intercept = intercept
    with pytest.raises(FederationError, match="keys have changed in 99 attempts"):
        blind_run(fleet, problem)


def test_a_model_that_moved_too_far_is_an_error_that_says_what_to_do():
    problem = toy_problem(3)
    fleet = DirectFleet(problem, replace_rate(1e6))
    with pytest.raises(
        TrainingError, match=r"beyond 42\.7, the limit.*lower training\.learning_rate"
    ):
        blind_run(fleet, problem)


def replace_rate(rate: float) -> Training:
    return TRAINING.model_copy(update={"learning_rate": rate, "iterations": 1})


def test_a_gradient_that_is_too_long_is_scaled_and_logged(caplog):
    problem = toy_problem(3)
    loud = replace(problem, loss=lambda network, batch: 1e4 * problem.loss(network, batch))
    quiet = replace_rate(1e-6)
    fleet = DirectFleet(loud, quiet)
    federation = federation_of(fleet)
    blind_run(fleet, loud, federation=federation, rounds=2)
    assert "its gradient is scaled from" in caplog.text
    clipped = [event for event in federation.take_events() if event["what"] == "clipped"]
    assert clipped[0]["reason"] == "the gradient of 3 of 3 sites was too long, and was scaled"


ANYTHING = st.builds(
    Message,
    st.dictionaries(
        st.sampled_from(["narrow", "wide", "values"]),
        st.sampled_from(
            [
                torch.zeros(51, dtype=torch.int32),
                torch.zeros(4, dtype=torch.int64),
                torch.zeros(51),
                torch.zeros(0, dtype=torch.int32),
            ]
        ),
        max_size=2,
    ),
    st.dictionaries(
        st.sampled_from(["key", "kept", "u", "missing", "error"]),
        st.none() | st.booleans() | st.text(max_size=3) | st.just("a" * 64) | st.just("b" * 32),
        max_size=3,
    ),
)
NOTHING = st.sampled_from([NoReply("x"), Message({}, None), Message(None, {}), 7])


@pytest.mark.parametrize("call", ["share_keys", "local_train", "masked_gradient"])
@given(answer=ANYTHING | NOTHING)
def test_no_answer_whatever_breaks_a_sum_otherwise_than_by_name(call, answer):
    """The site is left out, or the run ends with an error of ours; no other one, no wrong sum."""
    problem = toy_problem(4)
    fleet = DirectFleet(
        problem,
        intercept=lambda verb, site, message: answer if (verb, site) == (call, "B") else None,
    )
    exchange = Exchange(bad_answers="drop", retries=0)
    federation = federation_of(fleet, quorum=3, exchange=exchange)
    w0, layout = problem.initial(Seeds(7))
    try:
        rounds = list(AutoFedAvg(learning="blind").rounds(federation, layout, 2, Round(0, w0)))
    except FederationError:
        return
    assert all(bool(torch.isfinite(state.w.values).all()) for state in rounds)
    assert all(event["site"] == "B" for event in federation.take_events())


# --- requests that a site refuses -------------------------------------------------------------


def requests(problem) -> dict[str, Message]:
    """What A is asked in a round with a lesson, and for a gradient."""
    fleet = DirectFleet(problem)
    w0, layout = problem.initial(Seeds(7))
    method = AutoFedAvg(learning="blind", objective="size")
    list(method.rounds(federation_of(fleet), layout, 2, Round(0, w0)))
    found = {verb: m for verb, site, m in fleet.asked if site == "A"}
    return {"fleet": fleet, **found}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"lesson/y": torch.ones(3)}, "cannot learn from"),
        ({"lesson/z": torch.ones(3)}, "cannot learn from"),
        ({"lesson/U": torch.full((1,), float("nan"))}, "cannot learn from"),
        ({"lesson/U": torch.zeros(1)}, "is not positive"),
    ],
)
def test_a_site_learns_from_nothing_odd(change, why):
    asked = requests(toy_problem(3))
    message = asked["local_train"]
    client = asked["fleet"].clients["A"]
    client.client_state.masks.done = None
    with pytest.raises(TrainingError, match=why):
        client.answer("local_train", Message({**message.arrays, **change}, message.facts))


def test_a_site_refuses_unknown_rules_and_too_few_cases():
    asked = requests(toy_problem(3))
    client, message = asked["fleet"].clients["A"], asked["masked_gradient"]
    for plan in ({}, {**message.facts["blind"], "power": 2}):
        with pytest.raises(TrainingError, match="by unknown rules"):
            client.answer("masked_gradient", Message({}, {**message.facts, "blind": plan}))
    few = {**message.facts, "sum": {**message.facts["sum"], "cases": 1}}
    with pytest.raises(TrainingError, match="all sites together have 1 cases, and it has 8"):
        client.answer("masked_gradient", Message({}, few))


def test_a_blind_state_is_not_a_model_that_can_be_scored():
    asked = requests(toy_problem(3))
    client = asked["fleet"].clients["A"]
    (*_, digest) = client.client_state.kept.states
    reply = client.answer("evaluate", Message({}, {"split": "validation", "kept": digest}))
    assert reply.facts == {"missing": True}


def test_blind_learning_needs_one_global_model():
    problem = toy_problem(3)
    w0, layout = problem.initial(Seeds(7))
    federation = federation_of(DirectFleet(problem))
    bank = federation.local_train(1, w0, T=1).w_k
    rounds = AutoFedAvg(learning="blind").rounds(federation, layout, 1, Round(0, bank))
    with pytest.raises(ConfigError, match="blind learning needs a global model"):
        next(rounds)


@pytest.mark.parametrize("down", ["bfloat16", "difference"])
def test_models_may_come_down_in_any_encoding(down):
    problem = toy_problem(3, norm_net)
    fleet = DirectFleet(problem)
    states = blind_run(
        fleet, problem, federation=federation_of(fleet, exchange=Exchange(down=down))
    )
    exact = blind_run(DirectFleet(problem), problem)
    torch.testing.assert_close(states[0].w.values, exact[0].w.values, rtol=0, atol=0.02)
    assert not torch.equal(states[0].w.values, exact[0].w.values)
    assert len(states) == len(exact)
