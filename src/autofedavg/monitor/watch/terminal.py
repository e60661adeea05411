"""The dashboard: a picture of a run or a study that fits the terminal, drawn again and again."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.text import Text

from autofedavg.core.errors import RunError, printable
from autofedavg.experiment.words import duration
from autofedavg.monitor.watch.glyphs import bar
from autofedavg.monitor.watch.reading import Reader, reader
from autofedavg.monitor.watch.sections import (
    Paper,
    Section,
    hint,
    lines,
    named,
    percent,
    run_sections,
    share_out,
    state_of,
    table,
)
from autofedavg.monitor.watch.state import RunState, StudyState

State = RunState | StudyState
FEWEST = 3  # runs of a study that are always shown
TO_COME = "to come"


class Picture:
    """A state as rich draws it: all of it, or what matters most and fits the terminal."""

    def __init__(self, state: State, *, fitting: bool = False) -> None:
        self.state, self.fitting = state, fitting

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        paper = Paper(options.max_width, not options.ascii_only)
        height = console.height if self.fitting else None
        if isinstance(self.state, RunState):
            sections = run_sections(self.state, paper)
        else:
            sections = _study_sections(self.state, paper, not self.fitting)
        given = share_out(sections, height)
        parts = [part.draw(count) for part, count in zip(sections, given, strict=True) if count]
        yield Group(*parts)


def show(path: Path, console: Console) -> None:
    """Draws one picture."""
    console.print(Picture(reader(path).look()))


def follow(path: Path, console: Console, every: float) -> bool:
    """Draws until the run, or all of the study, is finished, or one fails meanwhile.

    Returns:
        Whether it ended well.

    Raises:
        RunError: the folder cannot be read, or vanished.
    """
    eye = reader(path)
    state = eye.look()
    failed = _failed(state)
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(Picture(state, fitting=True), refresh=True)
                over = _failed(state) - failed and not _going_on(state)
                if over or _finished(state):
                    return not over
                time.sleep(every)
                state = _look_again(eye)
                failed &= _failed(state)
    finally:
        console.print(Picture(state))


def goes_on(path: Path) -> str:
    """What is said when watching is stopped."""
    try:
        running = _going_on(reader(path).look())
    except RunError:
        running = False
    return "the run goes on by itself" if running else "nothing was running"


def harmless_stdout() -> Console:
    """A console that shows what the terminal cannot encode as its code, instead of failing."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    return Console(highlight=False, markup=False, emoji=False)


def _look_again(eye: Reader) -> State:
    try:
        state = eye.look()
    except RunError:
        if eye.path.exists():
            raise
    else:
        if eye.path.exists():
            return state
    raise RunError(
        "the folder has vanished while it was watched",
        where=str(eye.path),
        remedy="look where it was moved to",
    )


def _runs(state: State) -> tuple[RunState, ...]:
    return (state,) if isinstance(state, RunState) else state.runs


def _failed(state: State) -> set[Path]:
    return {run.folder for run in _runs(state) if run.state == "failed"}


def _going_on(state: State) -> bool:
    return any(run.going_on for run in _runs(state))


def _finished(state: State) -> bool:
    return all(run.state == "finished" for run in _runs(state))


def _study_sections(study: StudyState, paper: Paper, all_of_it: bool) -> list[Section]:
    head = _study_head(study, paper)
    known = len(study.runs)
    few = 1 + (known if known <= FEWEST else FEWEST + 1)
    parts = [
        Section(len(head), len(head), -2, 9, lambda n: lines(head[:n])),
        Section(few, 1 + known, -1, 0, lambda n: _table(study, n)),
    ]
    for run in study.current if all_of_it else study.current[:1]:
        parts.append(Section(1, 1, -1, 9, lambda n: lines([Text("")][:n])))
        parts += run_sections(run, paper)
    return parts


def _study_head(study: StudyState, paper: Paper) -> list[Text]:
    done = sum(run.state == "finished" for run in study.runs)
    told = f"{done} of {len(study.runs)} runs finished"
    left = study.seconds_left
    end = f"about {duration(left)} left" if left and _going_on(study) else ""
    room = max(4, min(40, paper.width - len(told) - len(end) - 5))
    empty = "░" if paper.unicode else "."
    drawn = bar(done / max(1, len(study.runs)), room, paper.blocks).replace(" ", empty)
    found = [
        Text(printable(study.title), style="bold"),
        Text.assemble(told, "  ", (drawn, "cyan"), "  ", end),
    ]
    if done == len(study.runs):
        found.append(hint("report", study.folder, "prints the test scores", paper))
    return found


def _table(study: StudyState, count: int) -> RenderableType:
    made = table("run", "state", "round", "valid.", "best", left=2)
    urgent: set[Path] = set()
    shown, room = study.runs, count - 1
    if len(shown) > room:
        room -= 1  # the line that counts the others
        urgent = {run.folder for run in sorted(study.runs, key=_urgency)[:room]}
        shown = tuple(run for run in study.runs if run.folder in urgent)
    for run in shown:
        begun = run.state != "not begun"
        last = next((value for value in reversed(run.validation) if value is not None), None)
        best = f"{percent(run.best.score)} in {run.best.t}" if run.best else ""
        made.add_row(
            named(run),
            state_of(run) if begun else Text(TO_COME, style="dim"),
            f"{run.t}/{run.T or '?'}",
            percent(last),
            best,
        )
    if len(shown) == len(study.runs):
        return made
    hidden = [run for run in study.runs if run.folder not in urgent]
    states = [TO_COME if run.state == "not begun" else run.state for run in hidden]
    counted = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
    return Group(made, lines([Text(f"and {len(hidden)} more: {counted}", style="dim")]))


def _urgency(run: RunState) -> tuple[int, float]:
    """What is going on comes first, then what went wrong, what was finished last, what comes."""
    kinds = {"failed": 1, "interrupted": 1, "running": 1, "finished": 2}
    return (0 if run.going_on else kinds.get(run.state, 3), run.silent or 0.0)
