"""How a run is drawn: sections of a known number of lines, each line cut to the width."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autofedavg.core.errors import printable
from autofedavg.experiment.words import duration, size
from autofedavg.monitor.watch.glyphs import BLOCKS, PLAIN, bar, buckets, curve, trend
from autofedavg.monitor.watch.state import RunState, SiteState, Spread

STYLES = {
    "running": "green",
    "finished": "cyan",
    "failed": "bold red",
    "damaged": "bold red",
    "interrupted": "yellow",
}
ARROWS = {"falls": "↓v", "level": "→=", "rises": "↑^"}  # the second without Unicode
TALLEST = 6  # lines of the curve of validation
WIDEST = 3  # columns of a round in it
FEWEST = 3  # sites that are always shown
_LOG = re.compile(r"\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d),\d+ (\w+) [\w.]+: (.*)")


@dataclass(frozen=True)
class Paper:
    """What there is to draw on."""

    width: int
    unicode: bool = True

    @property
    def blocks(self) -> str:
        return BLOCKS if self.unicode else PLAIN


@dataclass(frozen=True)
class Section:
    """A part of the picture, drawn in as many lines as it is given.

    Attributes:
        least: lines it needs to be shown at all.
        most: lines it can use.
        rank: sections of a low rank are kept when there is little room.
        grows: the order in which sections get the room that is left.
    """

    least: int
    most: int
    rank: int
    grows: int
    draw: Callable[[int], RenderableType]


def share_out(sections: Sequence[Section], height: int | None) -> list[int]:
    """Lines for every section; 0 leaves it out. All it can use when there is no limit."""
    if height is None:
        return [section.most for section in sections]
    given, room = [0] * len(sections), height
    for i in sorted(range(len(sections)), key=lambda i: sections[i].rank):
        if sections[i].least <= room:
            given[i] = sections[i].least
            room -= given[i]
    for i in sorted(range(len(sections)), key=lambda i: sections[i].grows):
        if given[i]:
            more = min(room, sections[i].most - given[i])
            given[i], room = given[i] + more, room - more
    return given


def run_sections(run: RunState, paper: Paper) -> list[Section]:
    """All there is to say of a run, the most important first."""
    head = _head(run, paper)
    parts = [Section(len(head), len(head), 0, 9, lambda n: lines(head[:n]))]
    if run.t:
        scored = any(value is not None for value in run.validation)
        known = len(run.sites)
        few = 1 + (known if known <= FEWEST else FEWEST + 1)
        facts, calls = _facts(run), 1 + len(run.calls)
        parts += [
            Section(3, 2 + TALLEST, 2, 3, lambda n: _validation(run, paper, n))
            if scored
            else Section(1, 1, 2, 9, lambda n: lines([Text("no validation", style="dim")][:n])),
            Section(few, 1 + known, 3, 1, lambda n: _sites(run, paper, n)),
            Section(len(facts), len(facts), 1, 9, lambda n: lines(facts[:n])),
            Section(calls, calls, 5, 9, lambda n: _calls(run)),
        ]
    if run.log:
        parts.append(Section(1, len(run.log), 4, 2, lambda n: _log(run, n)))
    return parts


def named(run: RunState) -> str:
    """A run as people call it."""
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


def lines(texts: Sequence[Text]) -> Group:
    """One line each, cut where the terminal ends."""
    for text in texts:
        text.no_wrap, text.overflow = True, "ellipsis"
    return Group(*texts)


def table(*heads: str, left: int = 1) -> Table:
    """Columns of text, the first ones to the left; every row is one line."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, head in enumerate(heads):
        where = "left" if number < left else "right"
        made.add_column(head, justify=where, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    return made


def hint(verb: str, folder: Path, what: str, paper: Paper) -> Text:
    """A command that may be copied: whole, or without the folder where that has no room."""
    told = f"`autofedavg {verb} {printable(shlex.quote(str(folder)))}` {what}"
    if len(told) > paper.width:
        told = f"`autofedavg {verb}` {what}"
    return Text(told, style="dim")


def _head(run: RunState, paper: Paper) -> list[Text]:
    title = Text.assemble((named(run), "bold"), "  ", state_of(run))
    if run.method:
        title.append(f"  {printable(run.method)}", style="dim")
    found = [title]
    if run.state == "not begun":
        return [*found, Text("not begun yet", style="dim")]
    if run.state in ("failed", "damaged"):
        wrapped = [printable(line) for line in run.error.splitlines()]
        pieces = [
            line[i : i + paper.width] for line in wrapped for i in range(0, len(line), paper.width)
        ]
        found += [Text(piece, style="red") for piece in pieces[:4]]
    if run.state == "finished":
        found.append(hint("report", run.folder, "prints the test scores", paper))
    if run.killed:
        found.append(
            Text("running, but nobody on this machine holds its lock: killed?", style="red")
        )
    if run.quiet and run.silent is not None:
        found.append(Text(f"silent for {duration(run.silent)}", style="yellow"))
    if run.killed or run.state in ("failed", "interrupted"):
        found.append(hint("resume", run.folder, "goes on", paper))
    return [*found, _progress(run, paper)]


def _progress(run: RunState, paper: Paper) -> Text:
    told = f"round {run.t} of {run.T or '?'}"
    after = []
    if run.seconds_a_round is not None:
        after.append(f"{duration(run.seconds_a_round)} a round")
    if run.going_on and run.t == run.T:
        after.append("testing the models")
    elif run.going_on and run.seconds_left is not None:
        after.append(f"about {duration(run.seconds_left)} left")
    end = ", ".join(after)
    room = max(4, min(40, paper.width - len(told) - len(end) - 5))
    drawn = bar(run.t / run.T if run.T else 0.0, room, paper.blocks)
    empty = "░" if paper.unicode else "."
    return Text.assemble(told, "  ", (drawn.replace(" ", empty), "green"), "  ", end)


def _validation(run: RunState, paper: Paper, count: int) -> RenderableType:
    known = [(t, value) for t, value in enumerate(run.validation, 1) if value is not None]
    t, last = known[-1]
    first = Text.assemble(
        f"validation {printable(run.metric)} ", (percent(last), "bold"), f" in round {t}"
    )
    if run.best:
        first.append(f", best {percent(run.best.score)} in round {run.best.t}")
    low, high = (f(value for _, value in known) for f in (min, max))
    room = max(8, paper.width - 16)
    wide = max(1, min(WIDEST, room // len(run.validation)))  # columns of a round
    columns = [value for value in run.validation for _ in range(wide)]
    drawn = [Text(line, style="green") for line in curve(columns, room, count - 2, paper.blocks)]
    drawn[0].append(f"  {percent(high)}", style="dim")
    if len(drawn) > 1:
        drawn[-1].append(f"  {percent(low)}", style="dim")
    else:
        drawn[0].append(f" from {percent(low)}", style="dim")
    at = wide * (run.best.t - 1) if run.best else 0
    at = next((c for c, (_, end) in enumerate(buckets(len(columns), room)) if at < end), 0)
    mark = " " * at + ("▲" if paper.unicode else "^")
    return lines([first, *drawn, Text(f"{mark} best", style="dim")])


def _sites(run: RunState, paper: Paper, count: int) -> RenderableType:
    wide, layered = paper.width >= 72, any(_ranges(site.alpha) for site in run.sites)
    heads = ["site", "alpha", "", *(["beta"] if wide else []), "valid.", *(["own"] if wide else [])]
    made = table(*heads, "loss", *([""] if wide else []), left=2)
    made.columns[0].max_width = 20 if wide else 12
    shown: list[SiteState] = list(run.sites)
    room = count - 1
    if len(shown) > room:
        room -= 1  # the line that counts the others
        shown = sorted(shown, key=lambda s: (s.answered, -(s.alpha.mean if s.alpha else 0.0)))[
            :room
        ]
    widest = max((site.alpha.high for site in run.sites if site.alpha), default=1.0) or 1.0
    for site in shown:
        weight = "" if site.alpha is None else bar(site.alpha.mean / widest, 10, paper.blocks)
        number = "" if site.alpha is None else f"{site.alpha.mean:.3f}"
        if layered and wide and site.alpha:
            number += f" ({site.alpha.low:.2f}-{site.alpha.high:.2f})"
        loss = next((value for value in reversed(site.loss) if value is not None), None)
        name = Text(printable(site.name), style="" if site.answered else "bold red")
        cells: list[Text | str] = [name, Text(weight, style="blue"), number]
        cells += [_middle(site.beta)] if wide else []
        cells += [percent(site.validation)]
        cells += [percent(site.validation_local)] if wide else []
        cells += ["" if loss is None else f"{loss:.3f}"]
        made.add_row(*cells, *([_falling(site, paper)] if wide else []))
    if len(shown) == len(run.sites):
        return made
    return Group(made, Text(f"and {len(run.sites) - len(shown)} more sites", style="dim"))


def _falling(site: SiteState, paper: Paper) -> Text:
    """The loss of the last rounds as a small curve, and where it goes."""
    arrow = ARROWS.get(trend(site.loss), "  ")[0 if paper.unicode else 1]
    drawn = curve(site.loss[-8:], 8, 1, paper.blocks)[0].rjust(8)
    return Text(f"{drawn} {arrow}", style="magenta")


def _ranges(weight: Spread | None) -> bool:
    return weight is not None and weight.high > weight.low


def _middle(weight: Spread | None) -> str:
    return "" if weight is None else f"{weight.mean:.2f}"


def _facts(run: RunState) -> list[Text]:
    told = Text(f"all {len(run.sites)} sites answered")
    if run.missing:
        some = printable(", ".join(run.missing[:5]))
        more = f" and {len(run.missing) - 5} more" if len(run.missing) > 5 else ""
        there = len(run.sites) - len(run.missing)
        told = Text.assemble(
            f"{there} of {len(run.sites)} sites answered, missing: ", (some + more, "bold red")
        )
    if run.learned == run.t:
        told.append("; weights learned in this round")
    elif run.learned:
        told.append(f"; weights last learned in round {run.learned}")
    elif any(site.alpha for site in run.sites):
        learns = any(site.beta for site in run.sites)
        told.append("; weights not learned yet" if learns else "; weights are fixed")
    cost = f"traffic {size(run.down)} down, {size(run.up)} up"
    cost += f"; resumed {run.resumed} times" if run.resumed else ""
    return [told, Text(cost)]


def _calls(run: RunState) -> RenderableType:
    made = table("call", "calls", "seconds", "down", "up")
    for name, cost in run.calls.items():
        count, seconds = f"{cost['calls']:.0f}", f"{cost['seconds']:.1f}"
        made.add_row(printable(name), count, seconds, size(cost["down"]), size(cost["up"]))
    return made


def _log(run: RunState, count: int) -> RenderableType:
    found = []
    for line in run.log[-count:]:
        parts = _LOG.fullmatch(line)
        if parts:
            level = "" if parts[2] == "INFO" else f"{parts[2]} "
            line = f"{parts[1]} {level}{parts[3]}"
        found.append(Text(printable(line), style="dim"))
    return lines(found)
