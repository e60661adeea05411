"""Trimmed mean, geometric median, multi-Krum and robust weights: known answers, by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from aggregations import aggregation, next_round
from autofedavg.core.errors import ConfigError
from autofedavg.core.trainer import Training
from autofedavg.methods.fedavg import FedAvg
from autofedavg.methods.geometric_median import GeometricMedian
from autofedavg.methods.median import Median
from autofedavg.methods.multi_krum import MultiKrum
from autofedavg.methods.robust_weights import RobustWeights
from autofedavg.methods.shared.capped_simplex import capped
from autofedavg.methods.trimmed_mean import TrimmedMean
from toy import DirectFleet, lose, norm_net, rounds_of, toy_problem

TRAINING = Training(epochs=1)
ODD = [[0.1, 0.7], [0.3, -0.2], [0.5, 0.9], [0.2, 0.2], [0.7, 0.1]]
SIZES = [0.1, 0.2, 0.3, 0.15, 0.25]
CHOOSING = [
    TrimmedMean(),
    GeometricMedian(),
    MultiKrum(f=1),
    MultiKrum(f=1, keep=1),
    RobustWeights(),
    RobustWeights(f=2, cap=1.5),
]


def plain(at) -> torch.Tensor:
    return FedAvg().aggregate(at).values


def even(at) -> torch.Tensor:
    n = len(at.w_k.sites)
    return at.w_k.combine(torch.full((n,), 1 / n, dtype=torch.float64)).values


def named(method) -> str:
    return str(method.model_dump(exclude_defaults=True) | {"name": method.name})


@pytest.mark.parametrize("method", CHOOSING, ids=named)
def test_identical_models_give_that_model(method) -> None:
    at = aggregation([[0.1, 0.7]] * 5, [0.3, 0.1], SIZES, probed=[1.0] * 5)
    after = method.aggregate(at).values
    torch.testing.assert_close(after, at.w_k.values[0], rtol=0, atol=1e-15)


@pytest.mark.parametrize("method", [TrimmedMean(), GeometricMedian(), RobustWeights(f=0)])
def test_the_only_site_s_model_keeps_its_bits(method) -> None:
    at = aggregation([[0.1, 0.7]], [0.3, 0.1], probed=[1.0])
    assert torch.equal(method.aggregate(at).values, at.w_k.values[0])
    assert method.equals_fedavg(1, at.layout, TRAINING)


@pytest.mark.parametrize(
    "method",
    [
        GeometricMedian(iterations=0),
        RobustWeights(f=0, step=0.0),
        RobustWeights(f=0, step=0.0, cap=3.0),
        RobustWeights(f=0),
    ],
    ids=named,
)
def test_neutral_settings_are_fedavg_bit_for_bit(method) -> None:
    at = aggregation(ODD, [0.3, 0.1], SIZES, probed=[1.0, 2.0, 0.5, 0.1, 3.0])
    assert torch.equal(method.aggregate(at).values, plain(at))
    assert torch.equal(at.alpha, at.fixed)
    assert method.equals_fedavg(5, at.layout, TRAINING)
    whole = [rounds_of(m, DirectFleet(toy_problem(3)), 3)[-1] for m in (method, FedAvg())]
    assert torch.equal(whole[0].w.values, whole[1].w.values)


@pytest.mark.parametrize(
    "method", [TrimmedMean(trim=0.0), TrimmedMean(trim=0.19), MultiKrum(f=0)], ids=named
)
def test_neutral_settings_are_even_weights_bit_for_bit(method) -> None:
    at = aggregation(ODD, [0.3, 0.1], SIZES)
    assert torch.equal(method.aggregate(at).values, even(at))
    assert at.alpha.tolist() == [0.2] * 5
    assert "even weights" in method.equals_fedavg(5, at.layout, TRAINING)
    whole = [
        rounds_of(m, DirectFleet(toy_problem(3)), 3)[-1] for m in (method, FedAvg(weights="even"))
    ]
    assert torch.equal(whole[0].w.values, whole[1].w.values)


@pytest.mark.parametrize("method", CHOOSING, ids=named)
def test_other_settings_do_not_claim_to_be_fedavg(method) -> None:
    at = aggregation(ODD, [0.3, 0.1], SIZES, probed=[1.0, 2.0, 0.5, 0.1, 3.0])
    assert method.equals_fedavg(5, at.layout, TRAINING) == ""
    after = method.aggregate(at).values
    assert not torch.equal(after, plain(at))
    assert not torch.equal(after, even(at))


# --- trimmed mean -------------------------------------------------------------------------------


def test_the_trimmed_mean_leaves_both_ends_out() -> None:
    at = aggregation([[100.0], [1.0], [2.0], [-50.0], [6.0]], p=SIZES)
    assert TrimmedMean(trim=0.2).aggregate(at).values.tolist() == [3.0]
    assert at.alpha is None
    assert TrimmedMean(trim=0.4).aggregate(at).values.tolist() == [2.0]


@pytest.mark.parametrize(
    ("trim", "sites", "cut"),
    [(0.2, 4, 0), (0.2, 5, 1), (0.2, 9, 1), (0.29, 100, 29), (0.1, 30, 3), (0.4999999999, 2, 0)],
)
def test_how_many_are_trimmed(trim, sites, cut) -> None:
    assert TrimmedMean(trim=trim).cut(sites) == cut


def test_trimming_all_but_the_middle_is_the_median() -> None:
    at = aggregation(ODD, [0.3, 0.1], SIZES)
    torch.testing.assert_close(
        TrimmedMean(trim=0.4).aggregate(at).values, Median().aggregate(at).values, rtol=0, atol=0
    )


@given(st.lists(st.floats(-1e3, 1e3), min_size=5, max_size=9))
def test_one_bad_site_cannot_leave_the_others_range(honest) -> None:
    at = aggregation([[x] for x in honest] + [[1e9]])
    after = float(TrimmedMean(trim=0.2).aggregate(at).values)
    assert min(honest) - 1e-9 <= after <= max(honest) + 1e-9


def test_buffers_are_averaged_by_size_and_not_trimmed() -> None:
    """Batch normalisation: a variance and the mean it belongs to come from the same models."""
    transport = DirectFleet(toy_problem(3, norm_net))
    (done,) = rounds_of(TrimmedMean(trim=0.4), transport, 1)
    (fedavg,) = rounds_of(FedAvg(), DirectFleet(toy_problem(3, norm_net)), 1)
    end = transport.problem.initial(transport.seeds)[1].trainable
    assert len(done.w.values) > end
    assert torch.equal(done.w.values[end:], fedavg.w.values[end:])
    assert not torch.equal(done.w.values[:end], fedavg.w.values[:end])


# --- geometric median ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("iterations", "expected"), [(0, 25), (1, 10), (2, 3.571429), (3, 1.219512), (4, 0.409836)]
)
def test_weiszfelds_steps_on_one_outlier(iterations, expected) -> None:
    at = aggregation([[0.0], [0.0], [0.0], [100.0]])
    after = GeometricMedian(iterations=iterations).aggregate(at).values
    assert after.tolist() == pytest.approx([expected], rel=1e-6)


def test_the_geometric_median_of_a_triangle_is_its_fermat_point() -> None:
    """From an equilateral triangle's corners it is the centre; sizes count."""
    corners = [[math.cos(a), math.sin(a)] for a in (0, 2 * math.pi / 3, 4 * math.pi / 3)]
    at = aggregation(corners)
    after = GeometricMedian(iterations=50).aggregate(at).values
    torch.testing.assert_close(after, torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-12)
    heavy = aggregation(corners, p=[0.6, 0.2, 0.2])  # more than half: the median is that corner
    after = GeometricMedian(iterations=2000).aggregate(heavy).values
    torch.testing.assert_close(after, heavy.w_k.values[0], rtol=0, atol=1e-3)


