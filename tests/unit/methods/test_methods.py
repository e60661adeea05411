"""The methods as settings: what each does, refuses, and what each setting changes."""

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from autofedavg import methods as door
from autofedavg.algorithm import Round
from autofedavg.core.bank import Bank
from autofedavg.core.beta_optimiser import BetaOptimiser
from autofedavg.core.constraints import Dirichlet, Softmax
from autofedavg.core.errors import ConfigError
from autofedavg.core.plan import Plan
from autofedavg.core.settings import setting
from autofedavg.core.site import Site
from autofedavg.federation.port import Federation
from autofedavg.methods import METHODS
from autofedavg.methods.auto_fedavg import AutoFedAvg
from autofedavg.methods.base import Method, even_weights, size_weights
from autofedavg.methods.fedavg import FedAvg
from autofedavg.methods.fedprox import FedProx
from autofedavg.methods.local_only import LocalOnly
from toy import DirectFleet, float64, norm_net, rounds_of, same_round, toy_problem


def test_methods_are_registered_under_their_own_names():
    assert list(METHODS) == sorted(METHODS)
    assert all(METHODS[name]().name == name for name in METHODS)


@pytest.mark.parametrize("name", list(METHODS))
def test_an_unknown_setting_is_refused(name):
    with pytest.raises(ValidationError, match="t_0"):
        METHODS[name](t_0=3)


def test_weights_by_size_and_even(federation):
    assert size_weights(federation).tolist() == [8 / 36, 12 / 36, 16 / 36]
    assert even_weights(federation).tolist() == [1 / 3, 1 / 3, 1 / 3]


def test_random_weights_stay_for_some_rounds_and_can_be_drawn_again(problem):
    method = FedAvg(weights="random", redraw=2)
    rounds = rounds_of(method, DirectFleet(problem), 6)
    even, *alphas = [r.alpha for r in rounds]
    assert even.tolist() == [1 / 3] * 3  # before the first draw
    for alpha in alphas:
        assert float(alpha.sum()) == pytest.approx(1)
        assert bool((alpha > 0).all())
    assert torch.equal(alphas[0], alphas[1])
    assert torch.equal(alphas[2], alphas[3])
    assert len({tuple(alpha.tolist()) for alpha in alphas}) == 3
    (again,) = rounds_of(method, DirectFleet(problem), 4, rounds[2])
    assert torch.equal(again.w.values, rounds[3].w.values)
    combined = rounds[5].w_k.combine(alphas[4])
    assert torch.equal(rounds[5].w.values, combined.values)


def test_clients_may_count_by_size_while_weights_are_learned():
    sites = [Site("A", {"train": 1}), Site("B", {"train": 4}), Site("C", {"train": 3})]
    theta = {"A": float64([8.0, 0.0, 1.0]), "C": float64([0.0, 4.0, 1.0])}  # B did not answer
    plan = Plan(1, 1, 1, Dirichlet(), BetaOptimiser("adam", 0.1))
    assert plan.average(theta, sites).tolist() == [4.0, 2.0, 1.0]
    assert replace(plan, by_size=True).average(theta, sites).tolist() == [2.0, 3.0, 1.0]


def test_fedprox_without_pull_is_fedavg(problem):
    plain = rounds_of(FedAvg(), DirectFleet(problem), 2)
    unpulled = rounds_of(FedProx(mu=0.0), DirectFleet(problem), 2)
    assert all(map(same_round, plain, unpulled))


def test_fedprox_keeps_clients_nearer_to_the_global_model(problem):
    def distance(method):
        transport = DirectFleet(problem)
        (only,) = rounds_of(method, transport, 1)
        return (only.w_k.values - problem.initial(transport.seeds)[0].values).norm().item()

    assert distance(FedProx(mu=3.0)) < 0.95 * distance(FedAvg())


def test_local_only_never_mixes(problem):
    together = rounds_of(LocalOnly(), DirectFleet(problem), 3)
    assert all(isinstance(r.w, Bank) and r.alpha is None and r.beta is None for r in together)
    for name in "ABC":
        alone = type(problem)(
            problem.network, problem.loss, {name: problem.sites[name]}, problem.metric
        )
        single = rounds_of(LocalOnly(), DirectFleet(alone), 3)
        assert torch.equal(single[-1].w[name].values, together[-1].w[name].values)


def test_local_only_starts_every_client_from_w0(federation, problem, seeds):
    w0, _ = problem.initial(seeds)
    begun = LocalOnly().begin(federation, Round(0, w0))
    assert begun.w.sites == ("A", "B", "C")
    assert all(torch.equal(row, w0.values) for row in begun.w.values)
    assert torch.equal(LocalOnly().begin(federation, begun).w.values, begun.w.values)


