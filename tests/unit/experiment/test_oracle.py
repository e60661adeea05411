"""The oracle on models whose best weights are known in closed form.

A network is a point, or two; a case is a target, and its loss half the squared distance to it.
"""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from autofedavg.core.bank import Bank, Layout
from autofedavg.core.constraints import Softmax
from autofedavg.core.errors import ConfigError, DataError, FederationError
from autofedavg.core.problem import CaseScore, Problem
from autofedavg.core.seeds import Purpose, Seeds
from autofedavg.core.trainer import Training
from autofedavg.experiment.case_gains import compared
from autofedavg.experiment.oracle import BETAS, Fit, Oracle, Weights, families, times_asked
from autofedavg.federation.messages import NoReply
from autofedavg.federation.port import Federation
from autofedavg.federation.settings import Exchange
from toy import METRIC, DirectFleet, float64

FIT = Fit(steps=120, rate=0.2)
SHORT = Fit(steps=8)
TRAINING = Training(iterations=1, batch_size=3)
NAMES = ("A", "B", "C")


class Points(nn.Module):
    """Two layers, each a point of the plane."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
        self.double()

    def forward(self, _):
        return torch.cat([self.first.weight, self.second.weight], dim=1)


def loss(network, targets):
    return 0.5 * (network(targets) - targets).square().sum(dim=1).mean()


@dataclass
class TargetSite:
    """A site whose cases are targets (n, 4)."""

    name: str
    targets: torch.Tensor
    n: int = 4

    def cases(self):
        return {"train": self.n, "test": len(self.targets), "validation": len(self.targets)}

    def settle(self, device):
        pass

    def weight_batch(self, seeds, t, s, split, batch_size):
        chance = seeds.generator(self.name, Purpose.AGGREGATE_BATCHES, t, s)
        return self.targets[torch.randint(len(self.targets), (batch_size,), generator=chance)]

    def score(self, network, split):
        far = (network(self.targets) - self.targets).square().sum(dim=1)
        return [CaseScore(f"{k}", METRIC, -float(value)) for k, value in enumerate(far)]

    def only(self, split, picks):
        return replace(self, targets=self.targets[list(picks)])


MODELS = float64([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0], [-1.0, -1.0, -1.0, -1.0]])


def bank(rows=MODELS) -> Bank:
    return Bank(NAMES, rows, torch.empty(len(rows), 0, dtype=torch.int64))


def oracle(targets, *, K=3, intercept=None, split="test", exchange=None, fit=FIT, **how):
    sites = {name: TargetSite(name, targets[name]) for name in NAMES[:K]}
    problem = Problem(Points, loss, sites, METRIC)
    fleet = DirectFleet(problem, TRAINING, Seeds(3), *([intercept] if intercept else []))
    federation = Federation(fleet, seeds=Seeds(3), exchange=exchange or Exchange(), metric=METRIC)
    federation.training_over = True
    made = Oracle(federation, Layout.of(Points()), 5, split, METRIC, fit, **how)
    made.fleet = fleet
    return made


def at(target, n=6):
    """Every site's cases are at one place."""
    return {name: float64([target] * n) for name in NAMES}


def test_the_best_network_wise_weights_are_found():
    best = float64([0.5, 0.3, 0.2])
    found = oracle(at((best @ MODELS).tolist())).round(bank(), None)
    for fit in found["fits"]["network"]:
        assert fit["best"] == "fit"
        assert fit["alpha"] == pytest.approx(best.tolist(), abs=2e-3)
        assert fit["loss"]["last"] < fit["loss"]["first"]
    rows = found["rows"]
    assert rows["network"]["score"] == pytest.approx(0.0, abs=1e-4)
    assert rows["network"]["gain"] == pytest.approx(-rows["fedavg"]["score"], abs=1e-4)
    assert set(rows["network"]["sites"]) == set(NAMES)


def test_a_site_with_garbage_gets_no_weight():
    best = float64([0.5, 0.5, 0.0])
    models = MODELS.clone()
    models[2] = float64([40.0, -70.0, 90.0, 30.0])
    found = oracle(at((best @ models).tolist())).round(bank(models), None)
    for fit in found["fits"]["network"]:
        assert fit["alpha"][2] < 0.01
    assert found["rows"]["network"]["gain"] > 100 * found["rows"]["network"]["margin"]


