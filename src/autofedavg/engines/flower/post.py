"""Messages out and answers in, each looked for by a thread of its own.

An answer whose sender died half-way through it keeps only its own thread waiting.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

log = logging.getLogger(__name__)

FIRST_LOOK, LAST_LOOK = 0.05, 1.0  # seconds between two looks for an answer, at first and later
PATIENCE = 3  # failed looks in a row


class Mail(NamedTuple):
    """What came back from a node: its reply, or why it cannot be read."""

    node: int
    action: str
    reply: Message | str


class Post:
    """Carries the messages of one call."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._inbox: queue.SimpleQueue[Mail] = queue.SimpleQueue()
        self._over = threading.Event()

    def send(self, action: str, messages: Mapping[int, Message], *, look: bool = True) -> set[int]:
        """Pushes messages; the nodes they went to.

        Args:
            action: what they are for.
            messages: by node.
            look: whether anybody waits for the answers.
        """
        ids = list(self._grid.push_messages(list(messages.values())))
        sent = {node: id for node, id in zip(messages, ids, strict=False) if id}
        for node, id in sent.items() if look else ():
            threading.Thread(target=self._look, args=(node, action, id), daemon=True).start()
        return set(sent)

    def next(self, within: float) -> Mail | None:
        """The next answer, or None when none came so soon."""
        try:
            return self._inbox.get(timeout=max(0.0, within))
        except queue.Empty:
            return None

    def close(self) -> None:
        """Stops looking."""
        self._over.set()

    def _look(self, node: int, action: str, id: str) -> None:
        started, failures = time.monotonic(), 0
        while not self._over.is_set():
            try:
                replies = list(self._grid.pull_messages([id]))
            except Exception as error:  # a reply may be made so that it cannot be read
                log.warning("looking for the answer of node %d", node, exc_info=True)
                failures += 1
                if failures == PATIENCE:
                    self._inbox.put(Mail(node, action, f"{type(error).__name__} in reading it"))
                    return
                self._over.wait(LAST_LOOK)
                continue
            failures = 0
            if replies:
                self._inbox.put(Mail(node, action, replies[0]))
                return
            waited = time.monotonic() - started
            self._over.wait(min(LAST_LOOK, max(FIRST_LOOK, waited / 40)))
