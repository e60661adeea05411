"""A site answers what its job's method asks for, in full, and nothing else."""

import json
from collections import defaultdict
from itertools import product
from typing import Literal

import pytest

from autofedavg.core.seeds import Seeds
from autofedavg.engines.remote.job import Job
from autofedavg.engines.remote.policy import Policy, Refused, method_values
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.experiment.rows import Rounds, RunConfig
from autofedavg.experiment.run import RunLoop
from autofedavg.federation.messages import Message
from autofedavg.federation.port import Federation
from autofedavg.federation.proxy import Proxy
from autofedavg.federation.settings import Exchange, Reach
from autofedavg.methods import METHODS
from autofedavg.methods.auto_fedavg import AutoFedAvg
from autofedavg.tasks.base import Task
from method_changes import CHANGES, FEWER_STEPS
from toy import CPU, METRIC, TRAINING, DirectFleet, mlp, toy_problem

T = 4
SITES = ("A", "B", "C")
LAYOUT = toy_problem(3, mlp).initial(Seeds(7))[1]
MIXED = ("differentiate", "model_losses")  # they carry mixtures of the models
LEARNING = ("share_models", "update_beta", "differentiate", "mixture_losses", "model_losses")
SPLITS = ("train", "validation", "test", "holdout")


class Toys(Task):
    name: Literal["toys"] = "toys"
    metric = METRIC


def job_of(method, **general) -> Job:
    exchange = general.pop("exchange", Exchange())
    rounds = Rounds(rounds=T, **general)
    row = RunConfig("row", "row", rounds, Toys(), TRAINING, method, exchange)
    return Job("study", row, 0, SITES, "")


def policy_of(job: Job) -> Policy:
    return Policy(job, LAYOUT)


def method_of(name: str, **change):
    return METHODS[name](**{**FEWER_STEPS.get(name, {}), **change})


class PolicyTransport(DirectFleet):
    """Clients behind their job's policy.

    `said` holds what was asked of A, and `reach` who has received some client's own model.
    """

    reach: Reach = "nobody"

    def begin(self, job: Job) -> None:
        self.policies = {site: policy_of(job) for site in SITES}
        self.said: list[tuple[str, dict]] = []
        self.trained: dict[str, set[bytes]] = defaultdict(set)

    def ask(self, verb, messages, within):
        answers = {}
        for site, message in messages.items():
            facts = json.loads(json.dumps(message.facts))
            self.policies[site].check(verb, facts)
            answers[site] = self.clients[site].answer(verb, Message(message.arrays, facts))
            self.policies[site].answered(verb, facts)
            if site == "A":
                self.said.append((verb, facts))
            self.watch(verb, site, message, answers[site])
        return answers

    def watch(self, verb, site, message, answer) -> None:
        """Notes a model of its own that leaves a client, and one that reaches another client."""
        if verb == "local_train" and "values" in answer.arrays:
            self.trained[site].add(answer.arrays["values"].numpy().tobytes())
            self.reach = "server" if self.reach == "nobody" else self.reach
        others = set().union(*(own for name, own in self.trained.items() if name != site))
        seen = {array.numpy().tobytes() for array in message.arrays.values()}
        if seen & others or verb in MIXED:
            self.reach = "sites"


def whole_run(job: Job, folder) -> PolicyTransport:
    """What carried a whole run of this job."""
    transport = PolicyTransport(toy_problem(3, mlp))
    transport.begin(job)
    proxy = Proxy.of(transport.problem, TRAINING, transport.seeds, CPU)
    how = {"remote": True, "metric": METRIC, "proxy": proxy}
    federation = Federation(transport, exchange=job.row.exchange, **how)
    w0, layout = transport.problem.initial(Seeds(7))
    home = RunFolder.create(folder / "run", "", {})
    RunLoop(job.row.method, job.row.general, federation, layout, METRIC, home).run(w0)
    assert home.status() == "finished"
    return transport


def key(verb: str, facts: dict) -> str:
    """A request without what the port says of models."""
    said = {"t": facts["t"], **method_values(verb, facts)}
    return json.dumps([verb, said], sort_keys=True)


def candidates(asked: list[tuple[str, dict]]) -> list[tuple[str, dict]]:
    """What a curious server might try: every request in every round, with every split."""
    step = AutoFedAvg(S=3).plan(LAYOUT, T).message(1)
    known = {verb: {k: v for k, v in facts.items() if k != "t"} for verb, facts in asked}
    found = list(asked)
    for t in (-1, 0, *range(1, T + 2), 10**6):
        found += [(verb, {**facts, "t": t}) for verb, facts in known.items()]
        found += [("evaluate", {"t": t, "split": split}) for split in SPLITS]
        found += [("local_train", {"t": t, "T": T, "passes": 1000}), ("class_counts", {"t": t})]
        found += [("local_train", {"t": t, "T": 10**6}), ("share_models", {"t": t})]
        found += [("validate_local", {"t": t, "metric": name}) for name in (METRIC, "other")]
        for s, data, mode in product((0, 1, 3, 4, 21), SPLITS, ("eval", "train")):
            values = {"t": t, "s": s, "data": data, "mode": mode}
            found += [("differentiate", values), ("update_beta", {**step, **values})]
            found += [("differentiate", {**values, "form": {}})]
            batches = {"t": t, "s": s, "steps": 8, "data": data}
            found += [("model_losses", batches), ("mixture_losses", {**batches, "layers": None})]
    return found


