"""Where a method must give FedAvg's bits: neutral settings, one site, sites that are alike.

Every registered method is in one of two lists for each: those that promise it, and those that do
not, with the reason.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import nn

from autofedavg.core.bank import Bank, Layout
from autofedavg.core.trainer import Training
from autofedavg.methods import METHODS
from method_rounds import NETWORKS, TRAINING, norm_chain, norm_net, plain_chain, problem, rounds

HUGE = 2.0**60  # as tau: sums with it round to it, and divisions by it are exact


class Neutral(NamedTuple):
    """Settings, weights of the FedAvg that they give, network and training that it takes."""

    settings: dict[str, object] = {}  # noqa: RUF012 - never changed
    weights: str = "size"
    network: Callable[[], nn.Module] = norm_net
    training: Training = TRAINING


NEUTRAL = {
    "afl": Neutral({"rate": 0}),
    "apfl": Neutral(),  # of the personal methods: their global model
    "auto-fedavg": Neutral({"t0": 99}, "even"),
    "ditto": Neutral(),
    "fedadagrad": Neutral({"beta1": 0, "tau": HUGE, "server_rate": 2 * HUGE}),
    "fedadam": Neutral({"beta1": 0, "beta2": 0, "tau": HUGE, "server_rate": HUGE}),
    "fedavg-ft": Neutral(),
    "fedavgm": Neutral({"momentum": 0, "server_rate": 1}),
    "fedbe": Neutral({"steps": 0}),
    "fedbn": Neutral(network=plain_chain),
    "fedcostwavg": Neutral({"size_share": 1}),
    "feddf": Neutral({"steps": 0}),
    "feddisco": Neutral({"penalty": 0, "offset": 0}),
    "fedexp": Neutral({"average": False, "epsilon": 1e9}),
    "fedlaw": Neutral({"S": 0}),
    "fedlws": Neutral({"strength": 0, "least": 0}),
    "fednova": Neutral(training=Training(iterations=2, learning_rate=0.05)),
    "fedpidavg": Neutral({"difference": 0, "integral": 0}),
    "fedprox": Neutral({"mu": 0}),
    "fedyogi": Neutral({"beta1": 0, "tau": HUGE, "server_rate": 2 * HUGE}),
    "ga": Neutral({"step": 0}, "even"),
    "geometric-median": Neutral({"iterations": 0}),
    "ima": Neutral({"window": 1}),
    "l2gd": Neutral({"share": 1}, "even"),
    "multi-krum": Neutral({"f": 0}, "even"),
    "q-fedavg": Neutral({"q": 0}, "even"),
    "robust-weights": Neutral({"f": 0, "step": 0}),
    "trimmed-mean": Neutral({"trim": 0}, "even", plain_chain),  # buffers are averaged by size
}
NO_NEUTRAL = {
    "ensemble": "nothing is averaged",
    "fedavg": "it is FedAvg",
    "fedawa": "softmax(p) is never p; sites that are alike and one site are tested below",
    "fedce": "weights follow the contributions alone, without a setting for how far",
    "fedma": "a round exchanges one layer",
    "fltrust": "updates always get the length of the server's",
    "l-dawa": "cosines are below 1 wherever a tensor turns",
    "local-only": "nothing is averaged",
    "median": "a median has no strength; one site is tested below",
    "pfedme": "w_k takes steps of another kind",
    "scaffold": "corrections have no strength; sites alike and one site are tested below",
}

SHRINKS = "it moves or shrinks the average itself"
STEPS = "server steps are not of length 1"
ONE_SITE = {
    "afl", "apfl", "ditto", "fedavg", "fedavg-ft", "fedawa", "fedbn", "fedce", "fedcostwavg",
    "feddisco", "fednova", "fedpidavg", "ga", "geometric-median", "l2gd", "local-only", "median",
    "scaffold", "trimmed-mean",
}  # fmt: skip
NOT_WITH_ONE_SITE = {
    "auto-fedavg": "refuses one site",
    "ensemble": "sites start from initial weights of their own",
    "fedadagrad": STEPS,
    "fedadam": STEPS,
    "fedavgm": STEPS,
    "fedbe": SHRINKS,
    "feddf": SHRINKS,
    "fedexp": "the model of a round is the mean of two",
    "fedlaw": SHRINKS,
    "fedlws": SHRINKS,
    "fedma": "a round exchanges one layer",
    "fedprox": "the pull is there with one site as well",
    "fedyogi": STEPS,
    "fltrust": SHRINKS,
    "ima": "the model of a round is the mean of several",
    "l-dawa": SHRINKS,
    "multi-krum": "refuses fewer than three sites",
    "pfedme": "w_1 takes steps of another kind",
    "q-fedavg": "the step is shorter where the loss is steep",
    "robust-weights": "f = 1 refuses one site",
}
# With sites that are alike any weights that sum to one give FedAvg's model.
ALIKE = ONE_SITE | {"auto-fedavg", "multi-krum", "robust-weights"}
# `check` does not know it: personal rows differ in their personal models, T is not known to it,
# and nobody sets a server's step to 2^60.
UNSAID = {"apfl", "auto-fedavg", "ditto", "fedadagrad", "fedadam", "fedavg-ft", "fedexp", "fedyogi"}
OTHERS = {  # whose defaults are neutral with three sites or few rounds
    "ima": METHODS["ima"](start=0.0),
    "multi-krum": METHODS["multi-krum"](keep=2),
    "trimmed-mean": METHODS["trimmed-mean"](trim=0.4),
}
SAMPLE = Layout.of(norm_net())


@pytest.mark.parametrize(
    ("promised", "others"),
    [(NEUTRAL, NO_NEUTRAL), (ONE_SITE, NOT_WITH_ONE_SITE)],
    ids=["neutral settings", "one site"],
)
def test_every_method_is_in_one_of_the_lists(promised, others) -> None:
    assert set(promised) | set(others) == set(METHODS)
    assert not set(promised) & set(others)


@pytest.mark.parametrize("name", sorted(NEUTRAL))
def test_neutral_settings_give_fedavgs_bits(name) -> None:
    neutral = NEUTRAL[name]
    method = METHODS[name](**neutral.settings)
    fedavg = METHODS["fedavg"](weights=neutral.weights)
    same_bits(method, fedavg, lambda: problem(neutral.network), neutral.training)


@pytest.mark.parametrize("name", sorted(set(NEUTRAL) - UNSAID))
def test_check_says_so_of_neutral_settings(name) -> None:
    neutral = NEUTRAL[name]
    layout = Layout.of(neutral.network())
    method = METHODS[name](**neutral.settings)
    assert method.equals_fedavg(3, layout, neutral.training)
    assert not OTHERS.get(name, METHODS[name]()).equals_fedavg(3, SAMPLE, TRAINING)


@pytest.mark.parametrize("name", sorted(name for name in NEUTRAL if NEUTRAL[name].settings))
def test_other_settings_do_not(name) -> None:
    """Else the test above would compare nothing."""
    neutral = NEUTRAL[name]
    ours, fedavg = (
        rounds(method, given=problem(neutral.network), training=neutral.training)[-1].w
        for method in (
            OTHERS.get(name, METHODS[name]()),
            METHODS["fedavg"](weights=neutral.weights),
        )
    )
    assert not torch.equal(ours.values, fedavg.values)


@pytest.mark.parametrize("name", sorted(ONE_SITE))
def test_one_site_gives_fedavgs_bits(name) -> None:
    network = NETWORKS.get(name, norm_net)
    same_bits(METHODS[name](), METHODS["fedavg"](), lambda: problem(network, ("A",)))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_check_says_no_more_of_one_site_than_is_promised(name) -> None:
    if METHODS[name]().equals_fedavg(1, SAMPLE, TRAINING):
        assert name in ONE_SITE | {"multi-krum"}


@pytest.mark.parametrize("name", sorted(ALIKE))
def test_sites_that_are_alike_give_fedavgs_model(name) -> None:
    """To rounding: weights that sum to one, times equal numbers, may round differently."""
    names = ("A", "B", "C", "D")
    ours, fedavg = (
        rounds(method, given=problem(norm_chain, names, alike=True))
        for method in (METHODS[name](), METHODS["fedavg"]())
    )
    for mine, plain in zip(ours, fedavg, strict=True):
        w = mine.w.values if isinstance(mine.w, Bank) else mine.w.values[None]
        torch.testing.assert_close(w, plain.w.values.expand_as(w), rtol=1e-5, atol=1e-6)


def same_bits(method, fedavg, given, training: Training = TRAINING) -> None:
    """All rounds of two methods have the same global model, counters too."""
    ours, plain = (rounds(m, given=given(), training=training) for m in (method, fedavg))
    for mine, other in zip(ours, plain, strict=True):
        assert mine.w.values.flatten().numpy().tobytes() == other.w.values.numpy().tobytes()
        assert mine.w.counters.flatten().tolist() == other.w.counters.tolist()
