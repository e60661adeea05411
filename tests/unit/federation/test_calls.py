"""One call to many clients: time limits, retries, quorums, bad answers, events."""

import logging
import time
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from autofedavg.core.errors import DataError, Diverged, FederationError, error_facts
from autofedavg.core.seeds import Seeds
from autofedavg.core.site import Site
from autofedavg.federation.client import Client
from autofedavg.federation.messages import Message, NoReply
from autofedavg.federation.port import Federation
from autofedavg.federation.replies import THETA_BOUND
from autofedavg.federation.settings import CALLS, Exchange
from flaky import SPOILT, Fault, FlakyFleet
from toy import BETA, HOW, METRIC, DirectFleet, forge, lose, toy_problem


@pytest.fixture
def w0(problem):
    return problem.initial(Seeds(7))[0]


def events(federation):
    """(site, what) of all events since the last time."""
    return [(event["site"], event["what"]) for event in federation.take_events()]


# --- settings -------------------------------------------------------------------------------------


def test_every_request_of_a_client_is_a_call_with_settings():
    parts = {"answer", "training_of", "train", "trained", "weighed"}  # of the requests' own work
    parts |= {"weight_batch", "seeded", "checked"}
    parts |= {"export_state", "import_state"}  # of a simulation's checkpoint: nothing travels
    known = {name for kind in Client.__mro__ for name in vars(kind)}
    answered = {name for name in known if not name.startswith("_")} - parts
    assert answered == set(CALLS)


@pytest.mark.parametrize("part", ["deadlines", "quorums"])
def test_an_unknown_call_is_refused_with_a_suggestion(part):
    with pytest.raises(ValidationError, match=r"local_trane is not a call; did you mean local_tra"):
        Exchange.model_validate({part: {"local_trane": 3}})


@pytest.mark.parametrize(
    "wrong",
    [
        {"deadline": -1.0},
        {"deadline": float("inf")},
        {"deadlines": {"evaluate": -1.0}},
        {"deadlines": {"evaluate": float("nan")}},
        {"quorums": {"evaluate": -1}},
        {"retries": -1},
        {"bad_answers": "ignore"},
        {"up": "int4"},
    ],
)
def test_values_without_meaning_are_refused(wrong):
    with pytest.raises(ValidationError):
        Exchange.model_validate(wrong)


def test_a_call_s_own_limit_and_quorum_go_before_the_general_ones():
    exchange = Exchange(
        deadline=9.0,
        deadlines={"update_beta": 2.0, "evaluate": 0.0},
        quorums={"update_beta": 1, "evaluate": 0},
    )
    assert exchange.seconds("local_train") == 9.0
    assert exchange.seconds("update_beta") == 2.0
    assert exchange.seconds("evaluate") is None
    assert Exchange().seconds("local_train") is None
    assert exchange.quorum("local_train", 2, 3) == 2
    assert exchange.quorum("update_beta", 2, 3) == 1
    assert exchange.quorum("evaluate", 2, 3) == 3
    assert (exchange.least(2, 3), Exchange().least(0, 3)) == (1, 3)


# --- time limits and retries ----------------------------------------------------------------------


def test_the_time_limit_of_a_call_covers_its_retries(problem, w0):
    """What is left of it is what a retry is given; where nothing is left there is none."""
    given = []

    class Timed(FlakyFleet):
        def ask(self, verb, messages, within):
            given.append(within)
            time.sleep(0.02)
            return super().ask(verb, messages, within)

    transport = Timed(problem, [Fault("B", "local_train", "lost")])
    exchange = Exchange(deadlines={"local_train": 5.0}, retries=3)
    federation = Federation(transport, quorum=2, exchange=exchange)
    federation.local_train(1, w0, T=1)
    assert given[0] == 5.0
    assert len(given) == 4
    assert all(later <= before - 0.02 for before, later in pairwise(given))
    assert events(federation) == [("B", "retried")] * 3 + [("B", "lost")]