@given(st.permutations(range(5)))
def test_the_order_of_sites_does_not_matter(order) -> None:
    for method in CHOOSING:
        losses = [1.0, 2.0, 0.5, 0.1, 3.0]
        one = aggregation(ODD, p=SIZES, probed=losses)
        other = aggregation(
            [ODD[k] for k in order],
            p=[SIZES[k] for k in order],
            probed=[losses[k] for k in order],
        )
        first, second = method.aggregate(one).values, method.aggregate(other).values
        torch.testing.assert_close(first, second, rtol=0, atol=1e-12)
        if one.alpha is not None:
            torch.testing.assert_close(one.alpha[list(order)], other.alpha, rtol=0, atol=1e-12)
            assert float(one.alpha.sum()) == pytest.approx(1, abs=1e-12)
            assert float(one.alpha.min()) >= 0


# --- multi-Krum ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sites", [4, 5, 8])
@pytest.mark.parametrize("outlier", range(4))
def test_krum_never_takes_one_far_outlier(sites, outlier) -> None:
    deltas = [[0.1 * k, -0.05 * k * k] for k in range(sites)]
    deltas[outlier] = [100.0, 100.0]
    at = aggregation(deltas)
    MultiKrum(f=0, keep=1).aggregate(at)
    assert at.alpha[outlier] == 0
    assert sorted(at.alpha.tolist())[-1] == 1


