"""The port: who answered, what is refused, what is counted."""

import pytest
import torch

from autofedavg.core.bank import Bank, Model
from autofedavg.core.errors import DivergedReply, FederationError
from autofedavg.core.local_rules import Prox
from autofedavg.core.problem import Problem
from autofedavg.core.seeds import Seeds
from autofedavg.federation.client_state import ClientState
from autofedavg.federation.local_training import LocalRequest
from autofedavg.federation.messages import Message, NoReply
from autofedavg.federation.port import Federation
from autofedavg.federation.settings import Exchange
from autofedavg.methods.auto_fedavg import AutoFedAvg
from toy import (
    BETA,
    HOW,
    METRIC,
    DirectFleet,
    float64,
    forge,
    lose,
    norm_net,
    rounds_of,
    same_round,
    toy_problem,
)


@pytest.fixture
def w0(problem):
    return problem.initial(Seeds(7))[0]


def ready(federation, w0):
    """A federation whose clients have trained round 1 and hold all models."""
    bank = federation.local_train(1, w0, T=2).w_k
    federation.share_models(1, bank)
    return bank


# --- the roster -----------------------------------------------------------------------------------


def test_clients_are_in_the_order_of_their_names(problem):
    sites = {name: problem.sites[name] for name in ("C", "A", "B")}
    federation = Federation(DirectFleet(Problem(problem.network, problem.loss, sites, METRIC)))
    assert federation.names == ("A", "B", "C")
    assert federation.K == 3
    assert [site.cases["train"] for site in federation.sites] == [8, 12, 16]
    assert federation.rows(["C", "A"]) == [2, 0]


def test_the_order_holds_whatever_the_engine_s_roster(problem):
    class Backwards(DirectFleet):
        def roster(self):
            return list(reversed(super().roster()))

        def ask(self, verb, messages, within):
            return dict(reversed(super().ask(verb, messages, within).items()))

    federation = Federation(Backwards(problem))
    trained = federation.local_train(1, problem.initial(Seeds(7))[0], T=1)
    bank, losses = trained.w_k, trained.losses
    assert federation.names == bank.sites == tuple(losses) == ("A", "B", "C")


def test_the_time_limit_is_handed_to_the_engine(problem, w0):
    seen = []

    class Timed(DirectFleet):
        def ask(self, verb, messages, within):
            seen.append(within)
            return super().ask(verb, messages, within)

    Federation(Timed(problem), exchange=Exchange(deadline=12.5)).local_train(1, w0, T=1)
    assert seen == [12.5]


# --- training -------------------------------------------------------------------------------------


def test_everybody_starts_from_w_and_says_its_loss(federation, transport, w0):
    trained = federation.local_train(1, w0, T=5, request=LocalRequest(Prox(mu=0.5)))
    bank, losses = trained.w_k, trained.losses
    assert all(
        torch.equal(message.arrays["values"], w0.values)
        for message in transport.sent("local_train")
    )
    assert transport.sent("local_train", "A")[0].facts == {
        "t": 1,
        "T": 5,
        "rule": {"name": "prox", "mu": 0.5},
    }
    assert bank.values.shape == (3, w0.values.numel())
    assert all(0 < loss < 5 for loss in losses.values())


def test_given_a_bank_everybody_starts_from_its_own_row(federation, transport, w0):
    bank = Bank.gather({name: Model(w0.values + k, w0.counters) for k, name in enumerate("ABC")})
    federation.local_train(1, bank, T=1)
    for k, name in enumerate("ABC"):
        assert torch.equal(transport.sent("local_train", name)[0].arrays["values"], w0.values + k)


# --- clients that do not answer -------------------------------------------------------------------


