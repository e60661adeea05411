"""Requests about a half of a site's cases, at the client and at the port."""

from dataclasses import dataclass

import pytest
import torch

from autofedavg.core.errors import DataError, FederationError
from autofedavg.core.problem import Problem
from autofedavg.core.seeds import Seeds
from autofedavg.federation.messages import Message, arrays_of
from autofedavg.federation.port import Federation
from toy import METRIC, DirectFleet, ToySite, cross_entropy, forge, make_client, mlp, toy_site

STEP = {"t": 4, "s": 1, "data": "test", "mode": "eval"}


@dataclass
class DivisibleSite(ToySite):
    def only(self, split, picks):
        x, y = self.splits[split]
        return DivisibleSite(self.name, {**self.splits, split: (x[picks], y[picks])}, self.full)


def problem() -> Problem:
    toys = {name: toy_site(name, k) for k, name in enumerate("ABC")}
    sites = {name: DivisibleSite(name, toy.splits, True) for name, toy in toys.items()}
    return Problem(mlp, cross_entropy, sites, METRIC)


@pytest.fixture
def w():
    return problem().initial(Seeds(7))[0]


def test_the_two_halves_together_are_the_split(w):
    client = make_client(problem(), "A")
    whole = client.answer("evaluate", Message(arrays_of(w), {"split": "test"})).facts["scores"]
    values = sorted(value for _, _, value in whole)
    halves = [
        client.answer("evaluate", Message(arrays_of(w), {"split": "test", "half": half}))
        for half in (0, 1)
    ]
    found = [value for half in halves for _, _, value in half.facts["scores"]]
    assert sorted(found) == pytest.approx(values, abs=1e-6)
    assert [len(half.facts["scores"]) for half in halves] == [3, 2]


def test_a_gradient_is_that_of_its_half_alone(w):
    client = make_client(problem(), "A")
    found = [
        client.answer("differentiate", Message(arrays_of(w), {**STEP, "half": half}))
        for half in (0, 1)
    ]
    whole = client.answer("differentiate", Message(arrays_of(w), STEP))
    mean = (3 * found[0].arrays["gradient"] + 2 * found[1].arrays["gradient"]) / 5
    assert torch.allclose(mean, whole.arrays["gradient"], atol=1e-6)
    assert not torch.allclose(found[0].arrays["gradient"], found[1].arrays["gradient"])


def test_data_that_cannot_be_divided_say_what_they_lack(w):
    plain = Problem(mlp, cross_entropy, {"A": toy_site("A", 0)}, METRIC)
    with pytest.raises(DataError, match=r"site A: .*cannot be divided .* only\(split, picks\)"):
        make_client(plain, "A").answer("differentiate", Message(arrays_of(w), {**STEP, "half": 0}))


def test_the_port_asks_for_halves_and_counts_their_cases(w):
    federation = Federation(DirectFleet(problem()), metric=METRIC)
    federation.training_over = True
    for half, cases in ((0, 3), (1, 2)):
        found = federation.evaluate(w, "test", METRIC, half=half)
        assert [row.site for row in found.rows] == [name for name in "ABC" for _ in range(cases)]
    four = Message({}, {"scores": [[str(n), METRIC, 0.5] for n in range(4)]})
    fleet = DirectFleet(problem(), intercept=forge("B", "evaluate", four))
    federation = Federation(fleet, metric=METRIC)
    with pytest.raises(FederationError, match=r"client B, .* scored 4 cases of test, and it has 3"):
        federation.evaluate(w, "test", METRIC, record=True, half=0)


def test_scores_of_a_round_do_not_stand_in_for_those_of_a_half():
    from autofedavg.methods import METHODS

    federation = Federation(DirectFleet(problem()), metric=METRIC)
    w0, layout = problem().initial(Seeds(7))
    trained = federation.local_train(1, w0, T=1, request=METHODS["fedavg"]().local(layout))
    mean = trained.w_k.combine(torch.full((3,), 1 / 3, dtype=torch.float64))
    federation.validated(1, mean, trained.w_k)
    whole = federation.evaluate(mean, "validation", METRIC)
    half = federation.evaluate(mean, "validation", METRIC, half=0)
    assert len(half.rows) * 2 == len(whole.rows)