def test_after_the_deadline_nobody_is_asked_again(problem, w0):
    transport = FlakyFleet(problem, [Fault("B", "local_train", "late")])
    federation = Federation(transport, quorum=2, exchange=Exchange(deadline=0.05, retries=9))
    bank = federation.local_train(1, w0, T=1).w_k
    assert bank.sites == ("A", "C")
    (event,) = federation.take_events()
    assert (event["what"], event["reason"]) == ("lost", "no answer within 0.05 s")
    assert event["seconds"] >= 0.05
    assert len(transport.sent("local_train", "B")) == 1


def test_a_site_that_is_lost_once_is_asked_again_and_nothing_changes(problem, w0):
    transport = FlakyFleet(problem, [Fault("B", "local_train", "lost", times=1)])
    federation = Federation(transport)
    trained = federation.local_train(1, w0, T=1)
    bank, losses = trained.w_k, trained.losses
    trained = Federation(DirectFleet(problem)).local_train(1, w0, T=1)
    whole, same = trained.w_k, trained.losses
    assert torch.equal(bank.values, whole.values)
    assert losses == same
    assert list(losses) == ["A", "B", "C"]
    assert events(federation) == [("B", "retried")]


@pytest.mark.parametrize("retries", [0, 2])
def test_retries_are_counted(problem, w0, retries):
    transport = FlakyFleet(problem, [Fault("B", "local_train", "lost")])
    with pytest.raises(FederationError, match="did not answer"):
        Federation(transport, exchange=Exchange(retries=retries)).local_train(1, w0, T=1)
    assert len(transport.sent("local_train", "B")) == 1 + retries
    assert len(transport.sent("local_train", "A")) == 1


# --- events ---------------------------------------------------------------------------------------


def test_an_event_says_where_what_and_why(problem, w0, caplog):
    caplog.set_level(logging.INFO, logger="autofedavg")
    transport = FlakyFleet(problem, [Fault("B", "update_beta", "lost", s=2)])
    federation = Federation(transport, quorum=2, exchange=Exchange(retries=0))
    bank = federation.local_train(1, w0, T=1).w_k
    federation.share_models(1, bank)
    assert federation.take_events() == []
    for s in (1, 2, 3):
        federation.update_beta(1, s, BETA, **HOW)
    lost, returned = federation.take_events()
    assert lost.pop("seconds") >= 0
    assert lost == {
        "call": "update_beta",
        "site": "B",
        "what": "lost",
        "reason": "the connection was closed",
        "s": 2,
    }
    assert (returned["what"], returned["s"]) == ("returned", 3)
    assert returned["reason"] == "was away since update_beta of round 1"
    assert federation.take_events() == []
    warned = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert warned == ["update_beta of round 1: B lost (the connection was closed)"]


def test_a_site_is_away_until_it_answers_and_warned_of_once(problem, w0, caplog):
    caplog.set_level(logging.INFO, logger="autofedavg")
    transport = FlakyFleet(problem, [Fault("B", "local_train", "lost", times=2)])
    federation = Federation(transport, quorum=2, exchange=Exchange(retries=0))
    for t in (1, 2, 3, 4):
        federation.local_train(t, w0, T=4)
    assert events(federation) == [("B", "lost"), ("B", "lost"), ("B", "returned")]
    assert sum(record.levelno == logging.WARNING for record in caplog.records) == 1


def test_calls_without_a_round_say_none(problem, w0):
    transport = FlakyFleet(problem, [Fault("B", "evaluate", "lost", times=2)])
    federation = Federation(transport, quorum=2)
    federation.evaluate(w0, "validation")
    federation.evaluate(w0, "validation")
    assert federation.take_events()[-1]["reason"] == "was away since evaluate"


# --- quorums --------------------------------------------------------------------------------------


