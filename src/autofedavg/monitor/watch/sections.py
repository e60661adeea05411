"""Draws a run: sections for rich's layout, each line cut to the width."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.layout import Layout
from rich.table import Table
from rich.text import Text

from autofedavg.core.errors import printable
from autofedavg.experiment.words import duration, size
from autofedavg.monitor.watch.glyphs import bar, buckets, curve, trend
from autofedavg.monitor.watch.state import RunState, SiteState

STYLES = {
    "running": "green",
    "finished": "cyan",
    "failed": "bold red",
    "damaged": "bold red",
    "interrupted": "yellow",
}
ARROWS = {"falls": "↓v", "level": "→=", "rises": "↑^"}  # the second without Unicode
SITE_HEADS = ("site", "alpha", "", "beta", "valid.", "own", "loss", "")
NARROW = (0, 1, 2, 4, 6)  # columns of sites in a narrow terminal
TALLEST = 6  # lines of the curve of validation
WIDEST = 3  # columns of a round in it
FEWEST = 3  # sites that are always shown
_LOG = re.compile(r"\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d),\d+ (\w+) [\w.]+: (.*)")


@dataclass(frozen=True)
class Section:
    """A part of the picture, drawn in the lines that rich's layout gives it.

    Attributes:
        least: lines it needs to be shown at all.
        most: lines it can use.
        rank: sections of a low rank are kept when there is little room.
        draw: draws it, with the options of the console and the lines it has.
        ratio: its share of the lines that are left.
    """

    least: int
    most: int
    rank: int
    draw: Callable[[ConsoleOptions, int], RenderableType]
    ratio: int = 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        drawn = self.draw(options, min(options.height or self.most, self.most))
        yield from console.render(drawn, options.update(no_wrap=True, overflow="ellipsis"))


def lines(rank: int, *drawn: RenderableType) -> Section:
    """A section that is always as high as it is: one line for each argument."""
    return Section(len(drawn), len(drawn), rank, lambda *_: Group(*drawn))


def fitted(sections: Sequence[Section], height: int) -> Layout:
    """The most important sections that fit, each with room to grow if there is some."""
    shown, room = list(sections), height
    for section in sorted(sections, key=lambda section: section.rank):
        if section.least <= room:
            room -= section.least
        else:
            shown.remove(section)
    roomy, whole = sum(section.most for section in shown) <= height, Layout()
    for part in shown:
        size = part.most if roomy or part.least == part.most else None
        whole.add_split(Layout(part, size=size, minimum_size=part.least, ratio=part.ratio))
    return whole


def run_sections(run: RunState, options: ConsoleOptions) -> list[Section]:
    """All there is to say of a run, the most important first."""
    parts = [lines(0, *_head(run, options))]
    if run.t:
        known, calls = len(run.sites), 1 + len(run.calls)
        few = 1 + min(known, FEWEST + 1)
        if any(value is not None for value in run.validation):
            parts.append(Section(3, 2 + TALLEST, 2, lambda *to: _validation(run, *to)))
        else:
            parts.append(lines(2, Text("no validation", style="dim")))
        parts += [
            Section(few, 1 + known, 3, lambda *to: _sites(run, *to), ratio=3),
            lines(1, _answered(run), _traffic(run)),
            Section(calls, calls, 5, lambda *_: _calls(run)),
        ]
    if run.log:
        parts.append(Section(1, len(run.log), 4, lambda _, height: _log(run, height)))
    return parts


def named(run: RunState) -> str:
    """The run's label, fold and seed."""
    fold = "" if run.fold is None else f", fold {run.fold}"
    seed = "" if run.seed is None else f", seed {run.seed}"
    return printable(f"{run.label}{fold}{seed}")


def state_of(run: RunState) -> Text:
    """The state in a word or two."""
    if run.killed:
        return Text("killed?", style="bold red")
    if run.state == "running" and run.t == run.T:
        return Text("testing", style=STYLES["running"])
    if run.quiet:
        return Text("silent", style="yellow")
    return Text(printable(run.state), style=STYLES.get(run.state, "dim"))