def test_without_a_quorum_one_lost_client_stops_the_call(federation, transport, w0):
    transport.intercept = lose("B", verb="local_train")
    wrong = (
        r"^client B, local_train, round 4: did not answer \(gone\); 2 of 3 answered, 3 needed; "
        "mend the client and resume the run$"
    )
    with pytest.raises(FederationError, match=wrong) as caught:
        federation.local_train(4, w0, T=5)
    assert (caught.value.client, caught.value.call, caught.value.round) == ("B", "local_train", 4)


def test_an_engine_that_says_nothing_of_a_client_has_lost_it(problem, w0):
    class Silent(DirectFleet):
        def ask(self, verb, messages, within):
            return {k: a for k, a in super().ask(verb, messages, within).items() if k != "C"}

    with pytest.raises(FederationError, match=r"client C.*did not answer \(no answer\)"):
        Federation(Silent(problem)).local_train(1, w0, T=1)


def test_with_a_quorum_the_call_goes_on_over_those_that_answered(problem, w0):
    transport = DirectFleet(problem, intercept=lose("B", verb="local_train"))
    trained = Federation(transport, quorum=2).local_train(1, w0, T=1)
    bank, losses = trained.w_k, trained.losses
    assert bank.sites == tuple(losses) == ("A", "C")
    whole = Federation(DirectFleet(problem)).local_train(1, w0, T=1).w_k
    assert torch.equal(bank.values, whole.values[[0, 2]])


def test_below_the_quorum_the_call_stops_naming_the_first_that_is_missing(problem, w0):
    transport = DirectFleet(problem, intercept=lose("B", "C", verb="local_train"))
    with pytest.raises(FederationError, match=r"client B.*1 of 3 answered, 2 needed"):
        Federation(transport, quorum=2).local_train(1, w0, T=1)


def test_the_models_go_to_those_that_trained_only(problem, w0):
    transport = DirectFleet(problem, intercept=lose("B", verb="local_train"))
    federation = Federation(transport, quorum=2)
    bank = federation.local_train(1, w0, T=1).w_k
    federation.share_models(1, bank)
    stepped = federation.update_beta(1, 1, float64([0.0, 0.0]), **HOW)
    assert list(stepped) == ["A", "C"]
    assert not transport.sent("share_models", "B")
    assert not transport.sent("update_beta", "B")


def test_a_client_that_sat_out_a_round_is_not_asked_to_validate_it(problem, w0):
    transport = DirectFleet(problem, intercept=lose("B", verb="local_train"))
    federation = Federation(transport, quorum=2)
    bank = federation.local_train(1, w0, T=1).w_k
    assert list(federation.validate_local(1, bank, METRIC)) == ["A", "C"]
    assert not transport.sent("validate_local", "B")


@pytest.mark.parametrize("verb", ["evaluate", "validate_local"])
def test_scores_are_of_those_that_answered(problem, w0, verb):
    federation = Federation(DirectFleet(problem, intercept=lose("A", verb=verb)), quorum=1)
    bank = federation.local_train(1, w0, T=1).w_k
    if verb == "evaluate":
        assert list(federation.evaluate(w0, "validation").by_site(METRIC)) == ["B", "C"]
    else:
        assert list(federation.validate_local(1, bank, METRIC)) == ["B", "C"]


# --- clients that lost the models -----------------------------------------------------------------


def forgetting(transport, name, s):
    """Empties a client's shelf just before step s of the first call."""

    def intercept(verb, site, message):
        if (verb, site) == ("update_beta", name) and message.facts["s"] == s and not forgot:
            forgot.append(s)
            transport.clients[name].client_state = ClientState()

    forgot = []
    return intercept


@pytest.mark.parametrize("network", [None, norm_net])
@pytest.mark.parametrize("s", [1, 3])
def test_a_client_that_lost_the_models_is_sent_them_again_and_nothing_changes(network, s):
    problem = toy_problem(3, network) if network else toy_problem(3)
    method = AutoFedAvg(S=4, t0=2)
    undisturbed = rounds_of(method, DirectFleet(problem), 4)
    transport = DirectFleet(problem)
    transport.intercept = forgetting(transport, "B", s)
    disturbed = rounds_of(method, transport, 4)
    assert all(map(same_round, undisturbed, disturbed))
    again = transport.sent("share_models", "B")
    assert len(again) == 4
    assert not again[1].arrays  # digests first
    assert [f"values/{name}" in again[2].arrays for name in "ABC"] == [True, True, True]
    assert len(transport.sent("share_models", "A")) == 2


