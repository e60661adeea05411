"""Messages out and answers in.

A thread looks for the answers, one message at a time. Where an answer's sender died half-way
through it, that look takes minutes; another thread then looks for the rest.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

log = logging.getLogger(__name__)

FIRST_LOOK, LAST_LOOK = 0.1, 1.0  # seconds between two looks, at first and later
STUCK = 5.0  # seconds a look may take before another thread does the others
PATIENCE = 3  # failed looks for one answer


class Mail(NamedTuple):
    """What came back from a node: its reply, or why it cannot be read."""

    node: int
    action: str
    reply: Message | str


@dataclass
class _Sent:
    id: str
    node: int
    action: str
    failures: int = 0


class Mailbox:
    """Carries the messages of one call."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._inbox: queue.SimpleQueue[Mail] = queue.SimpleQueue()
        self._open: list[_Sent] = []
        self._turn = threading.Lock()  # over _open and _looking
        self._over = threading.Event()
        self._looker: threading.Thread | None = None
        self._looking_since: float | None = None

    def send(self, action: str, messages: Mapping[int, Message], *, look: bool = True) -> set[int]:
        """Pushes messages; the nodes they went to.

        Args:
            action: what they are for.
            messages: by node.
            look: whether anybody waits for the answers.
        """
        ids = list(self._grid.push_messages(list(messages.values())))
        sent = {node: id for node, id in zip(messages, ids, strict=False) if id}
        if look and sent:
            with self._turn:
                self._open += [_Sent(id, node, action) for node, id in sent.items()]
            self._watch_looker()
        return set(sent)

    def next(self, within: float) -> Mail | None:
        """The next answer, or None when none came so soon."""
        self._watch_looker()
        try:
            return self._inbox.get(timeout=max(0.0, within))
        except queue.Empty:
            return None

    def close(self) -> None:
        """Stops looking."""
        self._over.set()

    def _watch_looker(self) -> None:
        """Sees to it that a thread looks, and that it is not stuck."""
        with self._turn:
            since = self._looking_since
            stuck = since is not None and time.monotonic() - since > STUCK
            if self._looker is None or stuck or not self._looker.is_alive():
                self._looking_since = None
                self._looker = threading.Thread(target=self._look_for_all, daemon=True)
                self._looker.start()

    def _look_for_all(self) -> None:
        started = time.monotonic()
        while not self._over.is_set():
            with self._turn:
                if self._looker is not threading.current_thread() or not self._open:
                    return
                sent = self._open.pop(0)
                self._looking_since = time.monotonic()
            mail = self._look(sent)
            with self._turn:
                if self._looker is threading.current_thread():
                    self._looking_since = None
                if mail is None:
                    self._open.append(sent)
            if mail is None:
                self._over.wait(min(LAST_LOOK, max(FIRST_LOOK, (time.monotonic() - started) / 40)))
            else:
                self._inbox.put(mail)

    def _look(self, sent: _Sent) -> Mail | None:
        try:
            replies = list(self._grid.pull_messages([sent.id]))
        except Exception as error:  # a reply may be made so that it cannot be read
            log.warning("looking for the answer of node %d", sent.node, exc_info=True)
            sent.failures += 1
            if sent.failures < PATIENCE:
                return None
            return Mail(sent.node, sent.action, f"{type(error).__name__} in reading it")
        return Mail(sent.node, sent.action, replies[0]) if replies else None