def is_answered(policy: Policy, verb: str, facts: dict) -> bool:
    try:
        policy.check(verb, facts)
    except Refused:
        return False
    return True


OWN = {"test_local": "own"}  # after training nobody else tests a client's model
REACHES = [(name, {}, how) for name in METHODS for how in (OWN, {}, {"test": False})]
REACHES += [("auto-fedavg", {"learning": how, "S": 1}, {}) for how in ("server", "blind")]
REACHES += [("fedlaw", {"S": 0}, OWN), ("fedlaw", {"learning": "server", "S": 2}, OWN)]


@pytest.mark.parametrize(("name", "change", "general"), REACHES, ids=str)
def test_a_row_says_who_receives_a_sites_own_model(name, change, general, tmp_path):
    job = job_of(method_of(name, **change), **general)
    assert job.row.models_reach(len(SITES)) == whole_run(job, tmp_path).reach


def test_a_ceiling_shows_models_to_all_sites():
    row = job_of(method_of("fedavg"), **OWN, ceiling=(2,)).row
    assert row.models_reach(3) == "sites"  # test_ceiling has what it sends


RUNS = [(name, change, {}) for name, changes in CHANGES.items() for change in [{}, *changes]]
RUNS += [(name, {}, how) for name in METHODS for how in ({"test_every": 2}, {"select": "last"})]


@pytest.mark.parametrize(("name", "change", "general"), RUNS, ids=str)
def test_every_method_s_run_is_answered_and_nothing_else(name, change, general, tmp_path):
    change = {"S": 3, **change} if name == "auto-fedavg" else change
    job = job_of(method_of(name, **change), **general)
    asked = whole_run(job, tmp_path).said
    allowed = {key(verb, facts) for verb, facts in asked}
    for verb, facts in asked:  # a site without a personal model scores the global one alone
        allowed.add(key(verb, {k: v for k, v in facts.items() if k not in ("personal", "kept")}))
    if change.get("t0") == "auto":  # a site cannot know which rounds learn
        learning = [(verb, facts) for verb, facts in asked if verb in LEARNING]
        allowed |= {key(v, {**facts, "t": t}) for v, facts in learning for t in range(1, T + 1)}
        blind = [facts for verb, facts in asked if verb == "masked_gradient"]  # none after the last
        allowed |= {key("masked_gradient", {**f, "t": t}) for f in blind for t in range(1, T)}
    if any(verb == "share_keys" for verb, _ in asked):  # for a site that joins in any round
        allowed |= {key("share_keys", {"t": t}) for t in range(1, T + 1)}
    verbs, refused = {verb for verb, _ in asked}, 0
    first = policy_of(job).history()
    policies = defaultdict(lambda: policy_of(job))  # by round: what it may ask for is known then
    for verb, facts in candidates(asked):
        policy = policies[facts["t"]]
        policy.restore(first)  # as if this were the first request of all
        wanted = verb in verbs and key(verb, facts) in allowed
        assert is_answered(policy, verb, facts) == wanted, (verb, facts)
        refused += not wanted
    assert refused > 500


def test_a_run_through_lossy_encodings_is_answered(tmp_path):
    exchange = Exchange(down="difference", up="difference")
    for number, name in enumerate(METHODS):
        whole_run(job_of(method_of(name), exchange=exchange), tmp_path / str(number))


@pytest.mark.parametrize("name", METHODS)
def test_a_job_for_means_is_answered_and_none_for_the_scores_of_cases(name, tmp_path):
    job = job_of(method_of(name), exchange=Exchange(disclose="means"), test_every=2)
    asked = [facts for verb, facts in whole_run(job, tmp_path).said if verb == "evaluate"]
    assert {facts["means"] for facts in asked} == {METRIC}
    for facts in asked:
        more = {k: v for k, v in facts.items() if k != "means"}
        with pytest.raises(Refused, match="is not asked for by this job without means"):
            policy_of(job).check("evaluate", more)
        with pytest.raises(Refused, match=r"with \{'means': 'label_voxels'\}"):
            policy_of(job).check("evaluate", {**facts, "means": "label_voxels"})


TRAIN = {"T": T}
TEST = {"t": T, "split": "test"}


