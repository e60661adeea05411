"""The server's transport: messages to sites as Flower messages, replies as soon as they arrive."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from flwr.app import Message as FlowerMessage
from flwr.app import RecordDict
from flwr.serverapp import Grid

from autofedavg.core.errors import from_outside
from autofedavg.engines.flower.codec import from_records, to_records
from autofedavg.engines.flower.roster import NAMING, Roster
from autofedavg.federation.messages import Message, NoReply
from autofedavg.federation.serialization import WireError
from autofedavg.federation.waiting import Patience

log = logging.getLogger(__name__)

ASK, NAME = "ask", "name"  # actions of Flower's message type "query"
HELLO = "hello"  # the verb that a site joins with
LOOK = 0.5  # seconds between two looks for a reply
FAILURES = 3  # failed looks for one reply before it counts as unreadable
GRACE = 10.0  # seconds a message outlives its deadline: to look for an expired one is an error
FOR_EVER = 30 * 86400.0


class FlowerTransport:
    """Asks sites through a grid.

    Args:
        grid: Flower's.
        nameless: whether nodes without a registered name may say which site they are.
    """

    name = "flower"

    def __init__(self, grid: Grid, *, nameless: bool = False) -> None:
        self._grid = grid
        self._roster = Roster(nameless)
        # A site may prepare its data for long. It is not asked again meanwhile, since every message
        # starts another process there.
        self._joining = Mailbox(grid)

    def ask(
        self, verb: str, messages: Mapping[str, Message], within: float | None
    ) -> Mapping[str, Message | NoReply]:
        started = time.perf_counter()
        mailbox = self._joining if verb == HELLO else Mailbox(self._grid)
        try:
            self._roster.refresh({node.node_id: node.name for node in self._grid.get_nodes()})
            return _Call(self._roster, mailbox, verb, messages, within).replies()
        finally:
            if verb != HELLO:
                mailbox.close()
            log.info("%s of %d sites: %.3f s", verb, len(messages), time.perf_counter() - started)

    def waiting(self) -> set[str]:
        """None: Flower reaches a site that comes back in the same run."""
        return set()

    def present(self) -> None:
        """Unknown: Flower lists a node that has left for another minute."""


class Mail(NamedTuple):
    """A node's reply, or why it cannot be read."""

    node: int
    action: str
    reply: FlowerMessage | NoReply


class Mailbox:
    """Sends messages, and looks for each reply in a thread of its own.

    Where a sender died while it sent a reply, Flower waits minutes for the rest. Only the thread of
    that reply waits with it.

    Attributes:
        sites: those that owe a reply, by their nodes.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._inbox: queue.SimpleQueue[Mail] = queue.SimpleQueue()
        self._closed = threading.Event()
        self.sites: dict[int, str] = {}

    def send(
        self, action: str, contents: Mapping[int, RecordDict], ttl: float, group: str
    ) -> set[int]:
        """Sends contents to nodes; returns the nodes that Flower took a message for."""
        messages = [
            FlowerMessage(content, node, f"query.{action}", ttl=ttl, group_id=group)
            for node, content in contents.items()
        ]
        ids = self._grid.push_messages(messages)
        sent = {node: id for node, id in zip(contents, ids, strict=False) if id}
        for node, id in sent.items():
            threading.Thread(target=self._collect, args=(node, action, id), daemon=True).start()
        return set(sent)

    def next(self, within: float) -> Mail | None:
        """The next reply, or None if none arrives in time."""
        try:
            return self._inbox.get(timeout=max(0.0, within))
        except queue.Empty:
            return None

    def close(self) -> None:
        """Stops looking for replies."""
        self._closed.set()

    def _collect(self, node: int, action: str, id: str) -> None:
        failures = 0
        while not self._closed.wait(LOOK):
            try:
                replies: list[FlowerMessage | NoReply] = [*self._grid.pull_messages([id])]
            except Exception as error:  # a hostile reply may raise anything
                log.warning("cannot read the reply of node %d", node, exc_info=True)
                failures += 1
                why = f"its answer cannot be used: {type(error).__name__} in reading it"
                replies = [NoReply(why)] if failures == FAILURES else []
            if replies:
                self._inbox.put(Mail(node, action, replies[0]))
                return


@dataclass
class _Call:
    """One request to some sites."""

    roster: Roster
    mailbox: Mailbox
    verb: str
    messages: Mapping[str, Message]
    within: float | None

    def __post_init__(self) -> None:
        self._began, self._patience = time.monotonic(), Patience(self.verb)
        self._replies: dict[str, Message | NoReply] = {}
        self._contents: dict[int, RecordDict] = {}

    def replies(self) -> dict[str, Message | NoReply]:
        while True:
            if unnamed := self.roster.questions(self._began):
                questions = {node: RecordDict() for node in unnamed}
                self.mailbox.send(NAME, questions, NAMING + GRACE, NAME)
            self._send()
            missing = set(self.messages) - set(self._replies)
            if not missing:
                return {site: self._replies[site] for site in self.messages}
            mail = self.mailbox.next(min(LOOK, self._left()))
            if mail is not None:
                self._read(mail)
            elif self._left() <= 0:
                late = NoReply(f"no answer within {self.within:g} s")
                return {site: self._replies.get(site, late) for site in self.messages}
            self._patience.look(missing - set(self._replies))

    def _left(self) -> float:
        if self.within is None:
            return FOR_EVER
        return self._began + self.within - time.monotonic()

    def _send(self) -> None:
        """Sends to every site that has a node by now and has not been sent to."""
        contents: dict[int, RecordDict] = {}
        sent = self.mailbox.sites
        for site in set(self.messages) - set(self._replies) - set(sent.values()):
            node = self.roster.find(site)
            if isinstance(node, NoReply):
                self._replies[site] = node
            elif node is not None:
                message = self.messages[site]
                if id(message) not in self._contents:  # once for all sites with the same message
                    self._contents[id(message)] = to_records(message, {"verb": self.verb})
                contents[node] = self._contents[id(message)]
                sent[node] = site
        if contents:
            ttl = FOR_EVER if self.verb == HELLO else max(0.0, self._left()) + GRACE
            reached = self.mailbox.send(ASK, contents, ttl, self.verb)
            for node in set(contents) - reached:
                self._replies[sent.pop(node)] = NoReply("Flower did not take the message")

    def _read(self, mail: Mail) -> None:
        found = read_reply(mail.reply)
        claim = None if isinstance(found, NoReply) else found[1].get("site")
        if mail.action == NAME:
            self.roster.claim(mail.node, claim)
            return
        if not isinstance(found, NoReply):
            wrong = self.roster.contradiction(mail.node, claim or "")
            found = NoReply(wrong) if wrong else found
        reply = found if isinstance(found, NoReply) else found[0]
        self._replies[self.mailbox.sites.pop(mail.node)] = reply


def read_reply(reply: FlowerMessage | NoReply) -> tuple[Message, dict[str, str]] | NoReply:
    """The message in a node's reply, and what the node says about it; or why there is none."""
    if isinstance(reply, NoReply):
        return reply
    if reply.has_error():
        reason = from_outside(reply.error.reason or "no reason given")
        return NoReply(f"{reason} (Flower's error {reply.error.code})")
    try:
        return from_records(reply.content)
    except WireError as error:
        return NoReply(f"its answer cannot be used: {from_outside(error)}")
