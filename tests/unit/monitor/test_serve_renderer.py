"""Renderings of the page: made when something is new, kept when that fails."""

import itertools
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from autofedavg.core.errors import MissingExtra, RunError
from autofedavg.monitor.serve import renderer as renderer_module
from autofedavg.monitor.serve.renderer import RETRY, Renderer


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

    def __call__(self, paths, *, examples):
        self.asked.append((list(paths), examples))
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
    monkeypatch.setattr(renderer_module, "time", clock)


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


def text(renderer) -> str:
    return renderer.current.page.decode()


def test_a_page_is_made_once_for_each_change(run, builder) -> None:
    renderer = Renderer([run.parent], builder)
    assert "No report yet" in text(renderer)
    assert renderer.current.state == "waiting"
    renderer.update()
    renderer.update()
    assert builder.asked == [([run.parent], True)]
    first = renderer.current
    assert first.facts() == {
        "version": first.version, "state": "running", "built": first.built, "problem": None,
    }  # fmt: skip
    add_round(run)
    renderer.update()
    assert len(builder.asked) == 2
    assert "page 2" in text(renderer)
    assert renderer.current.version != first.version
    assert f'("{renderer.current.version}");</script>' in text(renderer), "a page knows its version"


def test_versions_differ_between_servers(run, builder) -> None:
    one, other = Renderer([run], builder), Renderer([run], builder)
    assert one.current.version != other.current.version


def pictures_asked_for(builder) -> list:
    return [examples for *_, examples in builder.asked]


def test_pictures_are_made_anew_only_when_scores_are_new(run, builder) -> None:
    renderer = Renderer([run], builder)
    renderer.update()
    add_round(run)
    renderer.update()
    assert pictures_asked_for(builder) == [True, "pictures 1"]
    (run / "scores.csv").write_text("model\n")
    renderer.update()
    assert pictures_asked_for(builder)[2:] == ["pictures 2", True]
    (run / "status.json").write_text('{"state": "finished"}')
    renderer.update()
    assert pictures_asked_for(builder)[4:] == ["pictures 4"]
    assert renderer.current.state == "finished"


def test_the_first_page_does_not_wait_for_pictures(run, builder) -> None:
    (run / "scores.csv").write_text("model\n")
    renderer, shown = Renderer([run], builder), []

    def build(*arguments, **how):
        shown.append(text(renderer).startswith("page"))
        return builder(*arguments, **how)

    renderer._build = build
    renderer.update()
    assert pictures_asked_for(builder) == [False, True]
    assert shown == [False, True]


def test_pictures_of_a_build_that_failed_are_made_with_the_next(run, builder) -> None:
    renderer = Renderer([run], builder)
    renderer.update()
    (run / "scores.csv").write_text("model\n")
    builder.error = ValueError("odd")
    renderer.update()
    builder.error = None
    clock.now += RETRY
    renderer.update()
    assert pictures_asked_for(builder) == [True, "pictures 1", "pictures 1", True]


def test_a_page_is_not_called_finished_before_it_has_the_end(run, builder) -> None:
    """The run ends while the page is made: what was read is older than that."""

    def build(*arguments, **how):
        (run / "status.json").write_text('{"state": "finished"}')
        return builder(*arguments, **how)

    renderer = Renderer([run], build)
    renderer.update()
    assert renderer.current.state == "running"
    renderer.update()
    assert renderer.current.state == "finished"
    assert len(builder.asked) == 2


def test_it_rests_as_long_as_a_build_took(run, builder) -> None:
    renderer = Renderer([run], builder, every=1.5)
    builder.took = 7.0
    assert renderer.update() == 7.0
    assert renderer.update() == 1.5, "nothing was built"
    add_round(run)
    builder.took = 0.1
    assert renderer.update() == 1.5


def test_before_the_first_run_it_waits(tmp_path, builder) -> None:
    renderer = Renderer([tmp_path / "runs"], builder)
    renderer.update()
    assert "No report yet" in text(renderer)
    assert str(tmp_path / "runs") in text(renderer)
    (tmp_path / "runs").mkdir()
    renderer.update()
    assert builder.asked == []
    assert renderer.current.facts()["state"] == "waiting"
    assert renderer.current.problem is None


def test_a_folder_that_is_still_to_come_does_not_hold_up_the_others(run, tmp_path, builder) -> None:
    Renderer([tmp_path / "later", run], builder).update()
    assert builder.asked == [([run], True)]


