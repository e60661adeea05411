"""What stays at a site: kept by digest, never sent, lost, started again, and resumed."""

from copy import deepcopy

import pytest
import torch

from autofedavg.algorithm import Round
from autofedavg.core.errors import FederationError, TrainingError
from autofedavg.core.local_rules import Personal
from autofedavg.core.seeds import Seeds
from autofedavg.engines.simulator.simulator import Simulator
from autofedavg.federation.local_training import LocalRequest
from autofedavg.federation.messages import Message, model_of
from autofedavg.federation.personal import KeptStates, PersonalModels, digest_of
from autofedavg.federation.port import Federation
from autofedavg.federation.settings import Exchange
from autofedavg.methods.apfl import APFL
from autofedavg.methods.ditto import Ditto
from autofedavg.methods.fedbn import FedBN
from autofedavg.methods.l2gd import L2GD
from autofedavg.methods.pfedme import PFedMe
from toy import METRIC, TRAINING, DirectFleet, forge, norm_net, toy_problem

DITTO = LocalRequest(Personal(mu=1.0))
T = 5


class Bench:
    """Three sites that are trained and scored by hand."""

    def __init__(self, network=norm_net, **how) -> None:
        problem = toy_problem(3, network)
        self.transport = DirectFleet(problem, TRAINING, Seeds(7))
        self.federation = Federation(self.transport, metric=METRIC, **how)
        self.w = problem.initial(Seeds(7))[0]

    def train(self, t: int, request: LocalRequest = DITTO):
        return self.federation.local_train(t, self.w, T=T, request=request)

    def score(self, split: str = "validation", rule=DITTO.rule):
        return self.federation.evaluate(self.w, split, METRIC, personal=rule)

    def states(self, site: str) -> dict:
        return self.transport.clients[site].client_state.kept.states

    def forget(self, site: str) -> None:
        self.states(site).clear()


def test_digests_tell_names_types_shapes_and_numbers_apart() -> None:
    base = {"a": torch.tensor([1.0, 2.0])}
    others = [
        {"b": base["a"]},
        {"a": base["a"].double()},
        {"a": base["a"].reshape(1, 2)},
        {"a": torch.tensor([1.0, 2.5])},
        {"a": base["a"], "b": torch.empty(0)},
        {},
    ]
    digests = [digest_of(kept) for kept in (base, *others)]
    assert len(set(digests)) == len(digests)
    assert digest_of({"b": base["a"], "a": base["a"]}) == digest_of(
        {"a": base["a"].clone(), "b": base["a"].clone()}
    )
    assert digest_of({"a": torch.arange(8.0)[::2]}) == digest_of(
        {"a": torch.tensor([0.0, 2, 4, 6])}
    )


def test_what_is_kept_is_a_copy_and_what_is_not_held_is_dropped() -> None:
    kept, array = KeptStates(), torch.ones(3)
    digests = [kept.keep({"values": array * n}) for n in (1, 2, 3)]
    first = kept.keep({"values": array})
    array.zero_()
    assert first == digests[0]
    assert kept.states[first]["values"].tolist() == [1, 1, 1]
    kept.hold([first, digests[2], "unknown"])
    assert set(kept.states) == {first, digests[2]}


def test_a_message_of_states_is_read_again() -> None:
    one, other = KeptStates(), KeptStates()
    digest = one.keep({"values": torch.ones(2), "counters": torch.empty(0, dtype=torch.int64)})
    other.read(one.message([digest, "unknown"]))
    assert other.states.keys() == {digest}
    assert digest_of(other.states[digest]) == digest


def test_a_site_holds_its_last_two_states_and_the_predictors_that_the_server_names() -> None:
    bench = Bench()
    personal = bench.federation.personal
    seen = []
    for t in (1, 2, 3, 4):
        bench.train(t)
        bench.score()
        if t == 1:
            personal.held["A"] = personal.predictors["A"]  # as a run does with the best one
        seen.append((personal.states["A"], personal.predictors["A"]))
    states = {state for state, _ in seen[-2:]}
    assert set(bench.states("A")) == states | {seen[0][1], seen[-1][1], seen[-2][1]}
    assert seen[0][1] not in bench.states("B")