def test_a_client_that_missed_the_models_is_sent_all_of_them(problem, w0):
    transport = DirectFleet(problem, intercept=lose("B", verb="share_models"))
    federation = Federation(transport, quorum=2)
    bank = federation.local_train(1, w0, T=1).w_k
    federation.share_models(1, bank)
    transport.intercept = lambda verb, site, message: None
    assert list(federation.update_beta(1, 1, BETA, **HOW)) == ["A", "B", "C"]


def test_a_client_that_cannot_keep_the_models_is_named(federation, transport, w0):
    ready(federation, w0)
    transport.intercept = forge("B", "update_beta", Message({}, {"missing": True}))
    with pytest.raises(FederationError, match="client B, update_beta, round 1"):
        federation.update_beta(1, 1, BETA, **HOW)


@pytest.mark.parametrize("verb", ["share_models", "update_beta"])
def test_with_a_quorum_a_forgetful_client_may_also_be_lost(problem, w0, verb):
    transport = DirectFleet(problem)
    federation = Federation(transport, quorum=2)
    ready(federation, w0)
    transport.clients["B"].client_state = ClientState()
    asked = []

    def intercept(asked_verb, site, message):
        if (asked_verb, site) != (verb, "B"):
            return None
        asked.append(site)
        first_step = verb == "update_beta" and len(asked) == 1
        return None if first_step else NoReply("gone")

    transport.intercept = intercept
    assert list(federation.update_beta(1, 1, BETA, **HOW)) == ["A", "C"]


def test_a_forgetful_client_that_is_lost_stops_a_full_federation(federation, transport, w0):
    ready(federation, w0)
    transport.clients["B"].client_state = ClientState()
    transport.intercept = lose("B", verb="share_models")
    with pytest.raises(FederationError, match=r"client B, share_models, round 1: did not answer"):
        federation.update_beta(1, 1, BETA, **HOW)


def test_beta_cannot_be_learned_before_models_are_shared(federation):
    wrong = "^client all, update_beta, round 3: no models have been shared yet; call share_models"
    with pytest.raises(FederationError, match=wrong):
        federation.update_beta(3, 1, BETA, **HOW)


# --- answers that cannot be used ------------------------------------------------------------------


def trained(values, counters=None, facts=None):
    arrays = {"values": values} | ({} if counters is None else {"counters": counters})
    return Message(arrays, {"loss": 0.1} if facts is None else facts)


def test_a_model_of_the_wrong_size_is_refused(federation, transport, w0):
    transport.intercept = forge("C", "local_train", trained(torch.zeros(3)))
    wrong = (
        r"^client C, local_train, round 2: its model does not fit the network: .*\[3\].* instead"
    )
    with pytest.raises(FederationError, match=wrong):
        federation.local_train(2, w0, T=2)


@pytest.mark.parametrize(
    "arrays", [{}, {"weights": torch.zeros(51)}], ids=["no array", "another name"]
)
def test_a_model_under_unknown_names_is_refused(federation, transport, w0, arrays):
    transport.intercept = forge("C", "local_train", Message(arrays, {"loss": 0.1}))
    with pytest.raises(FederationError, match=r"client C.*does not fit the network"):
        federation.local_train(2, w0, T=2)


def test_an_extra_array_is_refused(federation, transport, w0):
    answer = trained(w0.values, counters=torch.zeros(1, dtype=torch.int64))
    transport.intercept = forge("C", "local_train", answer)
    with pytest.raises(FederationError, match=r"client C.*does not fit the network"):
        federation.local_train(2, w0, T=2)


