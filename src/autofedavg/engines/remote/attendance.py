"""Who is waited for while the sites of a job join, and who had come and is gone: in the log."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import Protocol

from autofedavg.core.errors import from_outside

log = logging.getLogger(__name__)

LOOK_EVERY = 1.0  # seconds between looks at who is connected
TELL_EVERY = 30.0  # seconds after which it is said again who is waited for
GONE = "had joined and is gone"


class Connected(Protocol):
    """What an engine knows of connections."""

    def present(self) -> set[str] | None:
        """Sites whose part of this job is connected now; None where that cannot be told."""


class Attendance:
    """Looks who is there while somebody waits for answers; a context manager.

    A site that is gone owes its answer until a deadline, and that may be minutes away.

    Args:
        fleet: knows who is connected.
        sites: those that are waited for.
    """

    def __init__(self, transport: Connected, sites: Iterable[str]) -> None:
        self._transport = transport
        self._missing = dict.fromkeys(sites, "")
        self._seen: set[str] = set()
        self.gone: frozenset[str] = frozenset()
        self._told: tuple[list[str], float] = ([], 0.0)
        self._over = threading.Event()
        self._eyes = threading.Thread(target=self._watch, name="autofedavg-joining", daemon=True)

    def heard(self, site: str) -> None:
        """A site has answered."""
        self._missing.pop(site, None)

    def missed(self, site: str, reason: str) -> None:
        """A site has not answered, and this is why."""
        self._missing[site] = f" ({from_outside(reason)})"

    def look(self) -> None:
        """Notes who has come and who has gone, and says so."""
        here = self._transport.present()
        if here is not None:
            self._seen |= here
            for site in sorted(self._seen - here - self.gone):
                log.warning("site %s %s", site, GONE)
            for site in sorted(self.gone & here):
                log.info("site %s is back", site)
            self.gone = frozenset(self._seen - here)
        waited = sorted(site + reason for site, reason in self._missing.copy().items())
        now = time.monotonic()
        if waited and (waited != self._told[0] or now - self._told[1] >= TELL_EVERY):
            log.info("waiting for %s", ", ".join(waited))
            self._told = waited, now

    def _watch(self) -> None:
        while not self._over.is_set():
            self.look()
            self._over.wait(LOOK_EVERY)

    def __enter__(self) -> Attendance:
        self._eyes.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._eyes.join()