def test_nothing_that_is_kept_travels() -> None:
    bench = Bench()
    bench.train(1)
    trained = bench.train(2)
    for _, _, message in bench.transport.asked:
        assert set(message.arrays) == {"values", "counters"}
        assert torch.equal(message.arrays["values"], bench.w.values)
    assert trained.back == {}
    sent = bench.transport.sent("local_train", "A")
    assert sent[0].facts["kept"] == ""
    assert sent[1].facts["kept"] in bench.states("A")


def test_a_site_that_lost_its_state_says_so_and_starts_again_from_w() -> None:
    bench, fresh = Bench(), Bench()
    bench.train(1)
    bench.score()
    bench.federation.personal.held |= bench.federation.personal.predictors
    bench.federation.take_events()
    bench.forget("B")
    bench.train(2)
    events = bench.federation.take_events()
    assert [(e["site"], e["what"]) for e in events] == [("B", "restarted"), ("B", "resent")]
    assert "lost its personal model" in events[0]["reason"]
    fresh.train(2)  # whose sites have nothing yet
    ours, theirs = bench.federation.personal, fresh.federation.personal
    assert ours.states["B"] == theirs.states["B"]
    assert ours.states["A"] != theirs.states["A"]
    assert set(ours.held) == set(ours.predictors) == set(ours.scores) == {"A", "C"}


def test_a_site_that_lost_its_state_before_a_score_scores_the_global_model_alone() -> None:
    bench = Bench()
    bench.train(1)
    bench.forget("B")
    scores = bench.score()
    assert {row.site for row in scores.rows} == set("ABC")
    assert set(bench.federation.personal_rows) == {"A", "C"}


def test_the_final_test_has_no_holes() -> None:
    bench = Bench()
    bench.train(1)
    bench.score()
    bench.federation.training_over = True
    bench.forget("B")
    with pytest.raises(FederationError, match="has lost the personal model that it is to score"):
        bench.score("test")
    with pytest.raises(FederationError, match="has lost the personal model that it is to score"):
        bench.federation.evaluate(dict(bench.federation.personal.predictors), "test", METRIC)


def test_scores_of_personal_models_are_those_of_this_call_alone() -> None:
    """A site that does not score its model has no row, and not the one of an earlier split."""
    bench = Bench(exchange=Exchange(bad_answers="drop", test_quorum=1), quorum=1)
    bench.train(1)
    bench.score()
    assert set(bench.federation.personal_rows) == set("ABC")
    bench.federation.training_over = True
    bench.forget("B")
    bench.score("test")
    assert set(bench.federation.personal_rows) == {"A", "C"}
    rows = [row for each in bench.federation.personal_rows.values() for row in each]
    assert all(row.case.startswith("test") for row in rows)


def test_personal_models_are_scored_where_the_global_ones_scores_are_known() -> None:
    bench = Bench()
    trained = bench.train(1)
    bench.federation.validated(1, bench.w, trained.w_k)
    bench.score()
    assert set(bench.federation.personal.scores) == set("ABC")


def test_a_predictor_is_scored_as_the_model_that_it_is() -> None:
    bench = Bench()
    bench.train(1)
    bench.score()
    personal = bench.federation.personal
    for site, kept in bench.federation.kept(personal.predictors).items():
        model = model_of(kept)
        scores = bench.federation.evaluate({site: model}, "validation", METRIC)
        assert scores.by_site(METRIC)[site] == personal.scores[site]
        again = bench.federation.evaluate({site: personal.predictors[site]}, "validation", METRIC)
        assert again == scores


@pytest.mark.parametrize("digest", [None, 3, "", "a" * 31, "G" * 32, "a" * 33])
def test_a_digest_that_is_none_is_refused(digest) -> None:
    bench = Bench()
    good = bench.transport.clients["B"].answer(
        "local_train", _request(bench, {"rule": DITTO.rule.note(), "kept": "", "hold": []})
    )
    bad = Message(good.arrays, {**good.facts, "kept": digest})
    bench.transport.intercept = forge("B", "local_train", bad)
    with pytest.raises(FederationError, match="its digest of what it keeps is"):
        bench.train(1)


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ("a", "for its personal model"),
        ({}, "sent no scores"),
        ({"digest": "a" * 32, "scores": []}, "sent no scores"),
        ({"digest": "a" * 32, "scores": [["x", METRIC, 1.0]]}, "scored 1 cases of validation"),
        ({"digest": 1}, "digest of what it keeps"),
    ],
)
def test_bad_scores_of_a_personal_model_are_refused(own, reason) -> None:
    bench = Bench()
    bench.train(1)
    scores = [[f"validation-{i}", METRIC, 0.5] for i in range(6)]
    if isinstance(own, dict) and own.get("digest") == 1:
        own = {**own, "scores": scores}
    bench.transport.intercept = forge(
        "B", "evaluate", Message({}, {"scores": scores, "personal": own})
    )
    with pytest.raises(FederationError, match=reason):
        bench.score()