def test_a_call_has_a_quorum_of_its_own(problem, w0):
    transport = DirectFleet(problem, intercept=lose("B", verb="validate_local"))
    federation = Federation(transport, exchange=Exchange(quorums={"validate_local": 2}))
    bank = federation.local_train(1, w0, T=1).w_k
    assert list(federation.validate_local(1, bank, METRIC)) == ["A", "C"]
    assert federation.quorum == 2
    transport.intercept = lose("B", verb="local_train")
    with pytest.raises(FederationError, match="2 of 3 answered, 3 needed"):
        federation.local_train(2, w0, T=2)


@pytest.mark.parametrize("what", ["lost", "error"])
def test_the_test_needs_every_site_whatever_is_set(problem, w0, what):
    transport = FlakyFleet(problem, [Fault("B", "evaluate", what)])
    federation = Federation(
        transport, quorum=1, exchange=Exchange(bad_answers="drop", quorums={"evaluate": 1})
    )
    assert list(federation.evaluate(w0, "validation").by_site(METRIC)) == ["A", "C"]
    assert list(federation.evaluate(w0, "test", record=True).by_site(METRIC)) == ["A", "C"]
    federation.training_over = True
    with pytest.raises(FederationError, match=r"client B, evaluate: .*2 of 3 answered, 3 needed"):
        federation.evaluate(w0, "test")


def test_unless_it_is_asked_to_go_on_with_fewer(problem, w0):
    transport = FlakyFleet(problem, [Fault("B", "evaluate", "lost")])
    federation = Federation(transport, exchange=Exchange(retries=0, test_quorum=2))
    federation.training_over = True
    assert list(federation.evaluate(w0, "test").by_site(METRIC)) == ["A", "C"]
    assert events(federation) == [("B", "lost")]
    with pytest.raises(FederationError, match="2 of 3 answered, 3 needed"):
        federation.evaluate(w0, "validation")  # its own quorum
    assert Exchange(test_quorum=9).tested(3) == Exchange().tested(3) == 3


# --- answers that cannot be used ------------------------------------------------------------------


def trained(federation, w0):
    bank = federation.local_train(1, w0, T=2).w_k
    federation.share_models(1, bank)
    return bank


def calls_of(federation, w0, bank):
    return {
        "local_train": lambda: federation.local_train(2, w0, T=2).losses,
        "update_beta": lambda: federation.update_beta(1, 1, BETA, **HOW),
        "differentiate": lambda: federation.differentiate(
            1, 1, w0, bank.sites, w0.values.numel(), mode="eval", data="validation"
        ),
        "mixture_losses": lambda: federation.mixture_losses(
            1, BETA.softmax(0)[None].expand(2, -1), s=2, steps=2, data="validation", layers=None
        ),
        "model_losses": lambda: federation.model_losses(
            1, [w0, w0], bank.sites, s=2, steps=2, data="validation"
        ),
        "evaluate": lambda: federation.evaluate(w0, "validation").by_site(METRIC),
        "validate_local": lambda: federation.validate_local(1, bank, METRIC),
        "class_counts": lambda: federation.class_counts(1),
    }


LOSSES = ("mixture_losses", "model_losses")
# Masked sums need all of their sites: test_blind_faults.py.
ALONE = [c for c in CALLS if c not in ("share_models", "share_keys", "masked_gradient")]
BAD = [
    *(("local_train", what) for what in ("nan", "shape", "type", "names", "no facts", "loss")),
    *(("update_beta", what) for what in ("nan", "shape", "type", "names", "huge", "loss")),
    *(("differentiate", what) for what in ("nan", "shape", "type", "names", "loss")),
    *((call, what) for call in LOSSES for what in ("nan", "shape", "type", "names")),
    *(("evaluate", what) for what in ("no facts", "scores")),
    *(("validate_local", what) for what in ("no facts", "score")),
    *((call, "error") for call in ALONE),
]


