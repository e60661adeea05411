"""`t0 = "auto"` with blind learning: whether a step paid, without showing a model or a loss."""

import math
from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError

from autofedavg.core.beta_optimiser import BetaOptimiser
from autofedavg.core.blind import BlindPlan, Lesson
from autofedavg.core.call_schedule import CallSchedule
from autofedavg.core.seeds import Seeds
from autofedavg.federation import paying_calls
from autofedavg.federation.blind_site import BlindSite
from autofedavg.federation.messages import Message
from autofedavg.federation.secure_sum import SumOver
from autofedavg.methods.auto_fedavg import AutoFedAvg
from autofedavg.methods.shared.blind import judge
from blind_runs import blind_run, federation_of, same_rounds
from judged_runs import ONE_STEP, judged
from toy import DirectFleet, PointSite, float64, lose, mlp, norm_net, point_problem, toy_problem

BLIND = {"learning": "blind", "S": 1, "show_weights": True}


def hospitals(bad):
    """All learn the weights on one point, which A, B and C train towards; D trains elsewhere."""
    good = {name: PointSite((1.0,), (1.0,)) for name in "ABC"}
    return DirectFleet(point_problem((0.0,), {**good, "D": PointSite((bad,), (1.0,))}), ONE_STEP)


@pytest.mark.parametrize("constraint", ["softmax", "dirichlet"])
def test_steps_pay_where_one_site_is_bad(constraint):
    rounds, verdicts, _ = judged(hospitals(-6.0), 21, constraint=constraint, **BLIND)
    assert [r.t for r in rounds if r.learned] == [2, 3, 6, 13]
    assert [r.t for r, v in zip(rounds, verdicts, strict=True) if v] == [2, 3, 6, 13]
    told = [v for v in verdicts if v]
    assert [v["paid"] for v in told] == [True] * 4
    assert all(v["gain"] > 0 for v in told)
    assert [v["next"] for v in told] == [3, 6, 13, 28]
    assert rounds[-1].alpha[3] < rounds[1].alpha[3] < 1 / 4


@pytest.mark.parametrize("T", [2, 3, 12, 21])
def test_no_run_takes_more_gradients_than_check_forecasts(T):
    """Every step pays; the models of round T are those of no gradient."""
    fleet = hospitals(-6.0)
    judged(fleet, T, **BLIND)
    method = AutoFedAvg(t0="auto", learning="blind")
    forecast = method.calls(T, fleet.clients["A"].trainer.layout)["masked_gradient"]
    assert len(fleet.sent("masked_gradient", "A")) == forecast


def test_no_step_pays_where_all_sites_are_alike():
    """The same data everywhere, so the same models: at most a fifth of the calls of t0 = 1."""
    fleet = hospitals(1.0)
    rounds, verdicts, _ = judged(fleet, 20, **BLIND)
    assert [r.t for r in rounds if r.learned] == [2, 5, 20]
    for verdict in filter(None, verdicts):
        assert not verdict["paid"]
        assert verdict["gain"] == pytest.approx(0.0, abs=1e-9)
    assert torch.equal(rounds[-1].alpha, torch.full((4,), 1 / 4, dtype=torch.float64))
    assert len(fleet.sent("masked_gradient", "A")) <= 20 / 5


def test_the_gain_is_the_first_order_change_of_the_mean_loss():
    """By hand: a short step on points, whose loss is known at any weights."""
    fleet = hospitals(-6.0)
    how = {"constraint": "softmax", "beta_optimiser": "sgd", "beta_rate": 1e-4}
    rounds, verdicts, _ = judged(fleet, 2, **how, **BLIND)
    w_k = 0.5 * float64([1.0, 1.0, 1.0, -6.0])  # after half a step from 0
    losses = [0.5 * float(alpha @ w_k - 1.0) ** 2 for alpha in (rounds[0].alpha, rounds[1].alpha)]
    assert verdicts[1]["gain"] == pytest.approx(losses[0] - losses[1], rel=1e-2)
    assert verdicts[1]["error"] == pytest.approx(0.0, abs=1e-9)


def never(monkeypatch):
    """No gain is beyond noise."""
    monkeypatch.setattr(paying_calls, "ERRORS", math.inf)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_a_step_that_did_not_pay_is_taken_back(optimiser, monkeypatch):
    never(monkeypatch)
    fleet = DirectFleet(toy_problem(4, norm_net))
    rounds, verdicts, _ = judged(
        fleet, 11, beta_optimiser=optimiser, constraint="softmax", beta_rate=1.0, **BLIND
    )
    even = torch.full((4,), 1 / 4, dtype=torch.float64)
    assert [r.t for r in rounds if r.learned] == [2, 5]
    assert [v["paid"] for v in verdicts if v] == [False, False]
    for done in rounds:
        assert torch.equal(done.alpha, even) == (not done.learned)
    kept = fleet.clients["A"].client_state.kept.states.values()
    assert set(max(kept, key=lambda state: int(state["t"]))) == {"theta", "seen", "t"}


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_step_is_taken_back_by_a_run_that_was_stopped_before(stop, monkeypatch):
    """That of round 2 did not pay: round 3 takes it back, whoever computes it."""
    never(monkeypatch)
    problem, how = toy_problem(3, norm_net), {"t0": "auto", "show_weights": True}
    whole = blind_run(DirectFleet(problem), problem, **how)
    fleet = DirectFleet(problem)
    before, after = federation_of(fleet), federation_of(fleet)
    first = blind_run(fleet, problem, federation=before, rounds=stop, **how)
    after.resume_personal(before.personal, before.copies())
    rest = blind_run(fleet, problem, federation=after, after=first[-1], **how)
    assert same_rounds(first + rest, whole)
    assert [r.alpha.tolist() for r in first + rest] == [r.alpha.tolist() for r in whole]
    assert not torch.equal(whole[1].alpha, whole[2].alpha)