def _request(bench: Bench, facts: dict) -> Message:
    arrays = {"values": bench.w.values, "counters": bench.w.counters}
    return Message(arrays, {"t": 1, "T": T, **facts})


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"name": "telepathy"}, "not a known local rule"),
        ({"name": "personal"}, "local rule 'personal': mu: Field required"),
        ({"name": "personal", "mu": -1.0}, "mu: Input should be greater than or equal to 0"),
        ({"name": "personal", "mu": float("nan")}, "mu: Input should be"),
        ({"name": "personal", "mu": "1"}, "mu: Input should be a valid number"),
        ({"name": "personal", "mu": 1.0, "nu": 1.0}, "nu: Extra inputs"),
        ({"name": "apfl", "mix": 1.5, "adaptive": True}, "mix: Input should be less than"),
        (
            {"name": "pfedme", "pull": 1.0, "inner_rate": 0.1, "inner_steps": 0, "rate": 0.1},
            "inner_steps: Input should be greater",
        ),
        ({"mu": 1.0}, "None is not a local rule"),
        (3, "3 is not a local rule"),
    ],
)
def test_a_site_refuses_an_unknown_rule_and_a_wrong_number(rule, reason) -> None:
    bench = Bench()
    with pytest.raises(TrainingError, match=reason):
        bench.transport.clients["A"].answer("local_train", _request(bench, {"rule": rule}))


METHODS = [Ditto(), APFL(), PFedMe(), L2GD(), FedBN()]


def outcome(method, workers: int, start: tuple | None = None, rounds: int = 3) -> list[tuple]:
    """After every round: global model, digests and scores of what the sites keep; and a copy."""
    problem = toy_problem(3, norm_net)
    found = []
    with Simulator(problem, TRAINING, Seeds(7), workers=workers) as simulator:
        federation = Federation(simulator, seeds=Seeds(7), metric=METRIC)
        w0, layout = problem.initial(Seeds(7))
        state = Round(0, w0)
        if start is not None:
            state = start[0]
            federation.resume_personal(deepcopy(start[1]), start[2])
        for done in method.rounds(federation, layout, rounds, state):
            federation.evaluate(done.w, "validation", METRIC, personal=done.personal)
            copies = {
                k: {n: a.clone() for n, a in c.items()} for k, c in federation.copies().items()
            }
            memory = {name: array.clone() for name, array in done.memory.items()}
            known = deepcopy(federation.personal)
            found.append((Round(done.t, done.w.clone(), memory=memory), known, copies))
    return found


def bits(found: list[tuple]) -> list:
    return [(state.w.digest(), known, sorted(copies)) for state, known, copies in found]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_two_workers_give_the_bits_of_one_and_a_copy_is_enough_to_resume(method) -> None:
    one, two = outcome(method, 1), outcome(method, 2)
    assert bits(one) == bits(two)
    for stop, workers in ((1, 2), (2, 1)):
        rest = outcome(method, workers, one[stop - 1])
        assert bits(rest) == bits(one[stop:])
    copies = one[0][2]["A"]
    digests = {key.partition("/")[0] for key in copies}
    assert digests == set(one[0][1].needed("A"))
    for digest in digests:
        kept = {k.partition("/")[2]: a for k, a in copies.items() if k.startswith(digest)}
        assert digest_of(kept) == digest


def test_sites_elsewhere_export_nothing() -> None:
    bench = Bench(remote=True)
    bench.train(1)
    assert bench.federation.copies() == {}
    assert bench.federation.kept(bench.federation.personal.states) == {}
    bench.federation.resume_personal(PersonalModels(), {"A": {"x/values": bench.w.values}})
    assert not bench.transport.sent("export_state")
    assert not bench.transport.sent("import_state")
