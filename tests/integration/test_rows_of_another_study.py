"""`study.rows`: the rows and ranges of a built-in study, over data and settings of one's own."""

import pytest

from autofedavg import cli
from autofedavg.core.errors import ConfigError
from autofedavg.studies.study_file import builtin_studies, read_study, read_trials

OWN = """
[study]
seeds = [0, 1]
rows = "bench-hospitals"

[base]
rounds = 2

[base.task]
name = "synthetic"
scale = 0.02

[base.training]
iterations = 2
"""


@pytest.fixture
def own(tmp_path):
    """Writes a study of one's own, with more in its file."""

    def write(more="", text=OWN):
        path = tmp_path / "ours.toml"
        path.write_text(text + more)
        return path

    return write


def test_it_has_the_rows_of_the_other_and_its_own_base(own) -> None:
    mine, other = read_study(own()), read_study("bench-hospitals")
    assert (mine.name, mine.seeds, mine.baseline) == ("ours", (0, 1), "fedavg")
    assert [run.name for run in mine.runs] == [run.name for run in other.runs]
    assert [run.method for run in mine.runs] == [run.method for run in other.runs]
    assert {run.values()["rounds"] for run in mine.runs} == {2}
    assert not any(run.task.mirrored for run in mine.runs)


def test_its_trials_are_those_of_the_other(own) -> None:
    (plan, mine), (_, other) = read_trials(own()), read_trials("bench-hospitals")
    assert mine.changes == other.changes
    assert plan.name == "ours-trials"


def test_its_own_ranges_and_rows_come_first_and_last(own) -> None:
    path = own(
        """
[tune]
trials = 2
common = { "training.learning_rate" = [1e-2] }

[[run]]
name = "t0-2"
method = { name = "auto-fedavg", t0 = 2 }
"""
    )
    _, trials = read_trials(path)
    assert {len(changes) for changes in trials.changes.values()} == {2}
    assert list(trials.changes)[-1] == "t0-2"


def test_folds_of_trials_stay_with_the_data_that_has_them(own) -> None:
    """Those of bench-lgg are of its own list; it also has rows that need no cases elsewhere."""
    path = own(text=OWN.replace("bench-hospitals", "bench-lgg"))
    plan, trials = read_trials(path)
    assert plan.folds == ()
    assert trials.changes == read_trials("bench-lgg")[1].changes


def test_it_runs_through_the_command(own, tmp_path, capsys) -> None:
    only = ["--only", "fedavg", "--only", "even", "--out", str(tmp_path / "runs")]
    assert cli._main(["run", str(own()), "--seeds", "0", *only]) == 0
    folder = tmp_path / "runs" / "ours"
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"fedavg", "even"}
    capsys.readouterr()
    assert cli._main(["report", str(folder)]) == 0
    assert "Even weights" in capsys.readouterr().out


@pytest.mark.parametrize("name", ['"bench-hospital"', "3", '["demo"]', '"./mine.toml"'])
def test_only_a_built_in_study_lends_its_rows(own, name) -> None:
    path = own(text=OWN.replace('"bench-hospitals"', name))
    with pytest.raises(ConfigError, match=r"ours\.toml: study\.rows: .* is not a built-in study"):
        read_study(path)


def test_the_nearest_name_is_said(own) -> None:
    with pytest.raises(ConfigError, match="did you mean bench-hospitals"):
        read_study(own(text=OWN.replace('"bench-hospitals"', '"bench-hospital"')))


def test_borrowed_rows_are_not_lent(own) -> None:
    with pytest.raises(ConfigError, match=r"study\.rows.*name that one: bench-hospitals"):
        read_study(own(text=OWN.replace('"bench-hospitals"', '"bench-good-hospitals"')))


def test_two_rows_of_one_name_are_refused(own) -> None:
    with pytest.raises(ConfigError, match="two rows are called 'fedavg'"):
        read_study(own('[[run]]\nname = "fedavg"\nmethod = { name = "fedavg" }\n'))


def test_one_table_is_no_list_of_rows(own) -> None:
    with pytest.raises(ConfigError, match=r"own rows must be \[\[run\]\] tables"):
        read_study(own('[run]\nname = "mine"\nmethod = { name = "fedavg" }\n'))


def test_good_and_bad_hospitals_differ_in_the_labels_alone() -> None:
    good, bad = (read_study(f"bench-{kind}hospitals") for kind in ("good-", ""))
    for mine, other in zip(good.runs, bad.runs, strict=True):
        changed = {**other.values(), "task": {**other.values()["task"], "mirrored": []}}
        assert mine.values() == changed
    assert "all of them good" in builtin_studies()["bench-good-hospitals"]