def test_the_best_layer_wise_weights_are_found_where_no_network_wise_ones_reach():
    first, second = float64([0.6, 0.3, 0.1]), float64([0.1, 0.2, 0.7])
    target = [*(first @ MODELS)[:2].tolist(), *(second @ MODELS)[2:].tolist()]
    found = oracle(at(target)).round(bank(), None)
    for fit in found["fits"]["layer"]:
        alpha = float64(fit["alpha"])
        assert alpha[:, 0].tolist() == pytest.approx(first.tolist(), abs=5e-3)
        assert alpha[:, 1].tolist() == pytest.approx(second.tolist(), abs=5e-3)
    rows = found["rows"]
    assert rows["layer"]["score"] == pytest.approx(0.0, abs=1e-3)
    assert rows["network"]["score"] < -0.5


def test_the_best_shrinking_is_found():
    best = float64([0.7, 0.2, 0.1])
    found = oracle(at((0.6 * (best @ MODELS)).tolist())).round(bank(), None)
    for fit in found["fits"]["scaled"]:
        # Three points of the plane: shrinking and weights can stand in for each other.
        made = fit["shrink"] * (float64(fit["alpha"]) @ MODELS)
        assert made.tolist() == pytest.approx((0.6 * (best @ MODELS)).tolist(), abs=5e-3)
    assert found["rows"]["scaled"]["score"] == pytest.approx(0.0, abs=1e-3)


def scattered(seed=0, n=8):
    chance = torch.Generator().manual_seed(seed)
    return {k: torch.randn(n, 4, generator=chance, dtype=torch.float64) for k in NAMES}


def test_weights_of_one_half_never_see_the_other():
    """Targets of half 1 are moved far away: what is fitted on half 0 keeps every bit."""
    targets = scattered()
    clean = oracle(targets, fit=SHORT).round(bank(), None)
    poisoned = {name: mine.clone() for name, mine in targets.items()}
    for name, mine in poisoned.items():
        client = oracle(targets).fleet.clients[name]
        for target in client._cases("test", 1).targets:
            mine[(mine == target).all(dim=1)] += 50.0
    dirty = oracle(poisoned, fit=SHORT).round(bank(), None)
    for family in ("network", "layer", "scaled"):
        assert clean["fits"][family][0] == dirty["fits"][family][0]
        assert clean["fits"][family][1] != dirty["fits"][family][1]


def test_every_case_is_scored_by_weights_that_were_fitted_without_it():
    """The scores are those of the recorded weights on the other half."""
    targets = scattered()
    made = oracle(targets, fit=SHORT)
    found = made.round(bank(), None)
    fits = found["fits"]["network"]
    means = []
    for name in NAMES:
        scores = []
        for half in (0, 1):
            w = float64(fits[1 - half]["alpha"]) @ MODELS
            theirs = made.fleet.clients[name]._cases("test", half).targets
            scores += (-(w - theirs).square().sum(dim=1)).tolist()
        means.append(sum(scores) / len(scores))
    assert found["rows"]["network"]["score"] == pytest.approx(sum(means) / 3, rel=1e-12)
    assert found["rows"]["network"]["sites"] == pytest.approx(dict(zip(NAMES, means, strict=True)))


def test_a_gain_is_over_the_cases_of_both_halves():
    """Of sites, not of halves: site B, with all its gain in the second half, counts as A does."""
    baseline = {(half, site, f"{half}{n}"): 0.5 for half in (0, 1) for site in "AB" for n in (0, 1)}
    scores = {case: value + 0.1 * (case[0] == 1) for case, value in baseline.items()}
    found = compared(scores, baseline)
    assert (found["gain"], found["score"]) == pytest.approx((0.05, 0.55))
    assert found["margin"] > 0.04
    assert found["sites"] == pytest.approx({"A": 0.55, "B": 0.55})


def test_a_fit_starts_at_fedavgs_weights_however_small_a_site_is():
    p = float64([0.002, 0.298, 0.7])
    layout = Layout.of(nn.Linear(2, 2))
    for name, family in families(layout, p).items():
        alpha = family.gamma.alpha(family.start)
        alpha = alpha[:, 0] if name == "layer" else alpha[:3]
        torch.testing.assert_close(alpha, p)