def test_the_other_methods_start_from_w0_itself(federation, problem, seeds):
    start = Round(0, problem.initial(seeds)[0])
    for name in ("auto-fedavg", "fedavg", "fedprox"):
        assert METHODS[name]().begin(federation, start) is start


def test_a_method_says_what_it_learns_on():
    assert FedAvg().learns_on is None
    assert AutoFedAvg(learn_on="train").learns_on == "train"


def test_only_local_only_has_no_predictor_for_all_sites(problem, seeds):
    _, layout = problem.initial(seeds)
    validated = {name: METHODS[name]().calls(6, layout)["evaluate"] for name in METHODS}
    others = {"fedce": 12, "fedma": 3, "local-only": 0}  # fedma, two layers: every second round
    assert validated == {**dict.fromkeys(METHODS, 6), **others}


def test_models_sent_to_a_client_to_validate_a_round():
    known = {name: METHODS[name]().models_validated(16) for name in METHODS}
    assert known == {**dict.fromkeys(METHODS, 1), "ensemble": 16}


def test_auto_fedavg_needs_two_sites():
    AutoFedAvg().check(2)
    wrong = (
        "^method: auto-fedavg learns how to weigh clients, and there is 1; use at least two sites"
    )
    with pytest.raises(ConfigError, match=wrong):
        AutoFedAvg().check(1)


def test_every_method_needs_a_site():
    FedAvg().check(1)
    with pytest.raises(ConfigError, match=r"^method: there is no site; add a site$"):
        FedAvg().check(0)


def test_a_method_must_say_how_it_runs(federation, problem, seeds):
    w0, layout = problem.initial(seeds)
    with pytest.raises(NotImplementedError):
        Method().rounds(federation, layout, 1, Round(0, w0))


# --- auto-fedavg's settings -----------------------------------------------------------------------


def test_defaults_follow_the_constraint():
    dirichlet, softmax = AutoFedAvg(), AutoFedAvg(constraint="softmax")
    assert (dirichlet.beta0, dirichlet.beta_rate) == (6.0, 0.1)
    assert (softmax.beta0, softmax.beta_rate) == (0.0, 0.02)
    assert dirichlet.gamma() == Dirichlet(6.0, "floor")
    assert softmax.gamma() == Softmax(0.0)


def test_a_beta0_without_a_mode_is_refused():
    with pytest.raises(ValidationError, match=r"beta0 = 0.5 leaves the Dirichlet's mode"):
        AutoFedAvg(beta0=0.5)
    assert AutoFedAvg(constraint="softmax", beta0=0.5).beta0 == 0.5


@pytest.mark.parametrize("wrong", [{"t0": 0}, {"S": 0}, {"beta_rate": 0.0}, {"smoothing": -1.0}])
def test_numbers_out_of_range_are_refused(wrong):
    (name,) = wrong
    with pytest.raises(ValidationError, match=name):
        AutoFedAvg(weights="layer", **wrong)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"steps_per_message": 0}, "greater than or equal to 1"),
        ({"steps_per_message": 21}, "steps_per_message = 21 is more than S = 20, all steps of a"),
        ({"S": 3, "steps_per_message": 4}, "steps_per_message = 4 is more than S = 3"),
        (
            {"steps_per_message": 2, "learning": "server"},
            "steps_per_message > 1 needs learning = 'clients': the server needs a gradient for",
        ),
        ({"learning": "nobody"}, "'clients', 'server' or 'blind'"),
        ({"t0": "never"}, "t0"),
        ({"t0": True}, "t0"),
        ({"when_idle": "sizes"}, "when_idle = 'sizes' needs t0 = 'auto': with t0 = 1 no call is"),
    ],
)
def test_steps_and_learning_that_do_not_fit_are_refused(wrong, words):
    with pytest.raises(ValidationError, match=words):
        AutoFedAvg(**wrong)
    assert AutoFedAvg(S=3, steps_per_message=3).steps_per_message == 3


BASE = {"weights": "layer", "S": 3, "t0": 1}
CHANGES = [
    {"constraint": "softmax"},
    {"weights": "network"},
    {"t0": 2},
    {"t0": "auto", "when_idle": "sizes", "reinitialise": True},
    {"S": 4},
    {"beta0": 3.0},
    {"start": "sizes"},
    {"beta_optimiser": "sgd"},
    {"beta_rate": 0.2},
    {"reinitialise": True},
    {"learn_on": "train"},
    {"learn_on": "holdout"},
    {"mode": "train"},
    {"layer": "tensor"},
    {"smoothing": 5.0},
    {"keep_above_one": "softplus"},
    {"steps_per_message": 2},
    {"learning": "server"},
    {"objective": "size"},
    {"clip_steps": 1.0},
]


