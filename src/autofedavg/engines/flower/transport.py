"""The server's transport: messages to sites as Flower messages, replies as soon as they arrive."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from flwr.app import Message as FlowerMessage
from flwr.app import RecordDict
from flwr.serverapp import Grid

from autofedavg.core.errors import from_outside
from autofedavg.engines.flower.codec import about_of, from_records, to_records
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
        self._joining = _Sent(Mailbox(grid))

    def ask(
        self, verb: str, messages: Mapping[str, Message], within: float | None
    ) -> Mapping[str, Message | NoReply]:
        started = time.perf_counter()
        sent = self._joining if verb == HELLO else _Sent(Mailbox(self._grid))
        try:
            return _Call(self._grid, self._roster, sent, verb, messages, within).replies()
        finally:
            if verb != HELLO:
                sent.mailbox.close()
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
    reply: FlowerMessage | str


class Mailbox:
    """Sends the messages of one call, and looks for each reply in a thread of its own.

    Where a sender died while it sent a reply, Flower waits minutes for the rest. Only the thread of
    that reply waits with it.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._inbox: queue.SimpleQueue[Mail] = queue.SimpleQueue()
        self._closed = threading.Event()

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
                replies = list(self._grid.pull_messages([id]))
            except Exception as error:  # a hostile reply may raise anything
                log.warning("cannot read the reply of node %d", node, exc_info=True)
                failures += 1
                if failures == FAILURES:
                    self._inbox.put(Mail(node, action, f"{type(error).__name__} in reading it"))
                    return
                continue
            if replies:
                self._inbox.put(Mail(node, action, replies[0]))
                return


@dataclass
class _Sent:
    """Messages that await a reply: the sites they went to, by node."""

    mailbox: Mailbox
    sites: dict[int, str] = field(default_factory=dict)


class _Call:
    """One request to some sites."""

    def __init__(
        self,
        grid: Grid,
        roster: Roster,
        sent: _Sent,
        verb: str,
        messages: Mapping[str, Message],
        within: float | None,
    ) -> None:
        self._grid, self._roster = grid, roster
        self._mailbox, self._sent = sent.mailbox, sent.sites
        self._verb, self._messages, self._within = verb, messages, within
        self._began, self._patience = time.monotonic(), Patience(verb)
        self._replies: dict[str, Message | NoReply] = {}
        self._contents: dict[int, RecordDict] = {}

    def replies(self) -> dict[str, Message | NoReply]:
        self._roster.refresh({node.node_id: node.name for node in self._grid.get_nodes()})
        while True:
            unnamed = self._roster.questions(self._began)
            if unnamed:
                questions = {node: RecordDict() for node in unnamed}
                self._mailbox.send(NAME, questions, NAMING + GRACE, NAME)
            self._send()
            if not set(self._messages) - set(self._replies):
                return {site: self._replies[site] for site in self._messages}
            mail = self._mailbox.next(min(LOOK, self._left()))
            if mail is not None:
                self._read(mail)
            elif self._left() <= 0:
                late = NoReply(f"no answer within {self._within:g} s")
                return {site: self._replies.get(site, late) for site in self._messages}
            self._patience.look(set(self._messages) - set(self._replies))

    def _left(self) -> float:
        if self._within is None:
            return FOR_EVER
        return self._began + self._within - time.monotonic()

    def _send(self) -> None:
        """Sends to every site that has a node by now and has not been sent to."""
        contents: dict[int, RecordDict] = {}
        for site in set(self._messages) - set(self._replies) - set(self._sent.values()):
            node = self._roster.find(site)
            if isinstance(node, NoReply):
                self._replies[site] = node
            elif node is not None:
                contents[node] = self._content(site)
                self._sent[node] = site
        if contents:
            ttl = FOR_EVER if self._verb == HELLO else max(0.0, self._left()) + GRACE
            reached = self._mailbox.send(ASK, contents, ttl, self._verb)
            for node in set(contents) - reached:
                self._replies[self._sent.pop(node)] = NoReply("Flower did not take the message")

    def _content(self, site: str) -> RecordDict:
        """A site's message as records; made once for all sites with the same message."""
        message = self._messages[site]
        if id(message) not in self._contents:
            self._contents[id(message)] = to_records(message, {"verb": self._verb})
        return self._contents[id(message)]

    def _read(self, mail: Mail) -> None:
        if mail.action == ASK:
            self._replies[self._sent.pop(mail.node)] = self._reply(mail)
            return
        name = None
        if not isinstance(mail.reply, str) and mail.reply.has_content():
            name = about_of(mail.reply.content).get("site")
        self._roster.claim(mail.node, name)

    def _reply(self, mail: Mail) -> Message | NoReply:
        if isinstance(mail.reply, str):
            return NoReply(f"its answer cannot be used: {mail.reply}")
        reply = read_reply(mail.reply)
        if isinstance(reply, NoReply):
            return reply
        message, about = reply
        wrong = self._roster.contradiction(mail.node, about.get("site", ""))
        return NoReply(wrong) if wrong else message


def read_reply(reply: FlowerMessage) -> tuple[Message, dict[str, str]] | NoReply:
    """The message in a node's reply, and what the node says about it; or why there is none."""
    if reply.has_error():
        reason = from_outside(reply.error.reason or "no reason given")
        return NoReply(f"{reason} (Flower's error {reply.error.code})")
    try:
        return from_records(reply.content)
    except WireError as error:
        return NoReply(f"its answer cannot be used: {from_outside(error)}")
