"""Renders the report when runs change, and keeps the last good page when that fails."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, NamedTuple

from autofedavg.core.errors import AutoFedAvgError, MissingExtra, RunError
from autofedavg.experiment import folder
from autofedavg.experiment.folder import read_json, run_paths, study_home
from autofedavg.monitor.watch.reading import Stamp, stamp

if TYPE_CHECKING:
    from autofedavg.report.build import Report

SCORES = (folder.SCORES, folder.SCORES_PACKED)
FILES = ("config.toml", "environment.json", "rounds.jsonl", "status.json", *SCORES)
RETRY = 60.0  # seconds before a build that failed is tried again, if nothing changes
MakeFile = Callable[[], bytes]
log = logging.getLogger(__name__)


class FolderState(NamedTuple):
    """Run folders at a moment; two are equal when nothing that a report shows has changed."""

    paths: tuple[Path, ...]  # those that have runs
    state: str  # "waiting" for a first run, "running" while more is to come, or "finished"
    stamps: dict[Path, Stamp]  # of every file that a report is made from


def find(paths: Sequence[Path]) -> FolderState:
    """Looks at run folders, or folders above them, without reading rounds or scores."""
    runs: dict[Path, Path] = {}  # with the path each was found by
    for path in paths:
        with suppress(RunError, OSError):  # no run yet, or a folder just removed
            for run in run_paths([path]):
                runs[run.resolve()] = path
    studies = {run: home for run in runs if (home := study_home(run))}
    watched = [run / name for run in runs for name in FILES]
    watched += [home / folder.STUDY for home in set(studies.values())]
    # A run that is named alone does not wait for its study.
    whole = {run: home for run, home in studies.items() if home.is_relative_to(runs[run].resolve())}
    state = _state(runs, whole) if runs else "waiting"
    stamps = {path: known for path in watched if any(known := stamp(path))}
    return FolderState(tuple(dict.fromkeys(runs.values())), state, stamps)


def _state(runs: Mapping[Path, Path], studies: Mapping[Path, Path]) -> str:
    """Running while a run goes on, or a study that was not stopped has runs to begin."""
    states = {run: _read(run / "status.json").get("state", "running") for run in runs}
    if "running" in states.values():
        return "running"
    for home in set(studies.values()):
        mine = [states[run] for run, above in studies.items() if above == home]
        wanted = sum(len(row["jobs"]) for row in _read(home / folder.STUDY).get("runs", []))
        if set(mine) == {"finished"} and len(mine) < wanted:
            return "running"
    return "finished"


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except RunError:  # half-written, or damaged
        return {}


@dataclass(frozen=True)
class Rendering:
    """The page and its files, as served at a moment."""

    version: str  # differs whenever the page does, also after a restart of the server
    state: str
    built: str
    page: bytes
    files: Mapping[str, MakeFile]
    problem: str | None = None  # why a newer page could not be made

    def facts(self) -> dict[str, str | None]:
        """What an open page asks for to know whether it is out of date."""
        return {name: getattr(self, name) for name in ("version", "state", "built", "problem")}


class Renderer:
    """Holds the newest rendering; one thread calls `update`, any may read `current`.

    `build` makes the report as `build_report` does; `every` is the seconds between two looks at
    the folders; `warn` is called with every new problem.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        build: Callable[..., Report],
        every: float = 1.5,
        warn: Callable[[str], None] = log.warning,
    ) -> None:
        self._paths, self._build = [path.absolute() for path in paths], build
        self._every, self._warn = every, warn
        self._server, self._count = secrets.token_hex(4), 0
        self._found: FolderState | None = None
        self._report: Report | None = None
        self._pictured: dict[Path, Stamp] | None = None
        self._retry_at = math.inf
        self.current = self._waiting(None)

    def update(self) -> float:
        """Renders if something is new; returns the seconds to wait before the next update.

        Raises:
            MissingExtra: a package that the report needs is not installed.
        """
        begun, found = time.monotonic(), find(self._paths)
        if found == self._found and begun < self._retry_at:
            return self._every
        self._found = found
        try:
            problem = self._render(found)
        except MissingExtra:
            raise
        except Exception as error:  # a folder may be in any condition
            log.debug("the page could not be made", exc_info=error)
            known = isinstance(error, AutoFedAvgError)
            problem = str(error) if known else f"{type(error).__name__}: {error}"
        self._retry_at = time.monotonic() + RETRY if problem else math.inf
        if problem != self.current.problem:
            self._warn(f"the page is not up to date: {problem}" if problem else "up to date again")
            page = self.current if self._report else self._waiting(problem)
            self.current = replace(page, problem=problem)
        # A build takes time from the run it shows: never more than half of it.
        return max(self._every, time.monotonic() - begun)

    def _render(self, found: FolderState) -> str | None:
        """Publishes what was found; returns what the page lacks, and why."""
        if not found.paths:
            return "no run is left in these folders" if self._report else None
        known = self._report.examples if self._report else False
        scores = {path: known for path, known in found.stamps.items() if path.name in SCORES}
        if scores and scores != self._pictured:
            # Pictures need the models applied again, which may take long: the numbers come first.
            self._publish(found, known)
        report = self._publish(found, known if scores == self._pictured else True)
        self._pictured = scores
        return f"runs are left out: {report.problem}" if report.problem else None

    def _publish(self, found: FolderState, examples: Any) -> Report:
        report = self._build(found.paths, examples=examples)
        made = {name: cache(make) for name, make in report.files.items()}
        page = self._rendered(report.page, found.state, made)
        self._report, self.current = report, replace(page, problem=self.current.problem)
        return report

    def _waiting(self, problem: str | None) -> Rendering:
        text = (
            f"{problem}. The server tries again." if problem else "It appears with the first run."
        )
        text += f" Folders: {', '.join(map(str, self._paths))}"
        return self._rendered(lambda script: small_page("No report yet", text, script), "waiting")

    def _rendered(
        self, page: Callable[[str], str], state: str, made: Mapping[str, MakeFile] | None = None
    ) -> Rendering:
        self._count += 1
        version = f"{self._server}-{self._count}"
        content = page(f"{_resource('refresh.js').strip()}({json.dumps(version)});").encode()
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return Rendering(version, state, now, content, made or {})


def build_report(paths: Sequence[Path], **options: Any) -> Report:
    """The report; imported late, so that the address is printed before torch is loaded."""
    from autofedavg.report import build

    return build.build_report(paths, spare_damaged=True, **options)


def small_page(title: str, text: str, script: str = "", head: str = "") -> str:
    """A page of one sentence, which `script` replaces by the report later."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = Template(_resource("small.html"))
    return page.substitute(
        title=escape(title), text=escape(text), script=script, digest=digest, head=head
    )


def _resource(name: str) -> str:
    return files("autofedavg.monitor.serve").joinpath(name).read_text(encoding="utf-8")
