"""Editions of the page: made when something is new, kept when that fails."""

import itertools
import json
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from autofedavg.core.errors import MissingExtra, RunError
from autofedavg.monitor.serve import press as press_module
from autofedavg.monitor.serve.press import Once, Press


@dataclass
class Plain:
    text: str
    examples: Any = None
    problem: str | None = None
    files: dict = field(default_factory=dict)

    def page(self, script=""):
        return f"{self.text}<script>{script}</script>"


class Builder:
    """Says what it was asked for; fails when told to."""

    def __init__(self):
        self.asked, self.error, self.took = [], None, 0.0

    def __call__(self, paths, baseline="", *, examples=True):
        self.asked.append((list(paths), baseline, examples))
        clock.now += self.took
        if self.error:
            raise self.error
        return Plain(f"page {len(self.asked)}", examples=f"pictures {len(self.asked)}")


class Clock:
    now = 1000.0

    def monotonic(self):
        return self.now


clock = Clock()


@pytest.fixture(autouse=True)
def _still(monkeypatch):
    monkeypatch.setattr(press_module, "time", clock)


@pytest.fixture
def builder():
    return Builder()


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "study" / "fedavg" / "seed-0"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("")
    (folder / "status.json").write_text('{"state": "running"}')
    return folder


def add_round(run):
    with (run / "rounds.jsonl").open("a") as handle:
        handle.write("{}\n")


def text(press) -> str:
    return press.current.page.decode()


def test_a_page_is_made_once_for_each_change(run, builder) -> None:
    press = Press([run.parent], builder, "fedavg")
    assert "The report is being made" in text(press)
    assert press.current.state == "waiting"
    press.look()
    press.look()
    assert builder.asked == [([run.parent], "fedavg", True)]
    first = press.current
    assert first.facts() == {
        "version": first.version, "state": "running", "built": first.built, "problem": None,
    }  # fmt: skip
    add_round(run)
    press.look()
    assert len(builder.asked) == 2
    assert "page 2" in text(press)
    assert press.current.version != first.version
    assert f'("{press.current.version}");</script>' in text(press), "a page knows its version"


def test_versions_differ_between_servers(run, builder) -> None:
    one, other = Press([run], builder), Press([run], builder)
    assert one.current.version != other.current.version


def pictures_asked_for(builder) -> list:
    return [examples for *_, examples in builder.asked]


def test_pictures_are_made_anew_only_when_scores_are_new(run, builder) -> None:
    press = Press([run], builder)
    press.look()
    add_round(run)
    press.look()
    assert pictures_asked_for(builder) == [True, "pictures 1"]
    (run / "scores.csv").write_text("model\n")
    press.look()
    assert pictures_asked_for(builder)[2:] == ["pictures 2", True]
    (run / "status.json").write_text('{"state": "finished"}')
    press.look()
    assert pictures_asked_for(builder)[4:] == ["pictures 4"]
    assert press.current.state == "finished"


def test_the_first_page_does_not_wait_for_pictures(run, builder) -> None:
    (run / "scores.csv").write_text("model\n")
    press, shown = Press([run], builder), []

    def build(*arguments, **how):
        shown.append(text(press).startswith("page"))
        return builder(*arguments, **how)

    press._build = build
    press.look()
    assert pictures_asked_for(builder) == [False, True]
    assert shown == [False, True]


def test_pictures_of_a_build_that_failed_are_made_with_the_next(run, builder) -> None:
    press = Press([run], builder)
    press.look()
    (run / "scores.csv").write_text("model\n")
    builder.error = ValueError("odd")
    press.look()
    builder.error = None
    press.look()
    assert pictures_asked_for(builder) == [True, "pictures 1", "pictures 1", True]


def test_a_page_is_not_called_finished_before_it_has_the_end(run, builder) -> None:
    """The run ends while the page is made: what was read is older than that."""

    def build(*arguments, **how):
        (run / "status.json").write_text('{"state": "finished"}')
        return builder(*arguments, **how)

    press = Press([run], build)
    press.look()
    assert press.current.state == "running"
    press.look()
    assert press.current.state == "finished"
    assert len(builder.asked) == 2


def test_it_rests_as_long_as_a_build_took(run, builder) -> None:
    press = Press([run], builder, every=1.5)
    builder.took = 7.0
    assert press.look() == 7.0
    assert press.look() == 1.5, "nothing was built"
    add_round(run)
    builder.took = 0.1
    assert press.look() == 1.5


