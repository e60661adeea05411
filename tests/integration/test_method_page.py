"""docs/methods.md and the study of all methods agree with the registry and with what is sent."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import get_args

import pytest

from autofedavg.methods.base import Family
from autofedavg.studies.study_file import read_study
from autofedavg.tasks.synthetic.task import Synthetic

DOCS = Path(__file__).parents[2] / "docs"
NOT_IN_THE_STUDY = {
    "fedma": "needs a plain chain, and the task's network is a U-Net",
    "feddisco": "needs class counts, and the task segments",
}


@pytest.fixture(scope="module")
def made():
    spec = spec_from_file_location("methods", DOCS / "methods.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_registry_and_a_measured_run_say(made) -> None:
    assert made.PAGE.read_text() == made.page(), "run: python docs/methods.py"


def test_the_traffic_of_every_method_is_measured(made) -> None:
    assert None not in map(made.beyond_fedavg, made.ours())


@pytest.mark.parametrize(
    ("name", "down", "up"),
    [
        ("fedavg", 0, 0),
        ("fednova", 0, 0),
        ("ditto", 0, 0),  # what a site keeps is not sent
        ("scaffold", 1, 1),  # c - c_k down, the mean gradient up
        ("auto-fedavg", 2, 0),  # the other two sites' models
        ("ensemble", 2, 0),  # three models to validate, not one
        ("local-only", -1, 0),  # no global model to validate
    ],
)
def test_traffic_beyond_fedavg_in_models(made, name, down, up) -> None:
    assert made.beyond_fedavg(name) == pytest.approx((down, up), abs=0.05)


def test_every_family_has_an_introduction(made) -> None:
    assert set(made.INTRODUCTIONS) == set(get_args(Family))


def test_the_study_has_every_method_in_the_order_of_families(made) -> None:
    rows = [run.method for run in read_study("methods-demo").runs]
    kinds = made.ours()
    left_out = set(NOT_IN_THE_STUDY)
    if "proxy" not in Synthetic.model_fields:  # no data at the server
        left_out |= {name for name, kind in kinds.items() if kind.about.family == "server data"}
    assert {row.name for row in rows} == kinds.keys() - left_out
    families = [get_args(Family).index(kinds[row.name].about.family) for row in rows]
    assert families == sorted(families)


def test_no_row_of_the_study_must_equal_fedavg(made) -> None:
    from autofedavg.experiment.forecast import forecast

    seen = forecast(read_study("methods-demo"))
    same = {row["name"] for row in seen["rows"] if row["equals_fedavg"]}
    assert same == {"fedbn"}  # the synthetic task's network has no normalisation with numbers