def test_the_final_test_ends_training():
    policy = policy_of(job_of(METHODS["fedavg"]()))
    policy.check("evaluate", TEST)  # a site that has come back knows no better
    for t in range(1, T):
        with pytest.raises(Refused, match="after the final test of this job, which ends training"):
            policy.check("local_train", {"t": t, **TRAIN})
        with pytest.raises(Refused, match="after the final test"):
            policy.check("evaluate", {"t": t, "split": "validation"})
    policy.check("local_train", {"t": T, **TRAIN})  # a damaged checkpoint: the last round again
    policy.check("evaluate", TEST)


def test_a_site_that_has_trained_knows_that_training_is_not_over():
    policy = policy_of(job_of(METHODS["fedavg"]()))
    for t in range(1, T + 1):
        policy.check("local_train", {"t": t, **TRAIN})
        policy.answered("local_train", {"t": t})
        if t < T:
            with pytest.raises(Refused, match="round 4 has not been trained here yet"):
                policy.check("evaluate", TEST)
    policy.check("evaluate", TEST)


@pytest.mark.parametrize(
    "general", [{"quorum": 2}, {"exchange": Exchange(quorums={"local_train": 2})}]
)
def test_a_site_that_missed_the_last_round_is_tested_where_a_quorum_goes_on(general):
    policy = policy_of(job_of(METHODS["fedavg"](), **general))
    policy.answered("local_train", {"t": 1})
    policy.check("evaluate", TEST)


@pytest.mark.parametrize(
    ("verb", "calls", "how"),
    [
        ("differentiate", 1, {"learning": "server"}),
        ("update_beta", 2, {}),
        ("share_models", 3, {}),
        ("mixture_losses", 2, {"t0": "auto"}),
        ("share_models", 4, {"t0": "auto"}),
        ("model_losses", 2, {"t0": "auto", "learning": "server"}),
        ("model_losses", 3, {"t0": "auto", "learning": "server", "when_idle": "sizes"}),
        ("masked_gradient", 1, {"t0": "auto", "learning": "blind", "S": 1}),
    ],
    ids=str,
)
def test_a_step_is_answered_as_often_as_an_honest_server_may_ask(verb, calls, how):
    job = job_of(AutoFedAvg(**{"S": 2, **how}), exchange=Exchange(retries=2))
    policy = policy_of(job)
    facts = {"t": 1, **policy.requests(1)[verb][0]}
    most = calls * 2 * (1 + 2 + 3)  # the first time, retries, and after "I lack it"; all twice
    for _ in range(most):
        policy.check(verb, facts)
    with pytest.raises(Refused, match=f"{verb} of round 1 was asked for {most} times already"):
        policy.check(verb, facts)
    policy.check(verb, {**facts, "t": 2})
    policy.begin()  # a new server goes on with the run
    policy.check(verb, facts)


HALF = {"t": T, "split": "test", "half": 1}
SLOPE = {"t": T, "s": 100, "data": "test", "mode": "eval", "half": 0}


def test_halves_of_the_test_cases_are_open_to_a_job_with_a_ceiling_after_its_final_test():
    plain = policy_of(job_of(METHODS["fedavg"]()))
    plain.check("evaluate", TEST)
    policy = policy_of(job_of(METHODS["fedavg"](), ceiling=(1, 3)))
    for verb, facts in (("evaluate", HALF), ("differentiate", SLOPE)):
        with pytest.raises(Refused, match="is not asked for by this job"):
            plain.check(verb, facts)
        with pytest.raises(Refused, match="on half of the test cases comes before the final test"):
            policy.check(verb, facts)
    policy.check("evaluate", TEST)
    policy.check("evaluate", HALF)
    policy.check("differentiate", SLOPE)
    for change in ({"half": 2}, {"s": 101}, {"s": 0}, {"data": "train"}, {"mode": "train"}):
        with pytest.raises(Refused, match="is not asked for by this job with"):
            policy.check("differentiate", {**SLOPE, **change})
    with pytest.raises(Refused, match="round 1 is not asked for"):
        policy.check("differentiate", {**SLOPE, "t": 1})


def test_halves_are_answered_as_often_as_a_ceiling_asks():
    policy = policy_of(job_of(METHODS["fedavg"](), ceiling=(1, 3), exchange=Exchange(retries=0)))
    policy.check("evaluate", TEST)
    twice = 2 * (1 + 3)  # a message, and after "I lack it"; all twice
    for verb, facts, calls in (
        ("differentiate", SLOPE, 2 * 3),
        ("evaluate", HALF, 2 * (3 + 4 + 6)),
    ):
        for _ in range(calls * twice):
            policy.check(verb, facts)
        with pytest.raises(Refused, match=f"{verb} of round 4 was asked for"):
            policy.check(verb, facts)


@pytest.mark.parametrize("t", [True, "1", 1.0, None, [1], 10**30], ids=str)
def test_a_round_is_a_whole_number(t):
    with pytest.raises(Refused, match="belongs to a round, 1 to 4"):
        policy_of(job_of(METHODS["fedavg"]())).check("local_train", {"t": t, **TRAIN})
