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
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from autofedavg.core.errors import AutoFedAvgError, MissingExtra
from autofedavg.monitor.watch.changes import FolderState, Stamp, find

if TYPE_CHECKING:
    from autofedavg.report.build import Report

RETRY = 60.0  # seconds before a build that failed is tried again, if nothing changes
Files = Mapping[str, Callable[[], bytes]]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rendering:
    """The page and its files, as served at a moment."""

    version: str  # differs whenever the page does, also after a restart of the server
    state: str
    built: str
    problem: str | None  # why a newer page could not be made
    page: bytes
    files: Files

    def facts(self) -> dict[str, str | None]:
        """What an open page asks for to know whether it is out of date."""
        return {name: getattr(self, name) for name in ("version", "state", "built", "problem")}


class Renderer:
    """Holds the newest rendering; one thread calls `update`, any may read `current`.

    `build` makes the report as `build_report` does; `every` is the seconds between two looks at
    the folders; `warn` is called with every new problem.
    """

    current: Rendering

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
        self._retry_at = math.inf
        self._examples: Any = False  # of the last report, and the scores they belong to
        self._pictured: dict[Path, Stamp] | None = None
        self._wait(None)

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
            self.current = replace(self.current, problem=problem)
            if self.current.state == "waiting":
                self._wait(problem)
        # A build takes time from the run it shows: never more than half of it.
        return max(self._every, time.monotonic() - begun)

    def _render(self, found: FolderState) -> str | None:
        """Publishes what was found; returns what the page lacks, and why."""
        if not found.paths:
            return None if self.current.state == "waiting" else "no run is left in these folders"
        new = found.scores != self._pictured
        if new and found.scores:
            # Pictures need the models applied again, which may take long: the numbers come first.
            self._report(found, self._examples)
        report = self._report(found, new or self._examples)
        self._pictured = found.scores
        return f"runs are left out: {report.problem}" if report.problem else None

    def _report(self, found: FolderState, examples: Any) -> Report:
        report = self._build(found.paths, examples=examples)
        made = {name: cache(make) for name, make in report.files.items()}
        self._publish(report.page, found.state, self.current.problem, made)
        self._examples = report.examples
        return report

    def _wait(self, problem: str | None) -> None:
        hope = (
            f"{problem}. The server tries again." if problem else "It appears with the first run."
        )
        text = f"{hope} Folders: {', '.join(map(str, self._paths))}"
        self._publish(partial(small_page, "No report yet", text), "waiting", problem, {})

    def _publish(
        self, page: Callable[[str], str], state: str, problem: str | None, made: Files
    ) -> None:
        self._count += 1
        version, now = f"{self._server}-{self._count}", datetime.now(UTC)
        content = page(f"{_resource('refresh.js').strip()}({json.dumps(version)});").encode()
        built = now.isoformat(timespec="seconds")
        self.current = Rendering(version, state, built, problem, content, made)


def build_report(paths: Sequence[Path], **options: Any) -> Report:
    """The report; imported late, so that the address is printed before torch is loaded."""
    from autofedavg.report import build

    return build.build_report(paths, spare_damaged=True, **options)


def small_page(title: str, text: str, script: str = "", head: str = "") -> str:
    """A page of one sentence, which `script` replaces by the report later."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(_resource("small.html")).substitute(
        title=escape(title), text=escape(text), script=script, digest=digest, head=head
    )


def _resource(name: str) -> str:
    return files("autofedavg.monitor.serve").joinpath(name).read_text(encoding="utf-8")