@pytest.fixture(scope="module")
def base_result():
    return rounds_of(AutoFedAvg(**BASE), DirectFleet(toy_problem(3, norm_net)), 2)[-1]


BLIND = {"sketch", "batches", "show_weights"}  # tried in test_blind_calls.py


def test_every_setting_is_tried_below():
    tried = {name for change in CHANGES for name in change}
    assert tried == set(AutoFedAvg.model_fields) - {"name"} - BLIND


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: "{}={}".format(*next(iter(c.items()))))
def test_every_setting_changes_the_result(base_result, change):
    method = AutoFedAvg(**(BASE | change))
    found = rounds_of(method, DirectFleet(toy_problem(3, norm_net)), 2)[-1]
    assert not torch.equal(found.w.values, base_result.w.values)


def test_a_plan_carries_every_setting(problem, seeds):
    _, layout = problem.initial(seeds)
    method = AutoFedAvg(weights="layer", layer="tensor", t0=3, S=9, mode="train", smoothing=0.5)
    plan = method.plan(layout, 12)
    assert (plan.T, plan.t0, plan.S) == (12, 3, 9)
    assert plan.layers == layout.layers("tensor")
    assert plan.message(1) == {
        "gamma": Dirichlet().note(),
        "rate": 1.0,
        "layers": "tensor",
        "mode": "train",
        "smoothing": 0.5,
        "data": "validation",
    }
    assert AutoFedAvg().plan(layout, 12).message(1)["layers"] is None
    assert plan.trainable == 51


@pytest.mark.parametrize(
    ("S", "m", "expected"),
    [
        (3, 1, [(1, None), (2, None), (3, None)]),
        (6, 3, [(1, 3), (4, 3)]),
        (7, 3, [(1, 3), (4, 3), (7, 1)]),
        (4, 4, [(1, 4)]),
    ],
)
def test_s_steps_fall_into_messages(problem, seeds, S, m, expected):
    plan = AutoFedAvg(S=S, steps_per_message=m).plan(problem.initial(seeds)[1], 1)
    assert [(s, plan.message(s).get("steps")) for s in plan.steps] == expected
    alone = AutoFedAvg(S=S).plan(problem.initial(seeds)[1], 1).message(1)
    for s in plan.steps:
        assert plan.message(s).items() >= alone.items()
        assert ("optimiser" in plan.message(s)) == (m > 1)
    assert plan.server_optimiser().kind == ("adam" if m == 1 else "sgd")


def test_the_split_beta_is_learned_on_is_the_one_that_is_read(problem):
    read = set()

    class Watched(DirectFleet):
        def ask(self, verb, notes, within):
            read.update(message.facts.get("data") for message in notes.values())
            return super().ask(verb, notes, within)

    rounds_of(AutoFedAvg(S=1, learn_on="holdout"), Watched(problem), 1)
    assert read == {None, "holdout"}


def test_a_federation_of_one_is_fedavg_s_trivial_case():
    problem = toy_problem(1)
    transport = DirectFleet(problem)
    (only,) = rounds_of(FedAvg(), transport, 1)
    assert torch.equal(only.w.values, only.w_k["A"].values)
    assert Federation(transport).K == 1


@pytest.mark.parametrize(
    ("settings", "sites", "says"),
    [
        ({"constraint": "softmax"}, 3, "the softmax draws nothing"),
        ({}, 2, "with two sites every mixture lies on the line"),
        ({"S": 7}, 5, "S = 7 mixtures a call show where the 5 models lie"),
    ],
)
def test_what_learning_at_the_server_does_not_hide_is_said(settings, sites, says):
    (caution,) = AutoFedAvg(learning="server", **settings).cautions(sites)
    assert says in caution
    assert AutoFedAvg(**settings).cautions(sites) == FedAvg().cautions(sites) == []


def test_what_an_author_of_a_method_imports_is_in_one_place():
    found = {name: getattr(door, name) for name in door.__all__ if name != "METHODS"}
    assert found == {
        "Federation": Federation,
        "Method": Method,
        "Round": Round,
        "setting": setting,
    }
    with pytest.raises(AttributeError, match="no attribute 'Rounds'"):
        door.Rounds  # noqa: B018
