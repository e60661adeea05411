"""The trials of a study: as many for every row, the row's own settings first."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofedavg.core.errors import ConfigError
from autofedavg.experiment.config import parse_run, parse_study
from autofedavg.experiment.rows import Rounds
from autofedavg.experiment.trial_names import (
    AS_WRITTEN,
    diverged,
    label_parts,
    trial_in,
    trial_label,
    trial_name,
    validation_score,
)
from autofedavg.experiment.trials import MOST, trials_of
from autofedavg.experiment.validation import merge, validate

RATES = {"training.learning_rate": [0.01, 0.001, 0.003]}


def study(*rows, tune=None, **head):
    made = {
        "study": {"name": "s", "seeds": [0, 1], "baseline": "fedavg", **head},
        "base": {
            "rounds": 2,
            "test_every": 1,
            "task": {"name": "synthetic"},
            "training": {"learning_rate": 0.003},
        },
        "run": list(rows),
    }
    return {**made, "tune": {"trials": 3, "common": RATES, **(tune or {})}}


FEDAVG = {"name": "fedavg", "label": "FedAvg", "method": {"name": "fedavg"}}
FEDAVGM = {"name": "fedavgm", "method": {"name": "fedavgm"}, "tune": {"momentum": [0.9, 0.6, 0.3]}}


def changes(raw, row):
    return list(trials_of(raw, "s.toml").changes[row])


def test_a_row_is_tried_as_written_first_then_with_its_own_values_then_with_common_ones() -> None:
    raw = study(FEDAVG, {**FEDAVGM, "tune": {"momentum": [0.9, 0.6]}})
    assert changes(raw, "fedavgm") == [
        {},
        {"method.momentum": 0.6},
        {"training.learning_rate": 0.01},
    ]
    assert changes(raw, "fedavg") == [
        {},
        {"training.learning_rate": 0.01},
        {"training.learning_rate": 0.001},
    ]


def test_both_kinds_of_values_meet_where_each_alone_gives_too_few_settings() -> None:
    raw = study({**FEDAVGM, "tune": {"momentum": [0.6]}}, tune={"trials": 6})
    assert changes(raw, "fedavgm")[4:] == [
        {"training.learning_rate": 0.01, "method.momentum": 0.6},
        {"training.learning_rate": 0.001, "method.momentum": 0.6},
    ]


def test_trials_are_a_study_that_is_not_tested_and_has_seeds_of_its_own() -> None:
    row = {**FEDAVGM, "test_local": "own", "keep_models": [1], "ceiling": [1]}
    trials = trials_of(study(FEDAVG, row, tune={"seeds": [7, 8]}), "s.toml")
    plan = parse_study(trials.values, "s.toml", sites=["A", "B"])
    assert (plan.name, plan.seeds, plan.baseline) == ("s-trials", (7, 8), "fedavg.trial-1")
    assert len(plan.runs) == 6
    for run in plan.runs:
        assert run.general == Rounds(rounds=2, test=False)
    labels = [run.label for run in plan.runs]
    assert labels[0] == f"FedAvg, trial 1: {AS_WRITTEN}"
    assert labels[4] == "fedavgm, trial 2: momentum = 0.6"


def test_a_study_with_folds_is_tried_on_its_first_or_on_those_it_names() -> None:
    for folds, wanted in (([], [0]), ([2], [2])):
        made = trials_of(study(FEDAVG, tune={"folds": folds}, folds=[0, 1, 2]), "s.toml")
        assert made.values["study"]["folds"] == wanted


@given(
    momenta=st.lists(st.sampled_from([0.0, 0.3, 0.6, 0.9]), min_size=1, max_size=5),
    rates=st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=1, max_size=4),
    common=st.lists(st.sampled_from([0.003, 0.01, 0.03]), max_size=4),
    trials=st.integers(1, 12),
    seed=st.integers(2, 50),
)
def test_every_row_has_as_many_different_settings_or_the_study_is_refused(
    momenta, rates, common, trials, seed
) -> None:
    row = {**FEDAVGM, "tune": {"momentum": momenta, "server_rate": rates}}
    given_common = {"training.learning_rate": common} if common else {}
    raw = study(row, tune={"trials": trials, "common": given_common, "seeds": [seed]})
    settings = {(m, r) for m in (*momenta, 0.9) for r in (*rates, 1.0)}
    grid = {(m, r) for m in momenta for r in rates} | {(0.9, 1.0)}
    most = len({(*own, lr) for own in grid for lr in (*common, 0.003)})
    if most < trials:
        with pytest.raises(ConfigError, match=rf"than {trials} trials: fedavgm \({most}\)"):
            trials_of(raw, "s.toml")
        return
    found = changes(raw, "fedavgm")
    assert found[0] == {}
    assert found == changes(raw, "fedavgm")  # the draw is fixed
    values = [
        parse_run(merge(raw["base"], run), "").values()
        for run in trials_of(raw, "s.toml").values["run"]
    ]
    tried = {(v["method"]["momentum"], v["method"]["server_rate"]) for v in values}
    assert tried <= settings
    assert len({json.dumps([v["method"], v["training"]]) for v in values}) == len(found) == trials


def test_a_large_grid_is_drawn_from_by_the_seed_and_the_row() -> None:
    grid = {"momentum": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], "server_rate": [0.5, 1.5, 2.5, 3.5]}
    rows = [{**FEDAVGM, "name": name, "tune": grid} for name in ("a", "b")]
    raw = study(*rows, tune={"trials": 5})
    other = study(*rows, tune={"trials": 5, "seeds": [101]})
    drawn = [changes(raw, "a"), changes(raw, "b"), changes(other, "a")]
    assert drawn[0] != drawn[1]
    assert drawn[0] != drawn[2]
    more = study(*rows, tune={"trials": 5, "seeds": [100, 101]})
    assert changes(more, "a") == drawn[0]  # the first seed draws
    assert all("training.learning_rate" not in change for each in drawn for change in each)


@pytest.mark.parametrize(
    ("tune", "row", "said"),
    [
        ({"trials": 0}, {}, "tune.trials: input should be greater than or equal to 1"),
        ({"trails": 3}, {}, "tune.trails is not a setting of tune; did you mean trials"),
        ({"seeds": [1]}, {}, "seed 1 is also one of the study's"),
        ({"seeds": [100, 1]}, {}, "seed 1 is also one of the study's"),
        ({"seeds": []}, {}, "tune.seeds is empty"),
        ({"folds": [0]}, {}, "tune.folds is set, and the study has no folds"),
        ({}, {"momentun": [0.1]}, "momentun is not a setting of fedavgm; did you mean momentum"),
        ({}, {"momentum": [0.5, 1.5]}, r"run 1 \(fedavgm\), tune: method.momentum: .* 1.5"),
        ({"common": {"training.rate": [1]}}, {}, "training.rate is not a setting of training"),
        ({}, {"momentum": 0.5}, r"momentum must be a list of values, not 0.5"),
        ({}, {"momentum": []}, "list at least one value"),
        ({}, [0.5], "must be a table of lists"),
        ({}, {"task.scale": [0.1]}, "task.scale cannot be tuned"),
        ({}, {"name": ["fedavg"]}, "name cannot be tuned"),
        ({"common": {}}, {"momentum": [0.6]}, r"than 3 trials: fedavgm \(2\); add values"),
        ({}, {"momentum": [0.1] * (MOST + 1)}, f"{MOST + 1} combinations"),
    ],
)
def test_wrong_ranges_are_refused(tune, row, said) -> None:
    with pytest.raises(ConfigError, match=said):
        trials_of(study({**FEDAVGM, "tune": row} if row else FEDAVGM, tune=tune), "s.toml")


def test_a_study_that_names_no_seeds_has_seed_0() -> None:
    raw = study(FEDAVG, tune={"seeds": [0]})
    del raw["study"]["seeds"]
    with pytest.raises(ConfigError, match="seed 0 is also one of the study's"):
        trials_of(raw, "s.toml")


@pytest.mark.parametrize("given", [{"test_every": 1}, {"ceiling": [1]}, {"test_local": "own"}])
def test_a_run_without_tests_refuses_settings_about_tests(given) -> None:
    assert not validate(Rounds, {"test": False, "test_local": "none"}, "", "").test
    with pytest.raises(ConfigError, match=f"{next(iter(given))} is set, and test is false"):
        validate(Rounds, {"test": False, **given}, "", "")


def test_names_and_labels_of_trials_can_be_read_back() -> None:
    assert trial_in(trial_name("n-softmax.trial-2", 11)) == ("n-softmax.trial-2", 11)
    assert trial_in("fedavg") is None
    label = trial_label("A, trial 1: b", 3, {"method.mu": 0.1, "training.epochs": 2})
    assert label_parts(label, 3) == ("A, trial 1: b", "mu = 0.1, training.epochs = 2")


def line(mean, local=None, personal=None):
    made = {"validation": {"mean": mean, "sites": {}}, "validation_local": local or {}}
    made["test"] = {"mean": 1.0}  # never read
    return {**made, **({"validation_personal": personal} if personal else {})}


@pytest.mark.parametrize(
    ("rounds", "best", "last"),
    [
        ([line(0.2), line(0.5), line(0.3)], 0.5, 0.3),
        ([line(0.0)], 0.0, 0.0),
        ([line(None, {"A": 0.2, "B": 0.8}), line(None, {"A": 0.4, "B": 0.6})], 0.6, 0.5),
        ([line(0.9, {}, {"A": 0.5, "B": 0.1}), line(0.9, {}, {"A": 0.3, "B": 0.3})], 0.4, 0.3),
        ([], None, None),
        ([line(None)], None, None),
    ],
)
def test_the_validation_score_is_that_of_the_models_a_run_would_test(rounds, best, last) -> None:
    for select, wanted in (("best", best), ("last", last)):
        found = validation_score(rounds, select)
        assert found == (wanted if wanted is None else pytest.approx(wanted))


@pytest.mark.parametrize(
    ("status", "test", "wanted"),
    [
        ({"state": "failed", "kind": "Diverged", "error": "the loss is nan"}, False, True),
        ({"state": "failed", "kind": "DivergedReply", "error": "its model"}, False, True),
        ({"state": "failed", "kind": "FederationError", "error": "a client died"}, False, False),
        ({"state": "failed", "kind": "FederationError", "error": "x not finite"}, False, False),
        ({"state": "failed", "kind": "DataError", "error": "voxels are not finite"}, False, False),
        ({"state": "failed", "kind": "TrainingError", "error": "unknown request"}, False, False),
        ({"state": "interrupted", "kind": "Diverged", "error": "earlier"}, False, False),
        ({"state": "failed", "kind": "Diverged", "error": "the loss is nan"}, True, False),
        ({"state": "finished"}, False, False),
        (None, False, False),
    ],
)
def test_the_kind_of_its_error_says_whether_a_trial_diverged(
    tmp_path, status, test, wanted
) -> None:
    (tmp_path / "config.toml").write_text(f"test = {str(test).lower()}\n")
    if status:
        (tmp_path / "status.json").write_text(json.dumps(status))
    assert diverged(tmp_path) is wanted