def test_a_failure_keeps_the_last_good_page(run, builder) -> None:
    said = []
    renderer = Renderer([run], builder, warn=said.append)
    renderer.update()
    good = renderer.current
    builder.error = RunError("this run folder is damaged", where="x", remedy="leave it out")
    add_round(run)
    renderer.update()
    assert renderer.current.problem == "x: this run folder is damaged; leave it out"
    assert renderer.current.page == good.page
    assert renderer.current.version == good.version
    assert said == ["the page is not up to date: x: this run folder is damaged; leave it out"]
    builder.error = None
    add_round(run)
    renderer.update()
    assert renderer.current.problem is None
    assert said[1:] == ["up to date again"]


def test_runs_that_are_left_out_are_a_problem_of_a_new_page(run, builder) -> None:
    def build(*arguments, **how):
        report = builder(*arguments, **how)
        report.problem = "fedprox/seed-0: damaged"
        return report

    renderer = Renderer([run], build)
    renderer.update()
    assert "page 1" in text(renderer)
    assert renderer.current.problem == "runs are left out: fedprox/seed-0: damaged"


def test_pictures_that_fail_are_a_problem_of_a_page_that_goes_on(run, builder) -> None:
    (run / "scores.csv").write_text("model\n")

    def build(*arguments, examples, **how):
        report = builder(*arguments, examples=examples, **how)
        if examples is True:
            raise RunError("the images are gone")
        return report

    renderer = Renderer([run], build, every=1.0)
    for _ in range(600):
        renderer.update()
        clock.now += 1.0
    assert renderer.current.problem == "the images are gone"
    assert len(builder.asked) < 50, "not at every update"
    shown = text(renderer)
    add_round(run)
    renderer.update()
    assert text(renderer) != shown, "the numbers are new"
    assert renderer.current.problem == "the images are gone"


def test_a_failing_build_is_tried_again_after_a_while(run, builder) -> None:
    renderer = Renderer([run], builder, every=1.0)
    builder.error = KeyError("t")
    tried = []
    for _ in range(200):
        before = len(builder.asked)
        renderer.update()
        tried += [clock.now] if len(builder.asked) > before else []
        clock.now += 1.0
    assert [later - early for early, later in itertools.pairwise(tried)] == [RETRY] * 3
    assert renderer.current.problem == "KeyError: 't'"
    assert "KeyError: &#x27;t&#x27;. The server tries again." in text(renderer)


def test_a_change_is_tried_at_once_even_after_many_failures(run, builder) -> None:
    renderer = Renderer([run], builder)
    builder.error = ValueError("odd")
    for _ in range(5):
        renderer.update()
        clock.now += 1000
    builder.error = None
    add_round(run)
    renderer.update()
    assert "page" in text(renderer)
    assert renderer.current.problem is None


def test_runs_that_vanish_leave_the_page_there(run, builder) -> None:
    renderer = Renderer([run], builder)
    renderer.update()
    (run / "config.toml").unlink()
    renderer.update()
    assert "page 1" in text(renderer)
    assert renderer.current.problem == "no run is left in these folders"


def test_after_a_problem_without_a_page_it_waits_again(run, builder) -> None:
    builder.error = ValueError("odd")
    renderer = Renderer([run], builder)
    renderer.update()
    renderer.update()
    assert renderer.current.problem == "ValueError: odd"
    (run / "config.toml").unlink()
    renderer.update()
    assert "No report yet" in text(renderer)
    assert renderer.current.problem is None


def test_a_page_that_cannot_be_written_counts_as_a_failure(run, builder) -> None:
    renderer = Renderer([run], lambda paths, **_: Plain("\udc80"))
    renderer.update()
    renderer.update()
    assert renderer.current.problem.startswith("UnicodeEncodeError")


def test_a_missing_package_ends_it(run, builder) -> None:
    builder.error = MissingExtra("the package jinja2 is not installed")
    with pytest.raises(MissingExtra):
        Renderer([run], builder).update()


def test_a_file_is_made_once(run) -> None:
    made = []
    report = Plain("page", files={"a.csv": lambda: made.append(1) or b"content"})
    renderer = Renderer([run], lambda *_, **__: report)
    renderer.update()
    for _ in range(2):
        assert renderer.current.files["a.csv"]() == b"content"
    assert made == [1]


def test_facts_are_plain_json(run, builder) -> None:
    renderer = Renderer([run], builder)
    renderer.update()
    assert set(json.loads(json.dumps(renderer.current.facts()))) == {
        "version", "state", "built", "problem",
    }  # fmt: skip