def test_krums_scores_count_the_nearest_others() -> None:
    """Five points on a line, f = 1: two neighbours count."""
    at = aggregation([[0.0], [1.0], [3.0], [7.0], [50.0]])
    scores = MultiKrum().scores(at.gram().deltas, 1)
    assert scores.tolist() == pytest.approx([1 + 9, 1 + 4, 4 + 9, 16 + 36, 43**2 + 47**2])
    after = MultiKrum().aggregate(at).values
    assert after.tolist() == pytest.approx([11 / 4])
    assert at.alpha.tolist() == [0.25, 0.25, 0.25, 0.25, 0.0]
    MultiKrum(keep=1).aggregate(at)
    assert at.alpha.tolist() == [0, 1, 0, 0, 0]


@pytest.mark.parametrize(("sites", "f"), [(3, 0), (4, 0), (5, 1), (6, 1), (7, 2), (16, 6)])
def test_as_many_bad_sites_as_there_may_be(sites, f) -> None:
    method = MultiKrum()
    assert method.bad(sites) == f
    method.check(sites)
    MultiKrum(f=f).check(sites)
    with pytest.raises(ConfigError, match=rf"f = {f + 1} needs {2 * f + 5} sites, and there are"):
        MultiKrum(f=f + 1).check(sites)


def test_krum_refuses_two_sites_and_more_models_than_it_has() -> None:
    with pytest.raises(ConfigError, match="multi-krum with f = 0 needs 3 sites, and there are 2"):
        MultiKrum().check(2)
    with pytest.raises(ConfigError, match="keep = 5 is more than K - f = 4"):
        MultiKrum(f=1, keep=5).check(5)
    with pytest.raises(ValidationError):
        MultiKrum(f=-1)
    with pytest.raises(ValidationError):
        MultiKrum(f="all")


# --- robust weights -----------------------------------------------------------------------------


def test_robust_weights_leave_out_the_site_with_the_highest_loss() -> None:
    at = aggregation([[1.0], [2.0], [100.0]], p=[0.3, 0.2, 0.5], probed=[0.4, 0.5, 2.0])
    after = RobustWeights().aggregate(at).values
    assert at.alpha.tolist() == pytest.approx([0.6, 0.4, 0])
    assert after.tolist() == pytest.approx([1.4])
    assert at.memory["ratio"].tolist() == pytest.approx([2, 2, 0])


def test_a_site_whose_loss_falls_comes_back() -> None:
    method = RobustWeights(step=10.0)
    first = aggregation([[1.0]] * 3, probed=[0.4, 0.5, 2.0])
    second = next_round(method, first, [[1.0]] * 3, probed=[0.4, 0.5, 0.36])
    third = next_round(method, second, [[1.0]] * 3, probed=[0.4, 0.5, 0.3])
    assert second.alpha.tolist() == pytest.approx([0.5, 0.5, 0])  # 1.4 less 10 times is not 1.5
    method.aggregate(third)
    assert third.alpha.tolist() == pytest.approx([0.5, 0, 0.5])


def test_a_looser_cap_prefers_low_losses_by_the_step() -> None:
    """r = 1 - L, then less a shift: sum_k r_k / 3 = 1."""
    at = aggregation([[1.0]] * 3, probed=[0.1, 0.4, 0.7])
    RobustWeights(f=0, step=1.0, cap=2.0).aggregate(at)
    assert at.alpha.tolist() == pytest.approx([1.3 / 3, 1.0 / 3, 0.7 / 3])
    RobustWeights(f=0, step=100.0, cap=2.0).aggregate(at)
    assert at.alpha.tolist() == pytest.approx([2 / 3, 1 / 3, 0])


@given(
    st.lists(
        st.tuples(st.floats(-5, 5), st.floats(0.01, 1), st.floats(-1, 1)), min_size=1, max_size=7
    ),
    st.floats(1, 4),
)
def test_the_projection_is_the_nearest_point(entries, cap) -> None:
    """It is in the set, and no other point of the set is nearer."""
    v, p, toward = torch.tensor(entries, dtype=torch.float64).T
    p = p / p.sum()
    x = capped(v, p, cap)
    assert float(p @ x) == pytest.approx(1, abs=1e-9)
    assert float(x.min()) >= 0
    assert float(x.max()) <= cap + 1e-9
    other = capped(v + toward, p, cap)
    for share in (0.01, 0.3, 1.0):
        point = x + share * (other - x)
        assert float(p @ (point - v) ** 2) >= float(p @ (x - v) ** 2) - 1e-9