@pytest.mark.parametrize(("call", "what"), BAD)
def test_a_bad_answer_ends_the_run_or_is_left_out_by_setting(problem, w0, call, what):
    faults = [Fault("B", call, what)]
    for bad_answers in ("fail", "drop"):
        transport = FlakyFleet(problem)
        exchange = Exchange(bad_answers=bad_answers)
        federation = Federation(transport, quorum=2, exchange=exchange)
        ask = calls_of(federation, w0, trained(federation, w0))[call]
        transport.faults = faults
        if bad_answers == "fail":
            with pytest.raises(FederationError, match=f"client B, {call}") as caught:
                ask()
            assert caught.value.client == "B"
        else:
            assert list(ask()) == ["A", "C"]
            (event,) = federation.take_events()
            assert (event["site"], event["what"]) == ("B", "dropped")
            assert event["reason"]


def test_a_dropped_site_is_not_asked_again(problem, w0):
    transport = FlakyFleet(problem, [Fault("B", "local_train", "nan")])
    exchange = Exchange(bad_answers="drop", retries=5)
    Federation(transport, quorum=2, exchange=exchange).local_train(1, w0, T=1)
    assert len(transport.sent("local_train", "B")) == 1


def test_below_the_quorum_a_dropped_site_is_named_with_the_reason(problem, w0):
    transport = FlakyFleet(problem, [Fault("B", "local_train", "error")])
    wrong = (
        r"client B, local_train, round 1: was dropped \(failed: the disk is .\[31mfull\); "
        "2 of 3 answered, 3 needed"
    )
    with pytest.raises(FederationError, match=wrong) as caught:
        Federation(transport, exchange=Exchange(bad_answers="drop")).local_train(1, w0, T=1)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("kind", [DataError, Diverged])
def test_an_error_that_arrives_whole_is_raised_as_it_was(problem, w0, kind):
    told = error_facts(kind("the scan is empty", where="site B, case 7", remedy="leave it"))
    transport = DirectFleet(problem, intercept=forge("B", "local_train", Message({}, told)))
    with pytest.raises(kind, match=r"^site B, case 7: the scan is empty; leave it$"):
        Federation(transport).local_train(1, w0, T=1)


@pytest.mark.parametrize(
    "facts",
    [
        {"error": "x", "kind": "SystemExit"},
        {"error": "x", "kind": ["DataError"]},
        {"error": {"deep": [1]}},
        {"error": None},
    ],
)
def test_an_error_in_odd_words_is_the_federation_s(problem, w0, facts):
    transport = DirectFleet(problem, intercept=forge("B", "local_train", Message({}, facts)))
    with pytest.raises(FederationError, match=r"^client B, local_train, round 1: failed: "):
        Federation(transport).local_train(1, w0, T=1)


def test_an_error_with_odd_parts_still_has_its_kind(problem, w0):
    facts = {"error": "empty", "kind": "DataError", "where": 7}
    transport = DirectFleet(problem, intercept=forge("B", "local_train", Message({}, facts)))
    with pytest.raises(DataError, match=r"^empty$"):
        Federation(transport).local_train(1, w0, T=1)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_beta_beyond_all_reason_is_refused(problem, w0, sign):
    federation = Federation(DirectFleet(problem))
    trained(federation, w0)
    for size, fine in ((0.99, True), (1.01, False)):
        theta = BETA + sign * size * THETA_BOUND
        answer = Message({"theta": theta}, {"loss": 0.1})
        federation.transport.intercept = forge("B", "update_beta", answer)
        if fine:
            assert torch.equal(federation.update_beta(1, 1, BETA, **HOW)["B"], theta)
        else:
            with pytest.raises(FederationError, match=r"its beta for step 1 holds 1.01e\+06, bey"):
                federation.update_beta(1, 1, BETA, **HOW)


def test_a_site_that_cannot_keep_models_is_told_so(problem, w0):
    federation = Federation(DirectFleet(problem))
    bank = trained(federation, w0)
    forgetful = Message({}, {"missing": ["A", "B", "C"]})
    federation.transport.intercept = forge("B", "share_models", forgetful)
    with pytest.raises(FederationError, match=r"client B, share_models, .*cannot keep the models"):
        federation.share_models(1, bank)
    assert len(federation.transport.sent("share_models", "B")) == 1 + 4