def test_a_site_that_was_away_takes_its_step_back_later(monkeypatch):
    """D misses round 3, which undoes the step of round 2, and returns in round 4."""
    never(monkeypatch)
    fleet = DirectFleet(toy_problem(4, norm_net))
    fleet.intercept = lose("D", verb="local_train", t=3)
    rounds, _, _ = judged(fleet, 4, constraint="softmax", quorum=3, **BLIND)
    assert not torch.equal(rounds[1].alpha, torch.full((4,), 1 / 4, dtype=torch.float64))
    torch.testing.assert_close(rounds[2].alpha, float64([1 / 3, 1 / 3, 1 / 3, 0]))
    assert torch.equal(rounds[3].alpha, torch.full((4,), 1 / 4, dtype=torch.float64))


def test_every_group_has_a_sketch_of_its_own():
    """With a common one, a step would be judged by the errors that it followed."""
    fleet = DirectFleet(toy_problem(4, mlp))
    client = fleet.clients["A"]
    plan = BlindPlan("softmax", 0.0, BetaOptimiser("sgd", 1.0), sketch=40, groups=4)
    layout = client.trainer.layout
    site = BlindSite(client, Seeds(7), masked=False)
    vector = torch.arange(float(layout.size))
    parts = site.sketched(plan, vector, 3).view(4, -1)
    assert parts.shape == (4, 10)
    assert plan.length(layout) == 40
    assert all(not torch.equal(parts[0], other) for other in parts[1:])
    later = site.sketched(plan, vector, 4).view(4, -1)  # nor does a round repeat another's errors
    assert not any(torch.equal(one, other) for one, other in zip(parts, later, strict=True))


@pytest.mark.parametrize(("mean", "paid"), [(0.19, False), (0.21, True), (-1.0, False)])
def test_a_step_paid_if_its_gain_exceeds_two_standard_errors(mean, paid):
    """Four groups that deviate by 0.2: a standard error of 0.1. The step was at w of round 2."""
    deviation = 0.2 * math.sqrt(3 / 4)
    gains = mean + float64([deviation, deviation, -deviation, -deviation])
    federation, calls = SimpleNamespace(), CallSchedule()
    assert judge(federation, calls, 3, gains, 1.0) is paid
    assert federation.verdict["error"] == pytest.approx(0.1)
    assert federation.verdict["paid"] is paid
    assert (calls.next, federation.verdict["next"]) == ((3, 4) if paid else (5, 6))


def test_noise_of_a_sketch_is_no_gain():
    """Gradients across all models' differences: whatever a coarse sketch says, on average 0."""
    layout = DirectFleet(toy_problem(3, mlp)).clients["A"].trainer.layout
    plan = BlindPlan("softmax", 0.0, BetaOptimiser("sgd", 1.0), sketch=32, groups=8)
    sketch, gains = plan.sketch_of(layout), []
    gradient, apart = torch.zeros(2, layout.trainable)
    gradient[::2], apart[1::2] = 1.0, 1.0  # their inner product is 0
    for seed in range(0, 4000, 8):
        y, seen = (
            torch.cat([sketch.apply(x, seed + b) for b in range(8)]) for x in (gradient, apart)
        )
        state = {"theta": float64([0.0]), "seen": seen}
        lesson = Lesson(y, float64([3.0]))
        gains.append(float64(lesson.step(plan, state, sketch, torch.zeros(32)).gains).mean())
    mean, error = torch.stack(gains).mean(), torch.stack(gains).std() / math.sqrt(len(gains))
    assert abs(mean) < 3 * error


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"t0": "auto", "when_idle": "sizes"}, "needs the loss at n_k/n"),
        ({"t0": "auto", "batches": 1}, "use batches = 2 or more"),
    ],
)
def test_what_cannot_be_judged_is_refused(wrong, words):
    with pytest.raises(ValidationError, match=words):
        AutoFedAvg(learning="blind", **wrong)


def test_a_site_refuses_gradients_that_do_not_fit_their_groups():
    fleet = DirectFleet(toy_problem(3, mlp))
    federation = federation_of(fleet)
    w0, _ = fleet.problem.initial(Seeds(7))
    plan = BlindPlan("softmax", 0.0, BetaOptimiser("sgd", 1.0), groups=4)
    keys = {name: fleet.clients[name].blind.sums.renewed() for name in federation.names}
    facts = {"t": 1, "blind": plan.note(), "size": False, "sum": SumOver(keys, 1).note()}
    facts |= {"data": "validation", "mode": "eval", "batches": 3}
    message = Message({"values": w0.values, "counters": w0.counters}, facts)
    with pytest.raises(Exception, match="cannot send 3 mini-batches as 4 gradients"):
        fleet.clients["A"].answer("masked_gradient", message)
