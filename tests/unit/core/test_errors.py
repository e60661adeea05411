"""What is wrong, where, what to do."""

import pytest

from autofedavg.core.errors import (
    AutoFedAvgError,
    ConfigError,
    DataError,
    FederationError,
    MissingExtra,
    RunError,
    did_you_mean,
    missing_extra,
)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "it broke"),
        ({"where": "site A"}, "site A: it broke"),
        ({"remedy": "mend it"}, "it broke; mend it"),
        ({"where": "site A", "remedy": "mend it"}, "site A: it broke; mend it"),
    ],
)
def test_the_three_parts_of_a_message(given, text):
    error = AutoFedAvgError("it broke", **given)
    assert str(error) == text
    assert (error.what, error.where) == ("it broke", given.get("where", ""))


def test_a_federation_error_names_client_call_and_round():
    error = FederationError("no answer", client="B", call="evaluate", round=3, remedy="resume")
    assert str(error) == "client B, evaluate, round 3: no answer; resume"
    assert (error.client, error.call, error.round) == ("B", "evaluate", 3)
    outside = FederationError("no answer", client="B", call="evaluate")
    assert str(outside) == "client B, evaluate: no answer"


@pytest.mark.parametrize(
    ("kind", "code"),
    [(AutoFedAvgError, 1), (RunError, 1), (ConfigError, 2), (MissingExtra, 2), (DataError, 3)],
)
def test_exit_codes(kind, code):
    assert kind("it broke").exit_code == code
    assert issubclass(kind, AutoFedAvgError)


def test_a_federation_error_is_a_failed_run():
    assert FederationError.exit_code == 1
    assert issubclass(FederationError, AutoFedAvgError)


def test_the_nearest_word_or_all_of_them():
    assert did_you_mean("fedpro", ["fedavg", "fedprox"]) == "did you mean fedprox?"
    assert did_you_mean("xyz", ["b", "a"]) == "choose from: a, b"


def test_a_missing_package_is_told_with_the_command_that_brings_it():
    error = missing_extra("report", "vl-convert-python")
    assert str(error).endswith("is not installed; pip install 'autofedavg[report]'")