@given(
    st.lists(st.tuples(st.floats(0, 3), st.floats(0.01, 1)), min_size=3, max_size=7),
    st.integers(0, 3),
    st.floats(0.1, 20),
    st.floats(1, 3),
)
def test_robust_weights_lie_on_the_capped_simplex(sites, f, step, cap) -> None:
    n = len(sites)
    losses, sizes = zip(*sites, strict=True)
    f = min(f, (n - 1) // 2)
    p = [size / sum(sizes) for size in sizes]
    method = RobustWeights(f=f, step=step, cap=cap)
    at = aggregation([[float(k)] for k in range(n)], p=p, probed=list(losses))
    at = next_round(method, at, [[0.0]] * n, probed=list(reversed(losses)))
    method.aggregate(at)
    given = at.alpha > 0
    assert float(at.alpha.sum()) == pytest.approx(1, abs=1e-9)
    assert int(given.sum()) <= n - f
    share = cap * at.fixed / sorted_share(at, method)
    assert bool((at.alpha <= share + 1e-9).all())


def sorted_share(at, method) -> float:
    """The smallest share of cases that n - f sites can have: a bound on every cap."""
    ordered = at.fixed.sort().values
    return float(ordered[: len(ordered) - method.f].sum())


@pytest.mark.parametrize(("sites", "f"), [(1, 1), (2, 1), (4, 2)])
def test_robust_weights_need_a_majority_of_good_sites(sites, f) -> None:
    with pytest.raises(ConfigError, match=f"f = {f} of {sites} sites is half of them or more"):
        RobustWeights(f=f).check(sites)


def test_without_a_step_nothing_tells_which_site_is_bad() -> None:
    with pytest.raises(ConfigError, match="step = 0 does not look at losses"):
        RobustWeights(step=0.0).check(5)
    RobustWeights(f=0, step=0.0).check(1)
    assert "trusts the reported losses" in RobustWeights().cautions(3)[0]


@pytest.mark.parametrize("split", ["train", "validation", "holdout"])
def test_the_loss_is_found_on_the_split_that_was_asked_for(split) -> None:
    method = RobustWeights(learn_on=split, batches=2)
    request = method.local(aggregation([[1.0]]).layout)
    assert request.facts() == {"probe": {"split": split, "batches": 2}}
    assert method.learns_on == split


# --- absent sites -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", [TrimmedMean(trim=0.4), GeometricMedian(), MultiKrum(f=1), RobustWeights()], ids=named
)
def test_a_site_that_is_absent_has_no_weight_and_keeps_its_state(method) -> None:
    deltas = [[1.0], [2.0], [4.0], [9.0]]
    at = aggregation(deltas, sites="ABCDE", probed=[1.0, 2.0, 0.5, 0.1])
    at.memory["ratio"] = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.7], dtype=torch.float64)
    after = method.aggregate(at).values
    assert 1 <= float(after) <= 9
    assert float(at.memory["ratio"][4]) == 1.7
    if at.alpha is not None:
        assert at.alpha[4] == 0
        assert float(at.alpha.sum()) == pytest.approx(1)


@pytest.mark.parametrize(
    "method",
    [TrimmedMean(trim=0.4), GeometricMedian(), MultiKrum(), RobustWeights(cap=2.0)],
    ids=named,
)
def test_runs_go_on_without_an_absent_site_and_resume_with_the_same_bits(method) -> None:
    def fleet():
        return DirectFleet(toy_problem(3), intercept=lose("B", verb="local_train", t=2))

    whole = rounds_of(method, fleet(), 4, quorum=2)
    rest = rounds_of(method, fleet(), 4, whole[1], quorum=2)
    assert torch.equal(whole[-1].w.values, rest[-1].w.values)
    if "ratio" in whole[0].memory:
        assert whole[0].memory["ratio"][1] == whole[1].memory["ratio"][1]


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (TrimmedMean, {"trim": 0.5}),
        (TrimmedMean, {"trim": -0.1}),
        (GeometricMedian, {"iterations": -1}),
        (GeometricMedian, {"epsilon": 0.0}),
        (MultiKrum, {"keep": -1}),
        (RobustWeights, {"f": -1}),
        (RobustWeights, {"cap": 0.9}),
        (RobustWeights, {"step": math.inf}),
        (RobustWeights, {"batches": 0}),
        (RobustWeights, {"learn_on": "test"}),
    ],
)
def test_settings_out_of_range_are_refused(kind, wrong) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        kind(**wrong)