def test_a_fit_that_ends_worse_gives_way_to_weights_that_need_none():
    models = MODELS + 3.0
    near = models.mean(dim=0) + float64([0.1, 0.0, 0.0, 0.0])
    made = oracle(at(near.tolist()), fit=Fit(steps=2, rate=3.0))
    found = made.round(bank(models), None)
    for family, fits in found["fits"].items():
        for fit in fits:
            assert fit["best"] == "fedavg"  # all sites have as many cases: even weights, too
            assert fit["own_half"]["fit"] < fit["own_half"]["fedavg"]
            alpha = float64(fit["alpha"])
            assert torch.allclose(alpha, torch.full_like(alpha, 1 / 3))
            assert ("shrink" in fit) == (family == "scaled")
            assert fit.get("shrink", 1.0) == 1.0
        assert found["rows"][family]["gain"] == found["rows"][family]["margin"] == 0.0


def test_a_single_site_is_known_without_a_fit():
    made = oracle(at(MODELS[1].tolist()), fit=Fit(steps=1, rate=1e-9))
    found = made.round(bank(), None)
    assert [fit["best"] for fit in found["fits"]["layer"]] == ["local-B", "local-B"]
    assert found["fits"]["layer"][0]["alpha"] == [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    assert found["rows"]["local-B"]["score"] == found["rows"]["layer"]["score"] == 0.0


def test_own_models_and_the_ensemble_stay_away_where_own_models_do_not_travel():
    made = oracle(scattered(), local=False, fit=Fit(steps=1))
    assert set(made.round(bank(), None)["rows"]) == {"fedavg", "even", "network", "layer", "scaled"}
    assert not any("sites" in message.facts for message in made.fleet.sent("evaluate"))


def test_the_run_s_own_model_stands_beside():
    made = oracle(scattered(), local=False, fit=Fit(steps=1))
    ran = bank().combine(float64([0.2, 0.2, 0.6]))
    rows = made.round(bank(), ran)["rows"]
    assert rows["run"]["score"] != rows["fedavg"]["score"]


def test_requests_are_those_that_a_site_s_policy_expects():
    made = oracle(scattered(), local=False, fit=Fit(steps=3))
    made.round(bank(), None)
    wanted = made.fit.asks()
    for verb in ("differentiate", "evaluate"):
        sent = [m.facts for m in made.fleet.sent(verb, "A")]
        said = [{k: v for k, v in facts.items() if k != "t"} for facts in sent]
        assert all(one in wanted[verb] for one in said)
        assert all(said.count(one) <= times_asked(verb, 1, 3) for one in wanted[verb])


def test_steps_are_those_of_pytorch_s_adam_and_its_cosine_bit_for_bit():
    """On slopes that are noise: the classes, which the run does not import, as reference."""
    steps, draw = 25, torch.Generator().manual_seed(0)
    start = torch.randn(3, generator=draw, dtype=torch.float64)
    slopes = torch.randn(steps, 3, generator=draw, dtype=torch.float64)
    theta = start.clone().requires_grad_()
    adam = torch.optim.Adam([theta], 0.3, BETAS, foreach=False)
    slower = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    for slope in slopes:
        theta.grad = theta.detach() - (theta.detach() - slope)
        adam.step()
        slower.step()

    class Noise(Weights):
        def mixture(self, _, theta):
            step = lambda *_: theta - next(given)  # noqa: E731
            return SimpleNamespace(w=bank()["A"], step=step)

    given = iter(slopes)
    made = oracle(scattered(), fit=Fit(steps=steps, rate=0.3))
    found = made._theta(Noise(Softmax(), None, start), bank(), 0)
    assert torch.equal(found, theta.detach())


def test_a_tick_for_every_step_and_score():
    done = []
    made = oracle(scattered(), fit=Fit(steps=3), tick=lambda: done.append(1))
    made.local = False
    made.round(bank(), None)
    assert 0 < len(done) <= made.ticks


def test_one_site_and_sites_with_one_case_are_refused():
    with pytest.raises(ConfigError, match="one site, so there are no weights to choose"):
        oracle(at([0.0] * 4), K=1)
    few = {**scattered(), "B": float64([[0.0] * 4])}
    with pytest.raises(DataError, match=r"fewer than two validation cases, .*: B 1; use another"):
        oracle(few, split="validation")


def test_a_site_that_does_not_score_is_named():
    made = oracle(
        scattered(),
        intercept=lambda verb, site, _: (
            NoReply("gone") if (verb, site) == ("evaluate", "B") else None
        ),
        exchange=Exchange(test_quorum=2, retries=0),
    )
    with pytest.raises(FederationError, match=r"client B, .* needs the scores of all sites"):
        made.round(bank(), None)