def percent(score: float | None) -> str:
    """A score in percent, as in tables."""
    return "" if score is None else f"{100 * score:.1f}"


def table(*heads: str, left: int = 1) -> Table:
    """A table of one-line rows, its first columns to the left."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, head in enumerate(heads):
        where = "left" if number < left else "right"
        made.add_column(head, justify=where, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    return made


def hint(verb: str, folder: Path, what: str, options: ConsoleOptions) -> Text:
    """A command to copy: whole, or without the folder where there is no room for it."""
    whole = f"`autofedavg {verb} {printable(shlex.quote(str(folder)))}` {what}"
    fits = len(whole) <= options.max_width
    return Text(whole if fits else f"`autofedavg {verb}` {what}", style="dim")


def progress_line(
    before: str, share: float, after: str, style: str, options: ConsoleOptions
) -> Text:
    """A bar between two texts, as long as they leave it room."""
    room = max(4, min(40, options.max_width - len(before) - len(after) - 5))
    drawn = bar(share, room, options.ascii_only)
    drawn = drawn.replace(" ", "." if options.ascii_only else "░")
    return Text.assemble(before, "  ", (drawn, style), "  ", after)


def _head(run: RunState, options: ConsoleOptions) -> list[Text]:
    title = Text.assemble((named(run), "bold"), "  ", state_of(run))
    if run.method:
        title.append(f"  {printable(run.method)}", style="dim")
    found = [title]
    if run.state == "not begun":
        return [*found, Text("not begun yet", style="dim")]
    if run.state in ("failed", "damaged"):
        said = [printable(line) for line in run.error.splitlines()]
        wrapped = [part for line in said for part in textwrap.wrap(line, options.max_width)]
        found += [Text(line, style="red") for line in wrapped[:4]]
    if run.state == "finished":
        found.append(hint("report", run.folder, "prints the test scores", options))
    if run.killed:
        found.append(Text("running, but no process holds its lock: killed?", style="red"))
    if run.quiet and run.silent is not None:
        found.append(Text(f"silent for {duration(run.silent)}", style="yellow"))
    if run.killed or run.state in ("failed", "interrupted"):
        found.append(hint("resume", run.folder, "continues it", options))
    return [*found, _progress(run, options)]


def _progress(run: RunState, options: ConsoleOptions) -> Text:
    after = []
    if run.seconds_a_round is not None:
        after.append(f"{duration(run.seconds_a_round)} a round")
    if run.going_on and run.t == run.T:
        after.append("testing the models")
    elif run.going_on and run.seconds_left is not None:
        after.append(f"about {duration(run.seconds_left)} left")
    before, share = f"round {run.t} of {run.T or '?'}", run.t / run.T if run.T else 0.0
    return progress_line(before, share, ", ".join(after), "green", options)


def _validation(run: RunState, options: ConsoleOptions, height: int) -> RenderableType:
    known = [(t, value) for t, value in enumerate(run.validation, 1) if value is not None]
    t, last = known[-1]
    first = Text.assemble(
        f"validation {printable(run.metric)} ", (percent(last), "bold"), f" in round {t}"
    )
    if run.best:
        first.append(f", best {percent(run.best.score)} in round {run.best.t}")
    low, high = (f(value for _, value in known) for f in (min, max))
    room = max(8, options.max_width - 16)
    wide = max(1, min(WIDEST, room // len(run.validation)))  # columns of a round
    columns = [value for value in run.validation for _ in range(wide)]
    drawn = [
        Text(line, style="green") for line in curve(columns, room, height - 2, options.ascii_only)
    ]
    drawn[0].append(f"  {percent(high)}", style="dim")
    drawn[-1].append(f"{'  ' if len(drawn) > 1 else ' from '}{percent(low)}", style="dim")
    at = wide * (run.best.t - 1) if run.best else 0
    at = next((c for c, (_, end) in enumerate(buckets(len(columns), room)) if at < end), 0)
    mark = " " * at + ("^" if options.ascii_only else "▲")
    return Group(first, *drawn, Text(f"{mark} best", style="dim"))


def _sites(run: RunState, options: ConsoleOptions, height: int) -> RenderableType:
    wide, room, shown = options.max_width >= 72, height - 1, list(run.sites)
    if len(shown) > room:  # first those that did not answer, then the largest weights
        shown.sort(key=lambda site: (site.answered, -(site.alpha.mean if site.alpha else 0.0)))
        del shown[room - 1 :]  # one line counts the others
    widest = max((site.alpha.high for site in run.sites if site.alpha), default=1.0) or 1.0
    layered = wide and any(site.alpha and site.alpha.high > site.alpha.low for site in run.sites)
    columns = range(len(SITE_HEADS)) if wide else NARROW
    made = table(*(SITE_HEADS[number] for number in columns), left=2)
    made.columns[0].max_width = 20 if wide else 12
    for site in shown:
        alpha, share = "", 0.0
        if site.alpha:
            alpha, share = f"{site.alpha.mean:.3f}", site.alpha.mean / widest
            alpha += f" ({site.alpha.low:.2f}-{site.alpha.high:.2f})" if layered else ""
        loss = next((value for value in reversed(site.loss) if value is not None), None)
        cells = (
            Text(printable(site.name), style="" if site.answered else "bold red"),
            Text(bar(share, 10, options.ascii_only), style="blue"),
            alpha,
            f"{site.beta.mean:.2f}" if site.beta else "",
            percent(site.validation),
            percent(site.validation_local),
            "" if loss is None else f"{loss:.3f}",
            _losses(site, options.ascii_only),
        )
        made.add_row(*(cells[number] for number in columns))
    if len(shown) == len(run.sites):
        return made
    return Group(made, Text(f"and {len(run.sites) - len(shown)} more sites", style="dim"))


def _losses(site: SiteState, ascii_only: bool) -> Text:
    """The loss of the last rounds as a small curve, and its trend."""
    arrow = ARROWS.get(trend(site.loss), "  ")[ascii_only]
    drawn = curve(site.loss[-8:], 8, ascii_only=ascii_only)[0].rjust(8)
    return Text(f"{drawn} {arrow}", style="magenta")


def _answered(run: RunState) -> Text:
    """Which sites answered in this round, and when weights were learned."""
    known, missing = len(run.sites), run.missing
    said = Text(f"all {known} sites answered")
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        said = Text(f"{known - len(missing)} of {known} sites answered, missing: ")
        said.append(printable(", ".join(missing[:5])) + more, style="bold red")
    if run.learned == run.t:
        said.append("; weights learned in this round")
    elif run.learned:
        said.append(f"; weights last learned in round {run.learned}")
    elif any(site.alpha for site in run.sites):
        learns = any(site.beta for site in run.sites)
        said.append("; weights not learned yet" if learns else "; weights are fixed")
    return said


def _traffic(run: RunState) -> Text:
    again = f"; resumed {run.resumed} times" if run.resumed else ""
    return Text(f"traffic {size(run.down)} down, {size(run.up)} up{again}")


def _calls(run: RunState) -> RenderableType:
    made = table("call", "calls", "seconds", "down", "up")
    for name, cost in run.calls.items():
        count, seconds = f"{cost['calls']:.0f}", f"{cost['seconds']:.1f}"
        made.add_row(printable(name), count, seconds, size(cost["down"]), size(cost["up"]))
    return made


def _log(run: RunState, height: int) -> RenderableType:
    found = []
    for line in run.log[-height:]:
        if parts := _LOG.fullmatch(line):
            level = "" if parts[2] == "INFO" else f"{parts[2]} "
            line = f"{parts[1]} {level}{parts[3]}"
        found.append(Text(printable(line), style="dim"))
    return Group(*found)
