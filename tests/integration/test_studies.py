"""Study files: what is accepted, what is refused and how it is said."""

import tomllib
from pathlib import Path

import pytest

from autofedavg.core.errors import ConfigError
from autofedavg.experiment.config import parse_run, parse_study
from autofedavg.studies.study_file import builtin_studies, read_study

ROW = {"name": "row", "task": {"name": "synthetic"}, "method": {"name": "auto-fedavg"}}


def row(**change) -> dict:
    return {"run": [{**ROW, **change}]}


@pytest.mark.parametrize("name", builtin_studies())
def test_every_built_in_study_is_valid_and_called_as_its_file(name) -> None:
    study = read_study(name)
    assert study.runs
    assert study.name == name


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            row(method={"name": "auto-fedavg", "t_0": 5}),
            "method.t_0 is not a setting of auto-fedavg; did you mean t0?",
        ),
        (
            row(method={"name": "auto-fedavg", "t0": 0}),
            "method.t0: input should be greater than or equal to 1, or 'auto' (given: 0)",
        ),
        (
            row(method={"name": "auto-fedavg", "S": 0}),
            "method.S: input should be greater than or equal to 1",
        ),
        (
            row(method={"name": "auto-fedavg", "t0": "5"}),
            "method.t0: input should be a valid integer, or 'auto' (given: '5')",
        ),
        (
            row(method={"name": "auto-fedavg", "beta0": 1.0}),
            "beta0 = 1.0 leaves the Dirichlet's mode (Eq. 6) undefined",
        ),
        (
            row(method={"name": "auto-fedavg", "smoothing": 1.0}),
            "smoothing needs weights = 'layer'",
        ),
        (
            row(method={"name": "auto-fedavg", "layer": "tensor"}),
            "layer = 'tensor' needs weights = 'layer'; leave it out",
        ),
        (
            row(
                method={
                    "name": "auto-fedavg",
                    "constraint": "softmax",
                    "keep_above_one": "softplus",
                }
            ),
            "keep_above_one = 'softplus' needs constraint = 'dirichlet'",
        ),
        (
            row(method={"name": "auto-fedavg", "learning": "blind", "S": 5}),
            "method: S = 5 does nothing with learning = 'blind'",
        ),
        (
            row(method={"name": "auto-fedavg", "constraint": "softmax", "beta0": 3.0}),
            "beta0 = 3 does nothing with constraint = 'softmax', where only differences of beta",
        ),
        (
            row(method={"name": "fedavg", "redraw": 3}),
            "redraw = 3 does nothing with weights = 'size'; leave it out, or set weights",
        ),
        (row(test_every=999), "run 1 (row): test_every = 999 tests nothing on the way in"),
        (
            row(method={"name": "auto-fedavg", "learn_on": "holdout"}),
            "task.holdout sets no case aside",
        ),
        (row(method={"name": "fedagv"}), "'fedagv' is not a known method; did you mean fedavg?"),
        (row(method={}), "method.name is missing; choose from: afl"),
        (row(method=3), "method: must be a table"),
        ({**row(), "study": {"name": "two words"}}, "a study's title and a row's label are free"),
        (
            row(task={"name": "synthetic", "pipeline": {"roy": [1, 1, 1]}}),
            "task.pipeline.roy is not a setting of synthetic; did you mean roi?",
        ),
        (
            row(task={"name": "synthetic", "extent": [5.0, 50.0, 50.0]}),
            "extent must be at least 20 mm",
        ),
        (row(label=3), "label must be text, not 3"),
        (row(training={"betas": [0.5, 1.5]}), "betas must lie between 0 and 1"),
        (
            row(task={"name": "synthetic", "pipeline": {"channels": [4]}}),
            "channels needs at least two widths",
        ),
        (
            row(task={"name": "synthetic", "pipeline": {"roi": [30, 32, 16]}}),
            "every size of roi must be a multiple of the network's stride",
        ),
        (
            row(task={"name": "synthetic", "pipeline": {"window": [5.0, 1.0]}}),
            "window must rise",
        ),
        (row(rouns=3), "rouns is not a setting of a run; did you mean rounds?"),
        (row(rounds=0), "rounds: input should be greater than or equal to 1"),
        (row(quorum=9), "quorum is 9, and there are 3 sites"),
        (row(name="a/b"), "'a/b' cannot be a folder's name"),
        ({"run": [{k: v for k, v in ROW.items() if k != "name"}]}, "a run needs a name"),
        ({"run": [ROW, ROW]}, "two rows are called 'row'"),
        ({"run": []}, "a study needs at least one [[run]]"),
        ({"run": [3]}, "a run must be a table"),
        ({"base": 1, "run": [ROW]}, "[base] must be a table"),
        ({"runs": [ROW]}, "runs is not known here; did you mean run?"),
        ({"study": {"seed": [1]}, "run": [ROW]}, "seed is not known here; did you mean seeds?"),
        ({"study": {"seeds": []}, "run": [ROW]}, "seeds must be integers from 0, not []"),
        ({"study": {"seeds": [True]}, "run": [ROW]}, "seeds must be integers from 0"),
        (
            {"study": {"baseline": "rwo"}, "run": [ROW]},
            "baseline 'rwo' is not a row; did you mean row?",
        ),
    ],
)
def test_mistakes_are_told_with_their_place(raw, message) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_study(raw, "study.toml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("study.toml")


def test_all_mistakes_of_a_table_are_told_at_once() -> None:
    with pytest.raises(ConfigError, match=r"method\.S.*; method\.t_0 is not"):
        parse_study(row(method={"name": "auto-fedavg", "t_0": 5, "S": 0}), "study.toml")


def test_a_file_that_is_not_toml_is_refused(tmp_path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("= 3")
    with pytest.raises(ConfigError, match="not a TOML file"):
        read_study(path)


def test_a_bare_name_is_built_in_and_a_path_is_a_file(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = '[[run]]\nname = "own"\ntask.name = "synthetic"\nmethod.name = "fedavg"\n'
    for name in ("demo", "demo.toml", "own"):
        Path(name).write_text(own)
    assert len(read_study("demo").runs) > 1
    for path in ("./demo", "demo.toml", tmp_path / "demo", f"../{tmp_path.name}/demo"):
        assert [run.name for run in read_study(path).runs] == ["own"]
    with pytest.raises(ConfigError, match=r"^'own' is not a built-in study; write \./own$"):
        read_study("own")
    with pytest.raises(ConfigError, match=r"^\.: not a TOML file"):
        read_study("./")


def test_rows_take_the_base_and_change_it() -> None:
    study = parse_study(
        {
            "base": {"rounds": 7, "task": {"name": "synthetic"}, "training": {"iterations": 3}},
            "run": [
                {"name": "a", "method": {"name": "fedavg"}, "training": {"batch_size": 2}},
                {"name": "b", "method": {"name": "fedprox"}, "rounds": 9},
            ],
        },
        "study.toml",
        ["training.learning_rate=0.5", "task.cache=/some/where"],
    )
    a, b = study.runs
    assert (a.T, b.T) == (7, 9)
    assert (a.training.iterations, a.training.batch_size, b.training.batch_size) == (3, 2, 4)
    assert a.training.learning_rate == b.training.learning_rate == 0.5
    assert a.task.cache == "/some/where"
    origin = {path: (value, said) for path, value, said, _ in a.origins()}
    assert origin["training.iterations"] == (3, "study")
    assert origin["training.betas"] == ((0.5, 0.99), "paper Sec. 4.2.1")


def test_override_through_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="rounds is a value, not a table"):
        parse_study(row(rounds=3), "study.toml", ["rounds.x=1"])


def test_the_resolved_row_reads_back_as_itself() -> None:
    config = parse_study(row(label='with "quotes" and ü'), "study.toml").runs[0]
    values = tomllib.loads(config.to_toml())
    assert values == config.values()
    assert parse_run(values, "config.toml").values() == values


def test_defaults_that_depend_on_the_constraint_are_written_out() -> None:
    softmax = parse_study(row(method={"name": "auto-fedavg", "constraint": "softmax"}), "s").runs[0]
    assert softmax.values()["method"]["beta0"] == 0.0
    assert parse_study(row(), "s").runs[0].values()["method"]["beta0"] == 6.0


def test_a_round_is_measured_in_iterations_or_in_epochs() -> None:
    study = parse_study(row(training={"epochs": 2}), "s").runs[0]
    assert (study.training.epochs, study.training.iterations) == (2, 0)
    assert parse_run(study.values(), "s").training == study.training
    with pytest.raises(ConfigError, match="set either iterations or epochs"):
        parse_study(row(training={"epochs": 2, "iterations": 3}), "study.toml")
