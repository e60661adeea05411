"""Who is waited for, said in the log where it takes long."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

log = logging.getLogger(__name__)

MINUTE = 60.0


class Patience:
    """Waits for answers to one request: says so after a minute, and then each time twice as late.

    Args:
        verb: what was asked.
        began: when, by `time.monotonic`; now if not given.
    """

    def __init__(self, verb: str, began: float | None = None) -> None:
        self._verb, self._began = verb, time.monotonic() if began is None else began
        self._next = MINUTE

    def look(self, names: Iterable[str]) -> None:
        """These have not answered yet."""
        waited = time.monotonic() - self._began
        if waited >= self._next:
            self._next *= 2
            log.info(
                "%s: waiting for %s, %.0f s so far", self._verb, ", ".join(sorted(names)), waited
            )
