"""Which models are tested: the best on validation cases, or those after the last round."""

import csv
import json
import statistics
from pathlib import Path

import pytest
import torch

from autofedavg import (
    AutoFedAvg,
    FedAvg,
    LoaderSite,
    LocalOnly,
    federate,
    read_study,
    run_study,
)
from autofedavg.core.errors import ConfigError, DataError
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.methods.ensemble import EnsembleMethod
from autofedavg.report.read import read_results
from autofedavg.report.tables import scores_table
from folders import model_file
from loader_runs import T, loader, train


def scores(out: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for row in RunFolder(out).scores():
        found.setdefault(row.model, []).append(row.value)
    return found


def best_round(out: Path) -> int:
    return json.loads(model_file(out).read_text())["t"]


@pytest.mark.parametrize("method", [FedAvg(), EnsembleMethod()], ids=lambda m: m.name)
def test_both_can_be_told_from_one_run(tmp_path, method) -> None:
    train(tmp_path / "best", method, contrary=True)
    train(tmp_path / "last", method, contrary=True, select="last")
    assert best_round(tmp_path / "best") < T, "the case is of no use"
    best, last = scores(tmp_path / "best"), scores(tmp_path / "last")
    assert set(best) == {"global", "global-last", "local-A", "local-B"}
    assert set(last) == {"global", "local-A", "local-B"}
    assert best["global-last"] == last["global"]
    assert best["global"] != last["global"]


def test_the_last_model_is_not_tested_twice(tmp_path) -> None:
    train(tmp_path, FedAvg())
    assert best_round(tmp_path) == T, "the case is of no use"
    assert "global-last" not in scores(tmp_path)


def test_a_method_without_a_global_model_has_none_to_test(tmp_path) -> None:
    train(tmp_path, LocalOnly())
    assert set(scores(tmp_path)) == {"local-A", "local-B"}


def test_with_last_validation_is_still_recorded(tmp_path) -> None:
    result = train(tmp_path, FedAvg(), select="last")
    assert all(line["validation"]["mean"] is not None for line in result.rounds)
    names = {path.stem for path in (tmp_path / "checkpoints").glob("*.json")}
    models = {f"{name}@{T}" for name in ("final-global", "final-local-A", "final-local-B")}
    assert names == {"last-3", "last-4"} | models
    facts = json.loads((tmp_path / "checkpoints" / f"final-local-A@{T}.json").read_text())
    assert facts["t"] == T


def test_a_table_says_which_models_were_tested(tmp_path) -> None:
    train(tmp_path / "best", FedAvg())
    train(tmp_path / "last", FedAvg(), select="last")
    both = scores_table(read_results([tmp_path]))
    assert "Tested models of last: those after the last round, not the best ones." in both.notes
    only = scores_table(read_results([tmp_path / "last"]))
    assert "Tested models: those after the last round, not the best ones." in only.notes
    best = scores_table(read_results([tmp_path / "best"]))
    assert not any("Tested models" in message for message in best.notes)


def test_without_validation_cases_the_last_models_are_the_same_as_with_them(tmp_path) -> None:
    with_them = train(tmp_path / "with", FedAvg(), select="last")
    without = train(tmp_path / "without", FedAvg(), validation=False, select="last")
    assert scores(tmp_path / "with") == scores(tmp_path / "without")
    assert without.summary == with_them.summary
    line = without.rounds[-1]
    assert line["validation"] == {"mean": None, "sites": {}}
    assert line["validation_local"] == {}
    assert set(line["calls"]) == {"local_train"}


def test_test_scores_of_rounds_are_written_and_decide_nothing(tiny, tmp_path) -> None:
    def run(every):
        settings = ['select="last"', "rounds=4", f"test_every={every}"]
        study = read_study(tiny, settings, only=["fedavg"])
        folder = run_study(study, tmp_path / str(every)) / "fedavg" / "seed-0"
        rounds = (folder / "rounds.jsonl").read_text().splitlines()
        return (folder / "scores.csv").read_text(), [json.loads(line) for line in rounds]

    (plain, without), (scores, lines) = run(0), run(2)
    assert not any("test" in line for line in without)
    assert [line["t"] for line in lines if "test" in line] == [2, 4]
    assert scores == plain  # the models are the same
    cases = {}
    for row in csv.DictReader(scores.splitlines()):
        if (row["model"], row["metric"]) == ("global", "dice"):
            cases.setdefault(row["site"], []).append(float(row["value"]))
    last = {site: statistics.fmean(values) for site, values in cases.items()}
    assert lines[-1]["test"]["sites"] == pytest.approx(last)
    assert lines[-1]["test"]["mean"] == pytest.approx(statistics.fmean(last.values()))


def test_weights_can_be_learned_without_validation_cases(tmp_path) -> None:
    result = train(tmp_path, AutoFedAvg(learn_on="train", S=2), validation=False, select="last")
    assert result.summary.global_test_avg is not None


def test_what_needs_validation_cases_says_so_before_any_work(tmp_path) -> None:
    wrong = "site A: select is 'best', but there are no validation cases .*; set select = 'last'"
    with pytest.raises(ConfigError, match=wrong):
        train(tmp_path / "a", FedAvg(), validation=False)
    wrong = "site A: the weights are learned on validation cases, and there are none; give"
    with pytest.raises(ConfigError, match=wrong):
        train(tmp_path / "b", AutoFedAvg(), validation=False, select="last")
    assert not list(tmp_path.iterdir())


def test_a_site_without_any_case_to_test_is_refused(tmp_path) -> None:
    with pytest.raises(DataError, match="neither a validation nor a test loader"):
        federate(
            lambda: torch.nn.Linear(4, 2),
            lambda network, batch: network(batch[0]).sum(),
            {"A": LoaderSite(loader(0))},
            lambda network, batch: network(batch[0])[:, 0],
            method="fedavg",
        )