def test_a_model_of_another_type_is_refused(federation, transport, w0):
    transport.intercept = forge("C", "local_train", trained(w0.values.double()))
    with pytest.raises(FederationError, match=r"client C.*does not fit the network"):
        federation.local_train(2, w0, T=2)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_model_that_is_not_finite_is_refused(federation, transport, w0, bad):
    values = w0.values.clone()
    values[5] = bad
    transport.intercept = forge("B", "local_train", trained(values))
    wrong = (
        "^client B, local_train, round 2: its trained model holds numbers that are not finite; l"
    )
    with pytest.raises(FederationError, match=wrong):
        federation.local_train(2, w0, T=2)


def test_infinities_that_cancel_are_refused_too(federation, transport, w0):
    values = w0.values.clone()
    values[:2] = torch.tensor([float("inf"), float("-inf")])
    transport.intercept = forge("B", "local_train", trained(values))
    with pytest.raises(FederationError, match=r"client B.*not finite"):
        federation.local_train(2, w0, T=2)


@pytest.mark.parametrize("theta", [[0.0, 0.0], [0.0, float("nan"), 0.0], [float("inf"), 0.0, 0.0]])
def test_a_beta_of_the_wrong_shape_or_not_finite_is_refused(federation, transport, w0, theta):
    ready(federation, w0)
    transport.intercept = forge(
        "B", "update_beta", Message({"theta": float64(theta)}, {"loss": 0.1})
    )
    wrong = (
        "^client B, update_beta, round 1: its beta for step 7 has a wrong shape or is not finite; "
        "lower method.beta_rate, or look at this site's images$"
    )
    with pytest.raises(FederationError, match=wrong):
        federation.update_beta(1, 7, BETA, **HOW)


@pytest.mark.parametrize(
    ("verb", "answer"),
    [
        ("local_train", "no loss"),
        ("update_beta", Message({}, {"loss": 0.1})),
        ("update_beta", Message({"beta": BETA}, {"loss": 0.1})),
        ("update_beta", Message({"theta": BETA, "more": BETA}, {"loss": 0.1})),
        ("evaluate", Message()),
        ("validate_local", Message()),
    ],
    ids=["no loss", "no theta", "another name", "one name more", "no scores", "no score"],
)
def test_an_answer_to_another_question_is_refused(federation, transport, w0, verb, answer):
    bank = ready(federation, w0)
    answer = trained(w0.values, facts={}) if answer == "no loss" else answer
    transport.intercept = forge("B", verb, answer)
    calls = {
        "local_train": lambda: federation.local_train(2, w0, T=2),
        "update_beta": lambda: federation.update_beta(1, 1, BETA, **HOW),
        "evaluate": lambda: federation.evaluate(w0, "validation"),
        "validate_local": lambda: federation.validate_local(1, bank, METRIC),
    }
    with pytest.raises(FederationError, match=f"client B, {verb}"):
        calls[verb]()


def test_a_score_that_is_not_finite_is_refused(federation, transport, w0):
    answer = Message({}, {"scores": [["7", METRIC, 0.5], ["8", METRIC, float("nan")]]})
    transport.intercept = forge("B", "evaluate", answer)
    with pytest.raises(FederationError, match=r"^client B, evaluate: score of case 8 is nan$"):
        federation.evaluate(w0, "validation")


def test_a_local_score_that_is_not_finite_is_refused(federation, transport, w0):
    bank = federation.local_train(1, w0, T=1).w_k
    transport.intercept = forge("B", "validate_local", Message({}, {"score": float("nan")}))
    with pytest.raises(FederationError, match="client B, validate_local"):
        federation.validate_local(1, bank, METRIC)


def nans(n):
    return torch.full((n,), torch.nan)


