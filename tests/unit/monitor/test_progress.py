"""What is drawn, or written, while a study goes on."""

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from autofedavg.core.errors import RunError
from autofedavg.experiment.selection import Seen
from autofedavg.monitor import progress
from autofedavg.monitor.progress import Bars, Lines

HERE = Path("here")


def row(name: str) -> SimpleNamespace:
    return SimpleNamespace(name=name, label=name.upper(), T=9, folds=(), task=None)


def seen(t: int) -> Seen:
    return Seen(t, 9, 0.5, [0.25, 0.75], ("A", "B"))


class Drawn:
    """Bars, and what of them can be seen: description -> (completed, total)."""

    def __init__(self) -> None:
        self.written = io.StringIO()
        console = Console(file=self.written)
        self.progress = Progress(TextColumn("{task.description}"), console=console)
        self.bars = Bars(self.progress)

    def visible(self) -> dict[str, tuple[float, float]]:
        return {
            task.description: (task.completed, task.total)
            for task in self.progress.tasks
            if task.visible
        }


def test_one_run_after_another() -> None:
    drawn = Drawn()
    drawn.bars.found(HERE)  # finished before
    drawn.bars.started(row("a"), 0, 2, 3, HERE)
    drawn.bars.round(seen(4))
    assert drawn.visible() == {"study": (1, 3), "A, seed 0": (4, 9)}
    drawn.bars.finished(HERE)
    drawn.bars.started(row("b"), 1, 3, 3, HERE)
    assert drawn.visible() == {"study": (2, 3), "B, seed 1": (0, 9)}


def test_every_run_under_way_has_a_bar() -> None:
    drawn = Drawn()
    a, b = drawn.bars.beside(), drawn.bars.beside()
    a.started(row("a"), 0, 1, 3, HERE)
    b.started(row("b"), 0, 2, 3, HERE)
    b.round(seen(2))
    assert drawn.visible() == {"study": (0, 3), "A, seed 0": (0, 9), "B, seed 0": (2, 9)}
    a.finished(HERE)
    b.failed(HERE, RunError("too bad"))
    assert drawn.visible() == {"study": (2, 3)}
    assert len(drawn.progress.tasks) == 2  # those of runs that are over are gone
    assert drawn.written.getvalue() == "failed: too bad\n"


class Log:
    """Lines of a log, and a clock that stands still until it is told the second."""

    def __init__(self, monkeypatch) -> None:
        self.now, self.written = 0.0, io.StringIO()
        monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.lines = Lines(Console(file=self.written, width=200))

    def read(self) -> list[str]:
        return self.written.getvalue().splitlines()


def test_parallel_runs_share_one_line_a_minute(monkeypatch) -> None:
    log = Log(monkeypatch)
    a, b = log.lines.beside(), log.lines.beside()
    a.started(row("a"), 0, 1, 2, HERE)
    b.started(row("b"), 0, 2, 2, HERE)
    log.now = 61.0
    for each in (a, b, a):
        each.round(seen(3))
    b.failed(HERE, RunError("too bad"))  # at once
    assert log.read() == [
        "run 1 of 2, a, seed 0: round 3 of 9  validation 50.0  alpha A 0.25 B 0.75",
        "failed: too bad",
    ]


def test_a_log_of_many_short_runs_is_not_empty(monkeypatch) -> None:
    """Eight runs of 22 seconds each, two at a time: none of them has a minute of its own."""
    log = Log(monkeypatch)
    for pair in range(4):
        both = [log.lines.beside(), log.lines.beside()]
        for k, each in enumerate(both):
            each.started(row("a"), 0, 2 * pair + k + 1, 8, HERE)
        log.now += 22.0
        for each in both:
            each.finished(HERE)
    assert log.read() == ["run 5 of 8 finished"]


def test_the_next_line_tells_which_run_has_ended_since(monkeypatch) -> None:
    log = Log(monkeypatch)
    log.lines.started(row("a"), 0, 1, 2, HERE)
    log.now = 61.0
    log.lines.round(seen(9))
    log.lines.finished(HERE)
    log.lines.started(row("b"), 0, 2, 2, HERE)
    for log.now in (90.0, 122.0, 190.0):
        log.lines.round(Seen(1, 9, None, None, ("A",)))
    assert log.read()[1:] == [
        "run 1 of 2 finished; run 2 of 2, b, seed 0: round 1 of 9",
        "run 2 of 2, b, seed 0: round 1 of 9",
    ]


@pytest.mark.parametrize("alpha", [None, []])
def test_a_round_without_weights(alpha) -> None:
    assert progress.describe(Seen(1, 2, None, alpha, ("A",))) == ""