@pytest.mark.parametrize("missing", ["A", [1], ["A", "Z"], {"A": 1}, [["A"]]])
def test_nonsense_about_what_is_missing_is_refused(problem, w0, missing):
    federation = Federation(DirectFleet(problem))
    bank = federation.local_train(1, w0, T=1).w_k
    federation.transport.intercept = forge("B", "share_models", Message({}, {"missing": missing}))
    with pytest.raises(FederationError, match=r"client B, share_models, round 1: says it misses"):
        federation.share_models(1, bank)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**400), 10**400)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["A", METRIC, "case"]),
    lambda deeper: st.lists(deeper, max_size=3) | st.dictionaries(st.text(max_size=3), deeper),
    max_leaves=6,
)
FACTS = st.dictionaries(
    st.sampled_from(["loss", "score", "scores", "classes", "missing", "error", "whole", "kind"]),
    PLAIN,
)
ARRAYS = st.dictionaries(
    st.sampled_from(["values", "counters", "theta", "gradient", "steps", "x"]),
    st.sampled_from(
        [
            torch.zeros(51),
            torch.zeros(3, dtype=torch.float64),
            torch.tensor(float("nan")),
            torch.zeros(0),
            torch.zeros((2, 2), dtype=torch.int8),
            torch.zeros(51, dtype=torch.complex64),
        ]
    ),
    max_size=2,
)
NOTES = st.builds(Message, ARRAYS, FACTS)
NO_NOTES = st.sampled_from(
    [
        None,
        7,
        "x",
        NoReply("x"),
        Message({}, {"loss": {1, 2}}),
        Message({}, {3: 4}),
        Message({}, None),
        Message(None, {}),
        Message({1: torch.zeros(1)}),
        Message({"values": [1.0]}),
    ]
)


@pytest.mark.parametrize("call", ALONE)
@given(answer=NOTES | NO_NOTES)
def test_no_answer_whatever_breaks_more_than_its_own_part(call, answer):
    """Dropped or taken, or refused by name; never an error of another kind."""
    problem = toy_problem(3)
    w0, _ = problem.initial(Seeds(7))
    transport = DirectFleet(problem)
    federation = Federation(transport, quorum=2, exchange=Exchange(bad_answers="drop", retries=0))
    bank = trained(federation, w0)
    transport.intercept = lambda verb, site, note: (
        (NoReply("x") if answer is None else answer) if (verb, site) == (call, "B") else None
    )
    answered = list(calls_of(federation, w0, bank)[call]())
    assert answered in (["A", "C"], ["A", "B", "C"])
    assert all(event["site"] == "B" for event in federation.take_events())


@given(answer=NOTES | NO_NOTES)
def test_no_answer_to_shared_models_breaks_more_than_its_own_part(answer):
    problem = toy_problem(3)
    w0, _ = problem.initial(Seeds(7))
    transport = DirectFleet(problem)
    federation = Federation(transport, quorum=2, exchange=Exchange(bad_answers="drop", retries=0))
    bank = federation.local_train(1, w0, T=1).w_k
    transport.intercept = lambda verb, site, note: (
        (NoReply("x") if answer is None else answer)
        if (verb, site) == ("share_models", "B")
        else None
    )
    federation.share_models(1, bank)
    transport.intercept = lambda verb, site, note: None
    assert list(federation.update_beta(1, 1, BETA, **HOW)) == ["A", "B", "C"]


def test_every_way_to_spoil_an_answer_is_used():
    assert {what for _, what in BAD} == set(SPOILT)