@pytest.mark.parametrize(
    ("verb", "answer", "diverged"),
    [
        ("local_train", lambda w0: trained(w0.values * torch.nan), True),
        ("local_train", lambda w0: trained(w0.values, facts={"loss": 1e7}), True),
        ("local_train", lambda w0: trained(w0.values, facts={"loss": "low"}), False),
        ("local_train", lambda w0: trained(w0.values, facts={}), False),
        ("local_train", lambda w0: trained(w0.values[1:]), False),
        ("update_beta", lambda _: Message({"theta": nans(3).double()}, {"loss": 0.1}), True),
        ("update_beta", lambda _: Message({"theta": nans(2).double()}, {"loss": 0.1}), False),
        ("differentiate", lambda _: Message({"gradient": nans(51)}, {"loss": 0.1}), True),
        ("differentiate", lambda _: Message({"gradient": nans(50)}, {"loss": 0.1}), False),
        ("local_train", lambda _: Message({}, {"error": "loss nan", "diverged": True}), True),
        ("local_train", lambda _: Message({}, {"error": "loss nan", "diverged": "yes"}), False),
        ("evaluate", lambda _: Message({}, {"error": "numbers are not finite"}), False),
    ],
)
def test_a_divergence_is_an_error_of_its_own_kind(
    federation, transport, w0, verb, answer, diverged
):
    """Tuning counts it as a trial's result, and stops at every other failure."""
    ready(federation, w0)
    transport.intercept = forge("B", verb, answer(w0))
    calls = {
        "local_train": lambda: federation.local_train(2, w0, T=2),
        "update_beta": lambda: federation.update_beta(1, 7, BETA, **HOW),
        "differentiate": lambda: gradients(federation, w0),
        "evaluate": lambda: federation.evaluate(w0, "validation"),
    }
    with pytest.raises(FederationError) as refused:
        calls[verb]()
    assert isinstance(refused.value, DivergedReply) is diverged


# --- gradients ------------------------------------------------------------------------------------


def gradients(federation, w, sites="ABC", s=7):
    return federation.differentiate(
        1, s, w, sites, length=w.values.numel(), data="validation", mode="eval"
    )


def test_everybody_differentiates_at_the_same_model(federation, transport, w0):
    found = gradients(federation, w0)
    assert list(found) == ["A", "B", "C"]
    assert all(gradient.shape == w0.values.shape for gradient in found.values())
    assert not torch.equal(found["A"], found["B"])
    for message in transport.sent("differentiate"):
        assert set(message.arrays) == {"values"}
        assert torch.equal(message.arrays["values"], w0.values)
        assert message.facts == {"t": 1, "s": 7, "data": "validation", "mode": "eval"}


def test_only_those_named_are_asked_for_a_gradient(federation, transport, w0):
    assert list(gradients(federation, w0, "AC")) == ["A", "C"]
    assert not transport.sent("differentiate", "B")


def test_with_a_quorum_gradients_are_of_those_that_answered(problem, w0):
    transport = DirectFleet(problem, intercept=lose("B", verb="differentiate"))
    assert list(gradients(Federation(transport, quorum=2), w0)) == ["A", "C"]
    with pytest.raises(FederationError, match="client B, differentiate, round 1: did not answer"):
        gradients(Federation(transport), w0)


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"theta": torch.zeros(51)},
        {"gradient": torch.zeros(51), "more": torch.zeros(1)},
        {"gradient": torch.zeros(50)},
        {"gradient": torch.zeros(51, 1)},
        {"gradient": torch.zeros(51, dtype=torch.float64)},
        {"gradient": torch.full((51,), torch.nan)},
        {"gradient": torch.tensor([torch.inf, -torch.inf] + [0.0] * 49)},
    ],
    ids=["none", "name", "one more", "short", "shape", "type", "nan", "infinite"],
)
def test_a_gradient_that_cannot_be_used_is_refused(federation, transport, w0, arrays):
    assert w0.values.shape == (51,)
    transport.intercept = forge("B", "differentiate", Message(arrays, {"loss": 0.1}))
    wrong = (
        "^client B, differentiate, round 1: its gradient for step 7 is not 51 finite numbers of "
        "torch.float32; give every site the same study, or look at this site's images$"
    )
    with pytest.raises(FederationError, match=wrong):
        gradients(federation, w0)


