"""Settings that know where they come from."""

import pytest
from pydantic import ValidationError

from autofedavg.core.errors import ConfigError
from autofedavg.core.settings import Settings, origins, setting


class Inner(Settings):
    depth: int = setting(3, origin="derived: from the code", help="how deep", ge=1)


class Outer(Settings):
    name: str = "outer"
    rate: float = setting(0.1, origin="paper Sec. 4", help="step size", gt=0)
    twice: float = setting(lambda known: 2 * known["rate"], origin="ours", help="twice the rate")
    inner: Inner = setting(Inner(), origin="ours", help="what is inside")


def rows(settings):
    return {path: (value, origin, help) for path, value, origin, help in origins(settings)}


def test_defaults_say_their_origin():
    found = rows(Outer())
    assert found == {
        "name": ("outer", "ours", ""),
        "rate": (0.1, "paper Sec. 4", "step size"),
        "twice": (0.2, "ours", "twice the rate"),
        "inner.depth": (3, "derived: from the code", "how deep"),
    }


def test_what_a_study_sets_is_the_study_s_even_if_it_is_the_default():
    found = rows(Outer(rate=0.1, inner=Inner(depth=5)))
    assert found["rate"] == (0.1, "study", "step size")
    assert found["inner.depth"] == (5, "study", "how deep")
    assert found["twice"] == (0.2, "ours", "twice the rate")


def test_a_default_may_depend_on_what_comes_before():
    assert Outer(rate=3.0).twice == 6.0
    assert Outer(rate=3.0, twice=1.0).twice == 1.0


def test_settings_are_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        Outer().rate = 1.0


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"rat": 1.0}, "Extra inputs are not permitted"),
        ({"rate": 0.0}, "greater than 0"),
        ({"rate": "0.1"}, "valid number"),
    ],
)
def test_unknown_keys_wrong_types_and_ranges_are_refused(wrong, why):
    with pytest.raises(ValidationError, match=why):
        Outer(**wrong)


@pytest.mark.parametrize(
    "origin", ["paper Sec. 3", "derived: see there", "ours", "ours: decision 4"]
)
def test_the_three_origins(origin):
    setting(1, origin=origin, help="")


@pytest.mark.parametrize("origin", ["somewhere", "a paper", "papers"])
def test_another_origin_is_refused(origin):
    wrong = (
        f"^settings.setting: origin '{origin}' of a setting names none of the three kinds; start"
    )
    with pytest.raises(ConfigError, match=wrong):
        setting(1, origin=origin, help="")
