"""Every registered method passes this battery by being registered."""

import json
from dataclasses import asdict
from typing import get_args

import pytest
import torch

from autofedavg.core.settings import origins
from autofedavg.methods import METHODS
from autofedavg.methods.auto_fedavg import AutoFedAvg
from autofedavg.methods.base import Family
from method_changes import CHANGES, FEWER_STEPS
from method_rounds import SITES, bits, rounds, whole_bits

BLIND = {
    "auto-fedavg blind": {},
    "auto-fedavg blind by layer": {"weights": "layer", "constraint": "softmax", "sketch": 12},
    "auto-fedavg blind auto": {"t0": "auto", "batches": 2, "constraint": "softmax"},
}


@pytest.fixture(params=[*METHODS, *BLIND])
def method(request):
    if request.param in BLIND:
        return AutoFedAvg(learning="blind", **BLIND[request.param])
    return METHODS[request.param](**FEWER_STEPS.get(request.param, {}))


def test_yields_every_round_with_finite_models_and_weights_on_the_simplex(method) -> None:
    done = rounds(method)
    assert [state.t for state in done] == [1, 2, 3, 4]
    for state in done:
        assert torch.isfinite(state.w.values).all()
        assert set(state.losses) == (set(SITES) if method.shows_models else set())
        if state.alpha is not None:
            assert state.alpha.min() >= 0
            torch.testing.assert_close(state.alpha.sum(0), torch.ones_like(state.alpha.sum(0)))


def test_same_seed_same_bits_and_another_seed_other_bits(method) -> None:
    assert tuple(map(bits, rounds(method))) == whole_bits(method)
    assert bits(rounds(method, seed=1)[-1]) != whole_bits(method)[-1]


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_going_on_from_any_round_gives_the_same_bits(method, stop) -> None:
    first = rounds(method, stop_after=stop)
    rest = rounds(method, state=first[-1])
    assert tuple(bits(state) for state in first + rest) == whole_bits(method)


def test_every_setting_has_an_origin_and_the_settings_survive_json(method) -> None:
    for path, _, origin, text in origins(method):
        if path != "name":
            kinds = {"study"} if path in method.model_fields_set else {"paper", "derived", "ours"}
            assert origin.split()[0].rstrip(":") in kinds, path
            assert text, path
    assert type(method).model_validate_json(method.model_dump_json()) == method
    assert json.loads(method.model_dump_json())["name"] in METHODS


def test_it_says_what_it_is_and_when_to_use_it(method) -> None:
    """Ours must; methods of other packages may."""
    if not type(method).__module__.startswith("autofedavg."):
        pytest.skip("a method of another package")
    about = type(method).about
    assert about is not None
    assert about.family in get_args(Family)
    assert all((about.paper, about.rule, about.fedavg, about.use))
    for text in asdict(about).values():
        assert text == text.strip()
        assert "\n" not in text
        assert not text.endswith(".")


def test_every_setting_is_tried_below() -> None:
    assert set(CHANGES) == set(METHODS)
    for name, changes in CHANGES.items():
        tried = {key for change in changes for key in change}
        assert tried == set(METHODS[name].model_fields) - {"name"}


@pytest.mark.parametrize(
    ("name", "change"),
    [(name, change) for name, changes in CHANGES.items() for change in changes],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else value,
)
def test_every_setting_changes_the_result(name, change) -> None:
    base = {key: value for key, value in change.items() if key == "weights" and len(change) > 1}
    base |= FEWER_STEPS.get(name, {})
    changed = rounds(METHODS[name](**{**base, **change}))
    assert bits(changed[-1]) != whole_bits(METHODS[name](**base))[-1]