@pytest.mark.parametrize(
    ("scores", "says"),
    [
        ([], "sent no scores"),
        ("all fine", "sent no scores"),
        ([["7", METRIC]], "sent .* for a score"),
        ([7], "sent 7 for a score"),
        ([[7, METRIC, 0.5]], "sent .* for a score"),
        ([["7", None, 0.5]], "sent .* for a score"),
        ([["7", METRIC, "high"]], "score of case 7 is high"),
        ([["7", METRIC, True]], "score of case 7 is True"),
        ([["7", METRIC, 10**400]], "score of case 7 is 1000"),
        ([["7", METRIC, 0.5], ["7", METRIC, 0.6]], "scored case 7 twice"),
    ],
)
def test_scores_that_are_none_are_refused(problem, w0, scores, says):
    answer = Message({}, {"scores": scores})
    transport = DirectFleet(problem, intercept=forge("B", "evaluate", answer))
    with pytest.raises(FederationError, match=f"^client B, evaluate: {says}"):
        Federation(transport).evaluate(w0, "validation")


def six(metric: str = METRIC, first: int = 0) -> list[list]:
    """Scores of as many cases as a toy site has for validation."""
    return [[f"validation-{i}", metric, 0.5] for i in range(first, first + 6)]


@pytest.mark.parametrize(
    ("scores", "says"),
    [
        (six("other"), f"case validation-0 has no {METRIC}"),
        ([*six()[:5], ["validation-5", "other", 0.5]], f"case validation-5 has no {METRIC}"),
        ([*six(), ["validation-6", "other", 0.5]], f"case validation-6 has no {METRIC}"),
        (six()[:5], "scored 5 cases of validation, and it has 6"),
        (six() + six(first=6), "scored 12 cases of validation, and it has 6"),
    ],
)
def test_scores_of_other_cases_or_without_the_metric_are_refused(problem, w0, scores, says):
    answer = Message({}, {"scores": scores})
    transport = DirectFleet(problem, intercept=forge("B", "evaluate", answer))
    with pytest.raises(FederationError, match=f"^client B, evaluate: {says}"):
        Federation(transport).evaluate(w0, "validation", METRIC)
    left = Federation(transport, quorum=2, exchange=Exchange(bad_answers="drop"))
    assert list(left.evaluate(w0, "validation", METRIC).by_site(METRIC)) == ["A", "C"]


def test_more_metrics_of_a_case_are_welcome(problem, w0):
    answer = Message({}, {"scores": six("dice:liver") + six() + six("label_voxels")})
    transport = DirectFleet(problem, intercept=forge("B", "evaluate", answer))
    scores = Federation(transport).evaluate(w0, "validation", METRIC)
    assert len(scores.rows) == 6 + 18 + 6
    assert Federation(transport).evaluate(w0, "validation") == scores


def test_cases_are_counted_only_where_their_number_is_known(problem, w0):
    answer = Message({}, {"scores": six()[:5]})
    transport = DirectFleet(problem, intercept=forge("B", "evaluate", answer))
    assert len(Federation(transport, counted=False).evaluate(w0, "validation", METRIC).rows) == 17

    class Uncounted(DirectFleet):
        def roster(self):
            return [Site(name, {"train": 8}) for name in "ABC"]

    transport = Uncounted(problem, intercept=transport.intercept)
    assert len(Federation(transport).evaluate(w0, "validation", METRIC).rows) == 17


@pytest.mark.parametrize(
    ("scores", "says"),
    [
        ([["7", METRIC, 1.0001e6]], r"score of case 7 is 1000100.0, beyond 1e\+06"),
        ([["7", METRIC, -1.7e308]], r"score of case 7 is -1.7e\+308, beyond 1e\+06"),
        (
            [["7", "label_voxels", 1.1e12]],
            r"label_voxels of case 7 is 1100000000000.0, beyond 1e\+12",
        ),
        ([["x" * 201, METRIC, 0.5]], "a name has 201 characters, more than 200: x{201}$"),
        ([["7", "y" * 200_000, 0.5]], "a name has 200000 characters, more than 200: y{290}"),
        ([["7", f"m{i}", 0.5] for i in range(1001)], "has more than 1000 scores for a case"),
    ],
    ids=["score", "overflow", "count", "case", "metric", "metrics"],
)
def test_what_no_site_has_to_say_is_refused(problem, w0, scores, says):
    answer = Message({}, {"scores": scores})
    transport = DirectFleet(problem, intercept=forge("B", "evaluate", answer))
    with pytest.raises(FederationError, match=f"^client B, evaluate: {says}") as refused:
        Federation(transport).evaluate(w0, "validation", METRIC)
    assert len(str(refused.value)) < 500
    left = Federation(transport, quorum=2, exchange=Exchange(bad_answers="drop"))
    assert list(left.evaluate(w0, "validation", METRIC).by_site(METRIC)) == ["A", "C"]