def test_before_the_first_run_it_waits(tmp_path, builder) -> None:
    press = Press([tmp_path / "runs"], builder)
    press.look()
    assert "No run yet" in text(press)
    assert str(tmp_path / "runs") in text(press)
    (tmp_path / "runs").mkdir()
    press.look()
    assert builder.asked == []
    assert press.current.facts()["state"] == "waiting"
    assert press.current.problem is None


def test_a_folder_that_is_still_to_come_does_not_hold_up_the_others(run, tmp_path, builder) -> None:
    Press([tmp_path / "later", run], builder).look()
    assert builder.asked == [([run], "", True)]


def test_one_failure_is_a_folder_being_written_two_are_a_problem(run, builder) -> None:
    said = []
    press = Press([run], builder, say=said.append)
    press.look()
    good = press.current
    builder.error = RunError("this run folder is damaged", where="x", remedy="leave it out")
    add_round(run)
    press.look()
    assert press.current == good
    press.look()
    assert press.current.problem == "x: this run folder is damaged; leave it out"
    assert press.current.page == good.page, "the last good page is kept"
    assert press.current.version == good.version
    assert said == ["the page could not be made: x: this run folder is damaged; leave it out"]
    builder.error = None
    add_round(run)
    press.look()
    assert press.current.problem is None
    assert said[1:] == ["the page is up to date again"]


def test_pictures_that_fail_are_a_problem_of_a_page_that_goes_on(run, builder) -> None:
    (run / "scores.csv").write_text("model\n")

    def build(*arguments, examples, **how):
        report = builder(*arguments, examples=examples, **how)
        if examples is True:
            raise RunError("the images are gone")
        return report

    press = Press([run], build, every=1.0)
    for _ in range(600):
        press.look()
        clock.now += 1.0
    assert press.current.problem == "the images are gone"
    assert len(builder.asked) < 50, "not at every look"
    shown = text(press)
    add_round(run)
    press.look()
    assert text(press) != shown, "the numbers are new"
    assert press.current.problem == "the images are gone"


def test_a_failing_build_is_tried_again_ever_more_rarely(run, builder) -> None:
    press = Press([run], builder, every=1.0)
    builder.error = KeyError("t")
    tried = []
    for _ in range(600):
        before = len(builder.asked)
        press.look()
        tried += [clock.now] if len(builder.asked) > before else []
        clock.now += 1.0
    gaps = [after - before for before, after in itertools.pairwise(tried)]
    assert gaps[0] == 1.0
    assert gaps == sorted(gaps)
    assert gaps[-1] == press_module.AGAIN
    assert press.current.problem == "KeyError: 't'"
    assert "KeyError: &#x27;t&#x27;. It is tried again." in text(press)


def test_a_change_is_tried_at_once_even_after_many_failures(run, builder) -> None:
    press = Press([run], builder)
    builder.error = ValueError("odd")
    for _ in range(5):
        press.look()
        clock.now += 1000
    builder.error = None
    add_round(run)
    press.look()
    assert "page" in text(press)
    assert press.current.problem is None


def test_runs_that_vanish_leave_the_page_there(run, builder) -> None:
    press = Press([run], builder)
    press.look()
    (run / "config.toml").unlink()
    press.look()
    assert "page 1" in text(press)
    assert press.current.problem == "no run is left in these folders"


def test_after_a_problem_without_a_page_it_waits_again(run, builder) -> None:
    builder.error = ValueError("odd")
    press = Press([run], builder)
    press.look()
    press.look()
    assert press.current.problem == "ValueError: odd"
    (run / "config.toml").unlink()
    press.look()
    assert "No run yet" in text(press)
    assert press.current.problem is None


def test_a_page_that_cannot_be_written_counts_as_a_failure(run, builder) -> None:
    press = Press([run], lambda paths, baseline="", *, examples=True: Plain("\udc80"))
    press.look()
    press.look()
    assert press.current.problem.startswith("UnicodeEncodeError")


def test_a_missing_package_ends_it(run, builder) -> None:
    builder.error = MissingExtra("the package jinja2 is not installed")
    with pytest.raises(MissingExtra):
        Press([run], builder).look()


def test_a_file_is_made_once_whoever_asks() -> None:
    made, start = [], threading.Barrier(4)
    once = Once(lambda: made.append(1) or b"content")

    def ask():
        start.wait()
        assert once() == b"content"

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]


def test_facts_are_plain_json(run, builder) -> None:
    press = Press([run], builder)
    press.look()
    assert set(json.loads(json.dumps(press.current.facts()))) == {
        "version", "state", "built", "problem",
    }  # fmt: skip