# --- the test split -------------------------------------------------------------------------------


def test_the_test_split_stays_closed_until_training_is_over(federation, transport, w0):
    wrong = "^client all, evaluate: the test cases stay closed until training is over; use the val"
    with pytest.raises(FederationError, match=wrong):
        federation.evaluate(w0, "test")
    assert not transport.asked
    assert len(federation.evaluate(w0, "validation").rows) == 18
    assert len(federation.evaluate(w0, "test", record=True).rows) == 15
    with pytest.raises(FederationError, match=wrong):  # and closed again
        federation.evaluate(w0, "test")
    federation.training_over = True
    scores = federation.evaluate(w0, "test")
    assert len(scores.rows) == 15
    assert {row.site for row in scores.rows} == {"A", "B", "C"}


# --- the account ----------------------------------------------------------------------------------


def test_calls_and_bytes_are_counted_once_and_then_forgotten(federation, transport, w0):
    bank = ready(federation, w0)
    account = federation.take_account()
    assert {call: cost.calls for call, cost in account.items()} == {
        "local_train": 1,
        "share_models": 1,
    }
    assert account["local_train"].down == sum(n.nbytes for n in transport.sent("local_train"))
    assert account["share_models"].down == sum(n.nbytes for n in transport.sent("share_models"))
    assert account["local_train"].up > bank.values.nbytes
    assert account["share_models"].up == 3 * len("{}")
    assert all(cost.seconds > 0 for cost in account.values())
    assert federation.take_account() == {}


def test_a_lost_answer_costs_nothing_on_the_way_up(problem, w0):
    def up(intercept):
        once = Exchange(retries=0)
        federation = Federation(DirectFleet(problem, intercept=intercept), quorum=2, exchange=once)
        federation.local_train(1, w0, T=1)
        return federation.take_account()["local_train"]

    whole, lossy = up(lambda verb, site, message: None), up(lose("B", verb="local_train"))
    assert lossy.down == whole.down
    assert lossy.up < 0.7 * whole.up


# --- repeating ------------------------------------------------------------------------------------


def test_every_call_may_be_repeated(federation, w0):
    bank = ready(federation, w0)
    first = bank.values.clone()
    steps = federation.update_beta(1, 1, BETA, **HOW)
    scores = federation.evaluate(w0, "validation")
    local = federation.validate_local(1, bank, METRIC)
    assert torch.equal(federation.local_train(1, w0, T=2).w_k.values, first)
    federation.share_models(1, bank)
    again = federation.update_beta(1, 1, BETA, **HOW)
    assert all(torch.equal(steps[name], again[name]) for name in "ABC")
    assert federation.evaluate(w0, "validation") == scores
    assert federation.validate_local(1, bank, METRIC) == local


# --- models far from the others' ------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1.0, 1000.0])
def test_a_model_far_from_all_others_is_recorded_by_name(problem, w0, factor):
    """It is averaged in: what is wrong with it nobody here can know."""

    class Scaled(DirectFleet):
        def ask(self, verb, messages, within):
            replies = super().ask(verb, messages, within)
            replies["B"].arrays["values"].mul_(factor)
            return replies

    federation = Federation(Scaled(problem), remote=True)
    assert federation.local_train(1, w0, T=1).w_k.sites == ("A", "B", "C")
    events = federation.take_events()
    assert [(e["site"], e["what"], e["call"]) for e in events] == (
        [("B", "outlying", "local_train")] if factor > 1 else []
    )
    assert all("its model has moved by" in e["reason"] for e in events)
