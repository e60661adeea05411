"""Weights from losses, scores and class counts: the answers of the methods' papers, by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from aggregations import aggregation, next_round
from autofedavg.algorithm import Round
from autofedavg.core.errors import ConfigError, FederationError
from autofedavg.core.trainer import Training
from autofedavg.federation.messages import Score, Scores
from autofedavg.federation.port import Federation
from autofedavg.methods.afl import AFL
from autofedavg.methods.fedavg import FedAvg
from autofedavg.methods.fedce import FedCE
from autofedavg.methods.fedcostwavg import FedCostWAvg
from autofedavg.methods.feddisco import FedDisco
from autofedavg.methods.fedpidavg import FedPIDAvg
from autofedavg.methods.ga import GeneralizationAdjustment
from autofedavg.methods.q_fedavg import QFedAvg
from autofedavg.methods.shared.simplex import present, project, replaced, shares
from toy import METRIC, DirectFleet, float64, lose, rounds_of, toy_problem

MOVES = [[0.1, 0.7], [0.3, -0.2], [0.5, 0.9]]
P = [0.2, 0.3, 0.5]
LISTS = st.lists(st.floats(-10, 10), min_size=1, max_size=8)


def fedavgs(at) -> torch.Tensor:
    return FedAvg().aggregate(at).values


def close(found, wanted) -> None:
    torch.testing.assert_close(found, float64(wanted), rtol=0, atol=1e-12)


# --- the simplex --------------------------------------------------------------------------------


def test_the_projection_of_afl_s_page() -> None:
    close(project(float64([1.2, 0.3])), [0.95, 0.05])
    close(project(float64([3.0, 0.3])), [1.0, 0.0])
    assert project(float64([3.0, 0.3]), 0.0).tolist() == [0.0, 0.0]


@given(LISTS, st.floats(0.01, 5))
def test_a_projection_is_on_the_simplex_and_nearest_to_its_point(v, total) -> None:
    point = float64(v)
    found = project(point, total)
    assert found.min() >= 0
    assert found.sum().item() == pytest.approx(total, abs=1e-9)
    for k in range(len(v)):  # no corner lies in the direction of the point
        corner = torch.zeros_like(point)
        corner[k] = total
        assert (point - found) @ (corner - found) <= 1e-8
    torch.testing.assert_close(project(found, total), found, rtol=0, atol=1e-9)


@given(LISTS, st.randoms())
def test_a_projection_permutes_with_its_point(v, chance) -> None:
    order = list(range(len(v)))
    chance.shuffle(order)
    assert torch.equal(project(float64(v)[order]), project(float64(v))[order])


def test_shares_of_nothing_are_even_and_absent_clients_keep_theirs() -> None:
    assert shares(float64([0.0, 0.0])).tolist() == [0.5, 0.5]
    weights, rows = float64([0.2, 0.3, 0.5]), torch.tensor([0, 1])
    close(present(weights, rows), [0.4, 0.6])
    close(replaced(weights, rows, float64([0.9, 0.1])), [0.45, 0.05, 0.5])
    assert torch.equal(present(weights, torch.arange(3)), weights)


# --- GA -------------------------------------------------------------------------------------------


def scored(at, own, of_w):
    """Lets the clients of a round answer with these scores of their own models and of w."""
    names = at.federation.names
    answer = (dict(zip(names, of_w, strict=False)), dict(zip(names, own, strict=False)))
    at.federation.validated = lambda t, w, w_k: answer
    return at


def ga_weights(method, at) -> list[float]:
    method.after(at, method.aggregate(at))
    return at.memory["weights"].tolist()


def test_ga_moves_weight_to_the_site_that_the_average_serves_worse() -> None:
    """Gaps (.4, -.2), s = .2 (1 - 5/10) = .1: (.5 + .05, .5 - .025), divided by the sum 1.025."""
    at = scored(aggregation([[1.0], [0.0]], t=5, T=10), own=[0.9, 0.5], of_w=[0.5, 0.7])
    assert GeneralizationAdjustment().aggregate(at).values.tolist() == [0.5]
    assert ga_weights(GeneralizationAdjustment(), at) == pytest.approx(
        [0.55 / 1.025, 0.475 / 1.025]
    )
    following = next_round(GeneralizationAdjustment(), at, [[1.0], [0.0]])
    GeneralizationAdjustment().aggregate(following)
    assert following.alpha.tolist() == at.memory["weights"].tolist()


@pytest.mark.parametrize("gap", [0.0, 0.3])
def test_ga_of_equal_gaps_leaves_even_weights(gap) -> None:
    at = scored(aggregation(MOVES), own=[0.5 + gap] * 3, of_w=[0.5] * 3)
    assert ga_weights(GeneralizationAdjustment(), at) == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("change", [{"step": 0.0}, {}])
def test_ga_without_a_step_and_in_round_1_is_fedavg_even_bit_for_bit(change) -> None:
    at = scored(aggregation(MOVES, [0.3, 0.1]), own=[0.9, 0.1, 0.3], of_w=[0.5] * 3)
    assert torch.equal(GeneralizationAdjustment(**change).aggregate(at).values, fedavgs(at))
    if change:
        assert ga_weights(GeneralizationAdjustment(**change), at) == [1 / 3] * 3


def test_ga_leaves_absent_sites_alone() -> None:
    at = scored(aggregation(MOVES[:2], sites="ABC"), own=[0.9, 0.5], of_w=[0.5, 0.7])
    found = ga_weights(GeneralizationAdjustment(step=1.0), at)
    assert found[0] > 1 / 3 > found[1]
    assert found[2] == 1 / 3
    assert sum(found) == pytest.approx(1)
    assert at.alpha.tolist() == [0.5, 0.5, 0.0]
    silent = scored(aggregation(MOVES), own=[0.9], of_w=[0.5, 0.1])  # B and C did not validate
    assert ga_weights(GeneralizationAdjustment(step=1.0), silent) == pytest.approx([1 / 3] * 3)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=6))
def test_ga_stays_on_the_simplex(pairs) -> None:
    own, of_w = zip(*pairs, strict=True)
    at = scored(aggregation([[1.0]] * len(pairs)), own, of_w)
    for _ in range(3):
        found = ga_weights(GeneralizationAdjustment(step=1.0), at)
        assert min(found) >= 0
        assert sum(found) == pytest.approx(1)


def test_ga_validates_once_and_the_run_is_given_its_scores() -> None:
    transport = DirectFleet(toy_problem(3))
    federation = Federation(transport, metric=METRIC)
    w0, layout = transport.problem.initial(transport.seeds)
    for state in GeneralizationAdjustment().rounds(federation, layout, 2, Round(0, w0)):
        federation.validate_local(state.t, state.w_k, METRIC)
        federation.evaluate(state.w, "validation", METRIC, t=state.t)
    for verb in ("validate_local", "evaluate"):
        assert len(transport.sent(verb, "A")) == 2


# --- FedCostWAvg and FedPIDAvg --------------------------------------------------------------------


def after_losses(method, *losses, **how):
    """The last of rounds with these losses, aggregated."""
    at = aggregation([[1.0], [0.0]], p=[0.2, 0.8], losses=losses[0], **how)
    for row in losses[1:]:
        at = next_round(method, at, [[1.0], [0.0]], losses=row)
    method.aggregate(at)
    return at.alpha.tolist()


def test_fedcostwavg_weighs_by_size_and_by_the_fall_of_the_loss() -> None:
    """r = (4/2, 3/3): half of (.2, .8) and half of (2/3, 1/3)."""
    assert after_losses(FedCostWAvg(), [4.0, 3.0]) == [0.2, 0.8]
    found = after_losses(FedCostWAvg(), [4.0, 3.0], [2.0, 3.0])
    assert found == pytest.approx([0.1 + 1 / 3, 0.4 + 1 / 6])
    assert after_losses(FedCostWAvg(), [4.0, 3.0], [0.0, 3.0]) == pytest.approx([0.6, 0.4])


def test_fedpidavg_weighs_by_size_fall_and_sum() -> None:
    """d = (2, 0), as a loss that rises counts as 0; m = (4 + 2, 3 + 4)."""
    found = after_losses(FedPIDAvg(), [4.0, 3.0], [2.0, 4.0])
    assert found == pytest.approx([0.45 * 0.2 + 0.45 + 0.1 * 6 / 13, 0.45 * 0.8 + 0.1 * 7 / 13])
    nobody = after_losses(FedPIDAvg(), [1.0, 1.0], [3.0, 1.0])  # sizes take the part of the falls
    assert nobody == pytest.approx([0.9 * 0.2 + 0.1 * 4 / 6, 0.9 * 0.8 + 0.1 * 2 / 6])
    two = after_losses(FedPIDAvg(window=2), [9.0, 1.0], [4.0, 3.0], [2.0, 4.0])
    assert two == pytest.approx(found)  # the first round's losses lie outside
    rows = ([9.0, 9.0], [4.0, 3.0], [2.0, 4.0], [1.0, 5.0])  # m = (4 + 2 + 1, 3 + 4 + 5)
    three = after_losses(FedPIDAvg(window=3), *rows)
    assert three == pytest.approx([0.45 * 0.2 + 0.45 + 0.1 * 7 / 19, 0.45 * 0.8 + 0.1 * 12 / 19])


@pytest.mark.parametrize(
    "method", [FedCostWAvg(size_share=1.0), FedPIDAvg(difference=0.0, integral=0.0)], ids=str
)
def test_without_losses_they_are_fedavg_bit_for_bit(method) -> None:
    at = aggregation(MOVES, [0.3, 0.1], P, losses=[3.0, 2.0, 1.0])
    for losses in ([2.0, 2.5, 0.1], [1.0, 2.6, 0.2]):
        assert torch.equal(method.aggregate(at).values, fedavgs(at))
        at = next_round(method, at, MOVES, losses=losses)


@pytest.mark.parametrize("method", [FedCostWAvg(), FedPIDAvg()], ids=str)
def test_a_site_that_comes_back_goes_on_from_its_own_losses(method) -> None:
    first = aggregation(MOVES, p=P, losses=[3.0, 2.0, 1.0])
    away = next_round(method, first, MOVES[:2], sites="ABC", losses=[1.0, 1.0])
    method.aggregate(away)
    assert away.memory["losses"][2, 0] == 1.0
    assert away.alpha[2] == 0
    assert float(away.alpha.sum()) == pytest.approx(1)
    late = aggregation(MOVES[:2], p=P, sites="ABC", losses=[3.0, 2.0])
    back = next_round(method, late, MOVES, losses=[2.0, 1.0, 9.0])  # C has no earlier loss
    method.aggregate(back)
    assert torch.isfinite(back.alpha).all()
    assert float(back.alpha.sum()) == pytest.approx(1)


@pytest.mark.parametrize("method", [FedCostWAvg(), FedPIDAvg(), QFedAvg()], ids=str)
def test_negative_losses_are_refused(method) -> None:
    told = {"losses": [1.0, -0.5], "probed": [1.0, -0.5], "rate": [1.0, 1.0]}
    wrong = r"the loss of site B in round 1 is -0.5; the method needs losses that are never neg"
    with pytest.raises(ConfigError, match=wrong):
        method.aggregate(aggregation([[1.0], [0.0]], **told))


# --- AFL and q-FedAvg -----------------------------------------------------------------------------


def test_afl_climbs_and_projects() -> None:
    """(.5, .5) + .1 (8, 1) is, on the simplex, (.85, .15); round 1 is still FedAvg."""
    at = aggregation([[1.0], [0.0]], probed=[8.0, 1.0])
    following = next_round(AFL(floor=0.0), at, [[1.0], [0.0]], probed=[8.0, 8.5])
    assert following.w.values.tolist() == [0.5]
    close(at.memory["weights"], [0.85, 0.15])
    assert AFL(floor=0.0).aggregate(following).values.tolist() == pytest.approx([0.5 + 0.85])
    close(following.memory["weights"], [0.85 - 0.0225, 0.15 + 0.0225])  # gamma is .09 now


def test_afl_s_floor_holds_exactly() -> None:
    at = aggregation([[1.0], [0.0], [0.0]], probed=[50.0, 1.0, 2.0])
    AFL().aggregate(at)
    close(at.memory["weights"], [0.998, 0.001, 0.001])


@pytest.mark.parametrize(("change", "probed"), [({"rate": 0.0}, [9.0, 1.0, 2.0]), ({}, [2.0] * 3)])
def test_afl_without_a_rate_or_of_equal_losses_is_fedavg_bit_for_bit(change, probed) -> None:
    at = aggregation(MOVES, [0.3, 0.1], P, probed=probed)
    for _ in range(2):
        assert torch.equal(AFL(**change).aggregate(at).values, fedavgs(at))
        at = next_round(AFL(**change), at, MOVES, probed=probed)


def test_afl_leaves_absent_sites_alone() -> None:
    at = aggregation(MOVES[:2], p=P, sites="ABC", probed=[9.0, 1.0])
    AFL().aggregate(at)
    close(at.memory["weights"], [0.499, 0.001, 0.5])
    tiny = aggregation(MOVES[:2], p=[1e-4, 1e-4, 1 - 2e-4], sites="ABC", probed=[9.0, 1.0])
    AFL().aggregate(tiny)  # together they have less than two floors
    close(tiny.memory["weights"], [1e-4, 1e-4, 1 - 2e-4])


@given(st.lists(st.floats(0, 100), min_size=2, max_size=6), st.randoms())
def test_afl_stays_on_the_simplex_and_permutes_with_the_sites(losses, chance) -> None:
    order = list(range(len(losses)))
    chance.shuffle(order)
    found = []
    for probed in (losses, [losses[k] for k in order]):
        at = aggregation([[1.0]] * len(losses), probed=probed)
        AFL().aggregate(at)
        found.append(at.memory["weights"])
    assert found[0].min() >= 1e-3 - 1e-12
    assert found[0].sum().item() == pytest.approx(1)
    torch.testing.assert_close(found[1], found[0][order])


def test_afl_refuses_a_floor_that_leaves_nothing() -> None:
    with pytest.raises(ConfigError, match=r"floor is 0.25, and 4 sites .*; set method.floor below"):
        AFL(floor=0.25).check(4)
    AFL(floor=0.25).check(3)


def test_q_fedavg_of_the_paper_s_rule() -> None:
    """q = 1, eta = .5, Delta = (1, -2), L = (3, 1): G = -Delta / eta, written out."""
    at = aggregation([[1.0], [-2.0]], probed=[3.0, 1.0], rate=[0.5, 0.5])
    g, h = (-2.0, 4.0), (2.0**2 + 3 / 0.5, 4.0**2 + 1 / 0.5)
    wanted = -(3 * g[0] + 1 * g[1]) / sum(h)
    assert QFedAvg(q=1.0).aggregate(at).values.tolist() == pytest.approx([wanted])
    assert at.alpha.tolist() == pytest.approx([0.75, 0.25])
    q = 2.5
    g2 = [x * L**q for x, L in zip(g, (3, 1), strict=True)]
    h2 = [q * L ** (q - 1) * x**2 + L**q / 0.5 for x, L in zip(g, (3, 1), strict=True)]
    found = QFedAvg(q=q).aggregate(at).values.tolist()
    assert found == pytest.approx([-sum(g2) / sum(h2)])


def test_q_fedavg_of_zero_is_fedavg_even_bit_for_bit() -> None:
    zero, even = (
        rounds_of(method, DirectFleet(toy_problem(3)), 3)[-1]
        for method in (QFedAvg(q=0.0), FedAvg(weights="even"))
    )
    assert torch.equal(zero.w.values, even.w.values)
    assert torch.equal(zero.alpha, even.alpha)


@pytest.mark.parametrize("q", [0.5, 100.0])
@pytest.mark.parametrize("losses", [[0.0, 0.0], [0.0, 1.0], [1e5, 1e-9]])
def test_q_fedavg_is_finite_for_any_losses(q, losses) -> None:
    at = aggregation([[1.0], [-2.0]], probed=losses, rate=[0.1, 0.1])
    assert torch.isfinite(QFedAvg(q=q).aggregate(at).values).all()
    assert float(at.alpha.sum()) == pytest.approx(1)


def test_clients_tell_the_step_size_of_the_round() -> None:
    training = Training(
        iterations=1, optimiser="sgd", momentum=0.0, learning_rate=0.1, schedule="cosine"
    )
    transport = DirectFleet(toy_problem(2), training)
    w0, layout = transport.problem.initial(transport.seeds)
    request = QFedAvg().local(layout)
    trained = Federation(transport).local_train(2, w0, T=4, request=request)
    assert trained.rate == dict.fromkeys("AB", training.rate(2, 4))
    assert set(trained.probed) == {"A", "B"}


# --- FedDisco -------------------------------------------------------------------------------------


def disco(counts, p=None, sites=None, **change):
    """The weights of sites with these class counts."""
    rows = len(counts) if sites is None else len(counts) - 1
    at = aggregation([[1.0]] * rows, p=p, sites=sites)
    at.memory["classes"] = float64(counts)
    FedDisco(**change).aggregate(at)
    return at.alpha


def test_feddisco_of_equal_counts_adds_the_offset_alone() -> None:
    close(disco([[5, 5], [3, 3]], [0.2, 0.8]), [0.3 / 1.2, 0.9 / 1.2])
    close(disco([[6, 2], [3, 1]], [0.2, 0.8], reference="global"), [0.3 / 1.2, 0.9 / 1.2])


def test_feddisco_by_hand() -> None:
    """KL to uniform: ln 2 of a site with one class, 0 of an even one; so d = (1, 0)."""
    close(disco([[4, 0], [2, 2]], penalty=0.5), [0.1 / 0.7, 0.6 / 0.7])
    close(disco([[4, 0], [2, 2]], penalty=0.7), [0.0, 1.0])
    close(disco([[4, 0], [0, 4]], penalty=9.0), [0.5, 0.5])  # nothing is left: sizes
    # To all sites' (3/4, 1/4): ln 4/3, and (ln 2/3 + ln 2) / 2.
    first, second = 0.28768207245178085, 0.14384103622589042
    wanted = [0.6 - 0.5 * first / (first + second), 0.6 - 0.5 * second / (first + second)]
    close(disco([[4, 0], [2, 2]], reference="global"), [x / sum(wanted) for x in wanted])


def test_feddisco_divides_among_those_that_replied() -> None:
    found = disco([[4, 0], [2, 2], [0, 9]], sites="ABC")
    close(found, [0.1 / 0.7, 0.6 / 0.7, 0.0])


def test_feddisco_without_penalty_and_offset_is_fedavg_bit_for_bit() -> None:
    at = aggregation(MOVES, [0.3, 0.1], P)
    neutral = FedDisco(penalty=0.0, offset=0.0)
    assert torch.equal(neutral.aggregate(at).values, fedavgs(at))


def test_feddisco_asks_once_before_training_and_tells_who_cannot_answer() -> None:
    transport = DirectFleet(toy_problem(3))
    done = rounds_of(FedDisco(), transport, 3)
    assert [verb for verb, site, _ in transport.asked if site == "A"].count("class_counts") == 1
    assert transport.asked[0][0] == "class_counts"
    counted = [site.class_counts() for site in transport.problem.sites.values()]
    assert done[-1].memory["classes"].tolist() == counted
    asks = [FedDisco().asks(t, 3, None).get("class_counts", []) for t in (1, 2, 3)]
    assert asks == [[{}], [], []]


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        (None, "site B does not know its class counts"),
        ([0, 0, 0], "site B does not know its class counts"),
        ([1, 2], "site B knows 2 classes"),
    ],
)
def test_feddisco_refuses_sites_that_do_not_know_their_classes(told, wrong) -> None:
    problem = toy_problem(2)
    problem.sites["B"].class_counts = lambda: told
    with pytest.raises(ConfigError, match=wrong):
        rounds_of(FedDisco(), DirectFleet(problem), 2)


def test_feddisco_refuses_to_start_without_a_site() -> None:
    transport = DirectFleet(toy_problem(3), intercept=lose("B", verb="class_counts"))
    with pytest.raises(FederationError, match=r"client B, class_counts, round 1: feddisco needs"):
        rounds_of(FedDisco(), transport, 2, quorum=2)


# --- FedCE ----------------------------------------------------------------------------------------


def judged(at, scores):
    """Lets clients answer with these scores of the models without them, which it returns."""
    sent = {}

    def evaluate(models, split, metric, t):
        assert (split, metric, t) == ("validation", "accuracy", at.t)
        sent.update(models)
        told = zip(models, scores, strict=False)
        return Scores(tuple(Score(site, "0", metric, value) for site, value in told))

    at.federation.evaluate = evaluate
    return sent


def test_fedce_of_identical_sites_is_even() -> None:
    at = aggregation([[1.0, 2.0]] * 3, p=P)
    for _ in range(3):
        judged(at, [0.7] * 3)
        FedCE().after(at, FedCE().aggregate(at))
        close(at.alpha, [1 / 3] * 3)
        at = next_round(FedCE(), at, [[1.0, 2.0]] * 3)


def test_fedce_by_hand() -> None:
    """Cosines 0, 1/sqrt(2), 1/sqrt(2) to the others' sums; then scores .8, .6, .6 without them."""
    moves = [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    at = aggregation(moves)
    FedCE().aggregate(at)
    half = 2**-0.5
    far = [1.0, 1 - half, 1 - half]
    parts = [(x / sum(far) + 1 / 3) / 2 for x in far]
    assert at.alpha.tolist() == pytest.approx(parts)
    sent = judged(at, [0.8, 0.6, 0.6])
    FedCE().after(at, at.mean)
    a = at.alpha
    for k, site in enumerate("ABC"):
        w = at.w_k.combine(a).values
        close(sent[site].values, ((w - a[k] * at.w_k[site].values) / (1 - a[k])).tolist())
    cosines = at.memory["cosines"].clone()
    at.t = 2
    FedCE(combine="times").aggregate(at)
    # Now with those weights: B lies along b A + c C.
    b = a[0] / (a[0] ** 2 + a[2] ** 2).sqrt()
    second = [0.0, float((1 - b**2).sqrt()), float((1 - b**2).sqrt())]
    close(at.memory["cosines"][0], (cosines[0] + float64(second)).tolist())
    means = [(x + y) / 2 for x, y in zip([0.0, half, half], second, strict=True)]
    product = [(1 - m) * (1 - s) for m, s in zip(means, [0.8, 0.6, 0.6], strict=True)]
    assert at.alpha.tolist() == pytest.approx([x / sum(product) for x in product])


def test_fedce_with_one_site_or_sites_that_did_not_move() -> None:
    alone = aggregation([[1.0, 2.0]])
    model = FedCE().aggregate(alone)
    FedCE().after(alone, model)  # asks for nothing
    assert torch.equal(model.values, fedavgs(alone))
    still = aggregation([[0.0], [0.0]])
    FedCE().aggregate(still)
    assert still.alpha.tolist() == [0.5, 0.5]


def test_fedce_leaves_absent_sites_alone() -> None:
    at = aggregation([[1.0, 0.0], [-1.0, 0.5]], sites="ABC")
    judged(at, [0.9])  # B is lost
    FedCE().after(at, FedCE().aggregate(at))
    assert at.memory["weights"][2] == 1 / 3
    assert at.memory["weights"].sum().item() == pytest.approx(1)
    assert at.memory["cosines"][1].tolist() == [1, 1, 0]
    assert at.memory["scores"].tolist() == [[0.9, 0, 0], [1, 0, 0]]
    following = next_round(FedCE(), at, [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    FedCE().aggregate(following)
    assert torch.isfinite(following.alpha).all()
    assert following.alpha.min() > 0


# --- all ------------------------------------------------------------------------------------------

ALL = [AFL, FedCE, FedCostWAvg, FedDisco, FedPIDAvg, GeneralizationAdjustment]


@pytest.mark.parametrize("kind", [*ALL, QFedAvg])
def test_one_run_with_a_site_that_is_away(kind) -> None:
    """Finite models; a resume from any round has the same bits."""
    away = {"intercept": lose("B", verb="local_train", t=2)}

    def run(start=None):
        transport = DirectFleet(toy_problem(3), **away)
        federation = Federation(transport, quorum=2, metric=METRIC)
        w0, layout = transport.problem.initial(transport.seeds)
        begun = start or kind().begin(federation, Round(0, w0))
        return list(kind().rounds(federation, layout, 4, begun))

    whole = run()
    assert whole[1].w_k.sites == ("A", "C")
    for state in whole:
        assert torch.isfinite(state.w.values).all()
        assert float(state.alpha.sum()) == pytest.approx(1)
    again = run(whole[1])
    assert torch.equal(again[-1].w.values, whole[-1].w.values)
    assert torch.equal(again[-1].alpha, whole[-1].alpha)


@pytest.mark.parametrize("kind", ALL)
def test_one_site_gives_fedavg_bit_for_bit(kind) -> None:
    def last(method):
        transport = DirectFleet(toy_problem(1))
        federation = Federation(transport, metric=METRIC)
        w0, layout = transport.problem.initial(transport.seeds)
        begun = method.begin(federation, Round(0, w0))
        *_, state = method.rounds(federation, layout, 3, begun)
        return state.w.values

    assert torch.equal(last(kind()), last(FedAvg()))
    layout = toy_problem(1).initial(DirectFleet(toy_problem(1)).seeds)[1]
    assert kind().equals_fedavg(1, layout, Training()) == "one site has all the weight"
    assert kind().equals_fedavg(2, layout, Training()) == ""


@pytest.mark.parametrize(
    "method",
    [
        AFL(rate=0.0),
        FedCostWAvg(size_share=1.0),
        FedDisco(penalty=0.0, offset=0.0),
        FedPIDAvg(difference=0.0, integral=0.0),
        GeneralizationAdjustment(step=0.0),
        QFedAvg(q=0.0),
    ],
    ids=str,
)
def test_neutral_settings_say_so(method) -> None:
    assert method.equals_fedavg(3, None, Training())


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (AFL, {"rate": -0.1}),
        (AFL, {"decay": 0.0}),
        (AFL, {"floor": -0.1}),
        (AFL, {"learn_on": "test"}),
        (AFL, {"batches": 0}),
        (FedCE, {"combine": "minus"}),
        (FedCostWAvg, {"size_share": 1.1}),
        (FedDisco, {"penalty": -1.0}),
        (FedDisco, {"offset": float("nan")}),
        (FedPIDAvg, {"difference": 0.7, "integral": 0.4}),
        (FedPIDAvg, {"window": 0}),
        (GeneralizationAdjustment, {"step": 1.5}),
        (QFedAvg, {"q": -1.0}),
        (QFedAvg, {"q": float("inf")}),
    ],
)
def test_bad_settings_are_refused(kind, change) -> None:
    with pytest.raises(ValidationError):
        kind(**change)


def test_methods_that_use_validation_cases_say_so() -> None:
    assert GeneralizationAdjustment().learns_on == FedCE().learns_on == "validation"
    assert AFL(learn_on="holdout").learns_on == "holdout"
    assert QFedAvg().learns_on is None