def test_what_a_site_may_say_at_most(problem, w0):
    """Voxels are counted beside the score, and a large organ has many."""
    cases = [f"{i}{'x' * 199}" for i in range(6)]
    said = [[case, METRIC, 1e6] for case in cases] + [[case, "voxels", 1e9] for case in cases]
    said += [[case, f"m{i}", 0.5] for case in cases for i in range(998)]
    transport = DirectFleet(
        problem, intercept=forge("B", "evaluate", Message({}, {"scores": said}))
    )
    rows = Federation(transport).evaluate(w0, "validation", METRIC).rows
    assert len(rows) == 6 + 6000 + 6


@pytest.mark.parametrize("loss", [1.1e6, -1.7e308])
def test_a_loss_beyond_all_reason_is_refused(problem, w0, loss):
    federation = Federation(DirectFleet(problem))
    bank = trained(federation, w0)
    whole = Message({"theta": BETA}, {"loss": loss})
    federation.transport.intercept = forge("B", "update_beta", whole)
    with pytest.raises(FederationError, match=r"client B, .* its loss is .*, beyond 1e\+06"):
        federation.update_beta(1, 1, BETA, **HOW)
    federation.transport.intercept = forge("B", "validate_local", Message({}, {"score": loss}))
    with pytest.raises(FederationError, match=r"client B, .* its score is .*, beyond 1e\+06"):
        federation.validate_local(1, bank, METRIC)


def test_the_words_of_a_site_are_short_wherever_they_are_told(problem, w0):
    """A reason goes to rounds.jsonl and to the log."""
    names = {f"{i}{'z' * 500}": torch.zeros(1) for i in range(100)}
    answers = {
        "local_train": Message(names, {"loss": 0.5}),
        "evaluate": Message(names, {}),
        "update_beta": Message(names, {"loss": 0.5}),
    }
    for call, answer in answers.items():
        federation = Federation(
            DirectFleet(problem), quorum=2, exchange=Exchange(bad_answers="drop", retries=0)
        )
        bank = trained(federation, w0)
        for forged in (answer, NoReply("q" * 10**6)):
            federation.transport.intercept = forge("B", call, forged)
            calls_of(federation, w0, bank)[call]()
        happened = [e for e in federation.take_events() if e["what"] != "returned"]
        assert [event["what"] for event in happened] == ["dropped", "lost"]
        assert all(len(event["reason"]) < 700 for event in happened), happened


@pytest.mark.parametrize(
    "counts",
    [[1, -1], [True], "3", {"0": 3}, [1.5], [10**400], [1] * 10_001],
    ids=lambda c: str(c)[:9],
)
def test_class_counts_that_are_none_are_refused(problem, counts):
    answer = Message({}, {"classes": counts})
    transport = DirectFleet(problem, intercept=forge("B", "class_counts", answer))
    with pytest.raises(FederationError, match="client B, class_counts, round 1: its class counts"):
        Federation(transport).class_counts(1)


@pytest.mark.parametrize("call", ["local_train", "evaluate", "validate_local", "differentiate"])
def test_a_site_that_always_lacks_something_is_given_up(problem, w0, call):
    transport = DirectFleet(problem)
    federation = Federation(transport)
    bank = trained(federation, w0)
    transport.intercept = forge("B", call, Message({}, {"missing": True}))
    with pytest.raises(FederationError, match=f"client B, {call}"):
        calls_of(federation, w0, bank)[call]()
    assert len(transport.sent(call, "B")) - (call == "local_train") == 4
