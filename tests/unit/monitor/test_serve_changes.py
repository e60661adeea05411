"""Looks at run folders: cheap, and told apart by what a report is made from."""

import json
import os

import pytest

from autofedavg.monitor.watch.changes import find


@pytest.fixture
def home(tmp_path):
    """A study of two rows asked for, one of them begun."""
    jobs = [[None, 0]]
    rows = [{"jobs": jobs, "config": {"name": name}} for name in ("fedavg", "fedprox")]
    (tmp_path / "study.json").write_text(json.dumps({"runs": rows}))
    begin(tmp_path / "fedavg" / "seed-0")
    return tmp_path


def begin(folder, state="running"):
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.toml").write_text("")
    end(folder, state)
    return folder


def end(folder, state):
    (folder / "status.json").write_text(json.dumps({"state": state}))


def test_a_round_a_score_and_a_run_are_changes_and_a_checkpoint_is_none(home) -> None:
    run = home / "fedavg" / "seed-0"
    looks = [find([home])]
    assert looks[0] == find([home])
    (run / "checkpoints" / "last-1.json").write_text("{}")
    (run / "log.txt").write_text("said")
    assert find([home]) == looks[0]
    for change in (
        lambda: (run / "rounds.jsonl").write_text("{}\n"),
        lambda: (run / "rounds.jsonl").write_text("{}\n{}\n"),
        lambda: (run / "scores.csv").write_text("model\n"),
        lambda: end(run, "finished"),
        lambda: (home / "study.json").write_text("{}"),
        lambda: begin(home / "fedprox" / "seed-0"),
    ):
        change()
        looks.append(find([home]))
        assert looks[-1] != looks[-2]


def test_a_file_replaced_by_one_of_the_same_size_and_time_is_a_change(home) -> None:
    status = home / "fedavg" / "seed-0" / "status.json"
    before, about = find([home]), status.stat()
    other = status.with_name("other")
    other.write_text(status.read_text())
    os.utime(other, ns=(about.st_atime_ns, about.st_mtime_ns))
    other.replace(status)
    assert find([home]) != before


def test_only_scores_count_for_pictures(home) -> None:
    run = home / "fedavg" / "seed-0"
    before = find([home]).scores
    (run / "rounds.jsonl").write_text("{}\n")
    assert find([home]).scores == before
    (run / "scores.csv").write_text("model\n")
    assert find([home]).scores != before


def test_a_run_named_alone_knows_its_study(home) -> None:
    before = find([home / "fedavg" / "seed-0"])
    assert before.paths == (home / "fedavg" / "seed-0",)
    (home / "study.json").write_text('{"title": "another"}')
    assert find([home / "fedavg" / "seed-0"]) != before


def test_what_is_not_there_is_nothing(tmp_path) -> None:
    assert find([tmp_path / "absent", tmp_path]).paths == ()
    assert find([tmp_path]).state == "waiting"


def test_a_folder_named_twice_counts_once(home) -> None:
    assert find([home, home / "fedavg"]).stamps == find([home]).stamps


def test_a_study_goes_on_until_all_it_was_asked_for_is_finished(home) -> None:
    first = home / "fedavg" / "seed-0"
    assert find([home]).state == "running"
    end(first, "finished")
    assert find([home]).state == "running", "the second row has not begun"
    second = begin(home / "fedprox" / "seed-0")
    assert find([home]).state == "running"
    end(second, "finished")
    assert find([home]).state == "finished"


def test_a_run_named_alone_does_not_wait_for_its_study(home) -> None:
    end(home / "fedavg" / "seed-0", "finished")
    assert find([home / "fedavg"]).state == "finished"


@pytest.mark.parametrize("state", ["failed", "interrupted"])
def test_nothing_is_expected_after_a_stop(home, state) -> None:
    end(home / "fedavg" / "seed-0", state)
    assert find([home]).state == "finished"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"runs": 3}', '{"runs": [{"jobs": []}]}'])
def test_half_written_files_do_not_matter(home, content) -> None:
    (home / "study.json").write_text(content)
    (home / "fedavg/seed-0/status.json").write_text(content)
    assert find([home]).state == "running"
    end(home / "fedavg/seed-0", "finished")
    assert find([home]).state == "finished"


@pytest.mark.parametrize("runs", ["null", "[1]", '[{"jobs": null}]', "{}"])
def test_a_study_file_that_is_not_ours_is_looked_past(home, runs) -> None:
    end(home / "fedavg" / "seed-0", "finished")
    (home / "study.json").write_text(f'{{"runs": {runs}}}')
    assert find([home]).state == "finished"
