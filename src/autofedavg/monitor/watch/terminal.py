"""The dashboard: a run or a study in the terminal, once or until it is over."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.text import Text

from autofedavg.core.errors import RunError, printable
from autofedavg.experiment.words import duration
from autofedavg.monitor.watch.reading import Reader, reader
from autofedavg.monitor.watch.sections import (
    Section,
    fitted,
    hint,
    lines,
    named,
    percent,
    progress_line,
    run_sections,
    state_of,
    table,
)
from autofedavg.monitor.watch.state import RunState, StudyState

State = RunState | StudyState
FEWEST = 3  # runs of a study that are always shown
TO_COME = "to come"


class Dashboard:
    """A state for rich to draw: all of it, or what matters most and fits the terminal."""

    def __init__(self, state: State, *, fitting: bool = False) -> None:
        self.state, self.fitting = state, fitting

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if isinstance(self.state, RunState):
            sections = run_sections(self.state, options)
        else:
            sections = _study_sections(self.state, options, not self.fitting)
        yield fitted(sections, console.height) if self.fitting else Group(*sections)


def show(path: Path, console: Console) -> None:
    """Prints the state once."""
    console.print(Dashboard(reader(path).look()))


def follow(path: Path, console: Console, every: float) -> bool:
    """Draws until the run, or all of the study, is finished, or one fails meanwhile.

    Returns:
        Whether it ended well.

    Raises:
        RunError: the folder cannot be read, or vanished.
    """
    folder_reader = reader(path)
    state = folder_reader.look()
    failed = _failed(state)
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(Dashboard(state, fitting=True), refresh=True)
                over = _failed(state) - failed and not state.going_on
                if over or all(run.state == "finished" for run in state.runs):
                    return not over
                time.sleep(every)
                state = _look_again(folder_reader)
                failed &= _failed(state)
    finally:
        console.print(Dashboard(state))


def goes_on(path: Path) -> str:
    """What to print when watching is stopped."""
    try:
        running = reader(path).look().going_on
    except RunError:
        running = False
    return "the run goes on by itself" if running else "nothing was running"


def harmless_stdout() -> Console:
    """A console that shows what the terminal cannot encode as its code, instead of failing."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    return Console(highlight=False, markup=False, emoji=False)


def _look_again(folder_reader: Reader) -> State:
    try:
        return folder_reader.look()
    finally:
        if not folder_reader.path.exists():
            raise RunError(
                "the folder has vanished while it was watched",
                where=str(folder_reader.path),
                remedy="look where it was moved to",
            )


def _failed(state: State) -> set[Path]:
    return {run.folder for run in state.runs if run.state == "failed"}


def _study_sections(study: StudyState, options: ConsoleOptions, all_of_it: bool) -> list[Section]:
    known = len(study.runs)
    few = 1 + (known if known <= FEWEST else FEWEST + 1)
    parts = [
        lines(-2, *_study_head(study, options)),
        Section(few, 1 + known, -1, lambda _, height: _table(study, height), ratio=3),
    ]
    for run in study.current if all_of_it else study.current[:1]:
        parts += [lines(-1, Text("")), *run_sections(run, options)]
    return parts


def _study_head(study: StudyState, options: ConsoleOptions) -> list[Text]:
    done, known = sum(run.state == "finished" for run in study.runs), len(study.runs)
    left = study.seconds_left
    after = f"about {duration(left)} left" if left and study.going_on else ""
    before = f"{done} of {known} runs finished"
    found = [
        Text(printable(study.title), style="bold"),
        progress_line(before, done / max(1, known), after, "cyan", options),
    ]
    if done == known:
        found.append(hint("report", study.folder, "prints the test scores", options))
    return found


def _table(study: StudyState, height: int) -> RenderableType:
    made = table("run", "state", "round", "valid.", "best", left=2)
    fits = len(study.runs) < height
    room = len(study.runs) if fits else height - 2  # without the heads and the count of the others
    urgent = {run.folder for run in sorted(study.runs, key=_urgency)[:room]}
    for run in study.runs:
        if run.folder in urgent:
            last = next((value for value in reversed(run.validation) if value is not None), None)
            made.add_row(
                named(run),
                Text(TO_COME, style="dim") if run.state == "not begun" else state_of(run),
                f"{run.t}/{run.T or '?'}",
                percent(last),
                f"{percent(run.best.score)} in {run.best.t}" if run.best else "",
            )
    if fits:
        return made
    hidden = Counter(
        TO_COME if run.state == "not begun" else run.state
        for run in study.runs
        if run.folder not in urgent
    )
    counted = ", ".join(f"{count} {state}" for state, count in sorted(hidden.items()))
    return Group(made, Text(f"and {hidden.total()} more: {counted}", style="dim"))


def _urgency(run: RunState) -> tuple[int, float]:
    """What is going on comes first, then what went wrong, what was finished last, what comes."""
    kinds = {"failed": 1, "interrupted": 1, "running": 1, "finished": 2}
    return (0 if run.going_on else kinds.get(run.state, 3), run.silent or 0.0)
