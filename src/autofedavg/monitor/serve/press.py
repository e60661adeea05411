"""Makes the page anew when runs have changed, and keeps the last good one when that fails."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from autofedavg.core.errors import AutoFedAvgError, MissingExtra
from autofedavg.monitor.serve.changes import Look, State, look_at
from autofedavg.monitor.serve.pages import refresh_script, waiting_page

NOTHING = Look((), "waiting", {})  # where not even a look succeeds
AGAIN = 60.0  # seconds: the longest wait before a build that failed is tried once more
log = logging.getLogger(__name__)


class Report(Protocol):
    """What `autofedavg.report.build` makes, as far as it is served."""

    @property
    def files(self) -> Mapping[str, Callable[[], bytes]]: ...

    @property
    def problem(self) -> str | None:
        """Which runs could not be read and are left out, and why."""

    @property
    def examples(self) -> Any:
        """The example pictures, to be handed to the next build."""

    def page(self, script: str = "") -> str: ...


class LeftOut(AutoFedAvgError):
    """A page is there, but lacks runs that cannot be read."""


class Build(Protocol):
    """Makes a report of run folders; `examples` are those of an earlier one, or whether to."""

    def __call__(
        self, paths: Sequence[Path], baseline: str = "", *, examples: Any = True
    ) -> Report: ...


@dataclass(frozen=True)
class Edition:
    """What is served at a moment.

    Attributes:
        version: another one whenever the page is another one, also after a restart.
        problem: why a newer page could not be made.
    """

    version: str
    state: State
    built: str
    page: bytes
    files: Mapping[str, Callable[[], bytes]]
    problem: str | None = None

    def facts(self) -> dict[str, str | None]:
        """What a page asks for to know whether it is out of date."""
        return {
            "version": self.version,
            "state": self.state,
            "built": self.built,
            "problem": self.problem,
        }


class Press:
    """Holds the current edition and makes the next one.

    Only one thread may call `look`; any may read `current`.

    Args:
        paths: run folders, or folders above them; they need not exist yet.
        build: makes the report.
        baseline: row to test against; the study's when empty.
        every: seconds between two looks.
        say: told about problems, once each.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        build: Build,
        baseline: str = "",
        every: float = 1.5,
        say: Callable[[str], None] = log.info,
    ) -> None:
        self._paths, self._build, self._baseline = tuple(paths), build, baseline
        self._every, self._say = every, say
        self._name, self._count = secrets.token_hex(4), 0
        self._seen: Look | None = None
        self._report: Report | None = None
        self._pictured: Any = None
        self._failures, self._due = 0, 0.0
        self.current = self._edition(look_at(self._paths), None)

    def look(self) -> float:
        """Builds if there is something new; returns the seconds to rest before the next look.

        Raises:
            MissingExtra: a package the report needs is not installed; no change would mend that.
        """
        begun = time.monotonic()
        seen = NOTHING
        try:
            seen = look_at(self._paths)
            if seen == self._seen and not (self._failures and begun >= self._due):
                return self._every
            self._seen = seen
            self._renew(seen)
        except MissingExtra:
            raise
        # A folder may be in any condition while it is written, and a page that fails to renew is
        # no reason to take away the one there is.
        except Exception as error:
            self._fail(seen, error)
        # A build takes the time of the run it shows: never more than half of it.
        return max(self._every, time.monotonic() - begun)

    def _renew(self, seen: Look) -> None:
        here = [path for path in self._paths if _holds(path, seen)]
        if not here:
            self._wait_for_runs(seen)
            return
        known = self._report.examples if self._report else False
        scores = seen.scores()
        if scores and scores != self._pictured:
            # For pictures models are applied again, which may take long: the numbers do not wait.
            self._publish(seen, self._made(here, known))
        examples = known if scores == self._pictured else True
        report = self._made(here, examples)
        self._publish(seen, report)
        self._pictured = scores
        if report.problem:
            raise LeftOut(report.problem)
        self.current = replace(self.current, problem=None)
        if self._failures > 1:
            self._say("the page is up to date again")
        self._failures = 0

    def _made(self, here: Sequence[Path], examples: Any) -> Report:
        report = self._build(here, self._baseline, examples=examples)
        if report.problem and not self._failures:
            raise LeftOut(report.problem)  # most often being written: the page there is waits
        return report

    def _publish(self, seen: Look, report: Report) -> None:
        self.current = replace(self._edition(seen, report), problem=self.current.problem)
        self._report = report

    def _wait_for_runs(self, seen: Look) -> None:
        self._failures = 0
        if self._report:
            self.current = replace(self.current, problem="no run is left in these folders")
        elif self.current.problem:
            self.current = self._edition(seen, None)

    def _fail(self, seen: Look, error: Exception) -> None:
        log.debug("the page could not be made", exc_info=error)
        self._failures += 1
        self._due = time.monotonic() + min(AGAIN, self._every * 2 ** min(self._failures, 10))
        if self._failures == 1:
            self._due = 0.0  # most often a folder was being written: the next look knows
            return
        known = isinstance(error, AutoFedAvgError)
        problem = str(error) if known else f"{type(error).__name__}: {error}"
        if problem == self.current.problem:
            return
        left_out = isinstance(error, LeftOut)
        self._say(f"the page {'leaves out' if left_out else 'could not be made'}: {problem}")
        if self._report is None:
            self.current = self._edition(seen, None, problem)
        else:
            self.current = replace(self.current, problem=problem)

    def _edition(self, seen: Look, report: Report | None, problem: str | None = None) -> Edition:
        self._count += 1
        version = f"{self._name}-{self._count}"
        script = refresh_script(version)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        if report is None:
            page = waiting_page(self._paths, bool(seen.runs), problem, script)
            return Edition(version, "waiting", now, page.encode(), {}, problem)
        made = {name: Once(make) for name, make in report.files.items()}
        return Edition(version, seen.state, now, report.page(script).encode(), made)


class Once:
    """A file's content, made when it is first asked for and then kept."""

    def __init__(self, make: Callable[[], bytes]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._content: bytes | None = None

    def __call__(self) -> bytes:
        with self._lock:
            if self._content is None:
                self._content = self._make()
            return self._content


def _holds(path: Path, seen: Look) -> bool:
    return any(run.is_relative_to(path.resolve()) for run in seen.runs)


def build_late(paths: Sequence[Path], baseline: str = "", *, examples: Any = True) -> Report:
    """The report; imported when first made, so that the address is told before torch is there."""
    from autofedavg.report.build import build_report

    report: Report = build_report(paths, baseline, examples=examples, spare_damaged=True)
    return report
