"""The server's transport: notes as Flower messages, answers as soon as they are there."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

from flwr.app import ConfigRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from autofedavg.core.errors import from_outside
from autofedavg.engines.flower.codec import opened, pack
from autofedavg.engines.flower.dispatch import ASK, AWAKE, BYE, NAME
from autofedavg.engines.flower.mailbox import Mail, Mailbox
from autofedavg.engines.flower.records import from_records, to_records
from autofedavg.engines.flower.roster import NAMING, Roster
from autofedavg.federation.messages import Message, NoReply
from autofedavg.federation.serialization import WireError
from autofedavg.federation.waiting import Patience

log = logging.getLogger(__name__)

GRACE = 10.0  # seconds a message outlives its deadline: to look for an expired one is an error
FOR_EVER = 30 * 86400.0
FAREWELL = 20.0  # seconds the sites have to send their workers home
DOZE = 0.5  # seconds after which a node that is done is given something to stay awake with
AWAKENINGS = 8  # how often, after one answer
DOZING = 1.2  # seconds such a message lives: no queue of them shall delay the next request


class FlowerTransport:
    """Asks sites through a grid.

    A SuperNode that finds no message sleeps for three seconds. One whose executor stays between
    messages, so that a message costs next to nothing, is therefore sent empty ones for a while:
    the next request finds it awake.

    Args:
        grid: Flower's.
        nameless: whether nodes without a registered name may say which site they are.
    """

    name = "flower"

    def __init__(self, grid: Grid, *, nameless: bool = False) -> None:
        self._grid = grid
        self._roster = Roster(nameless)
        self._lively: set[int] = set()

    def ask(
        self, verb: str, notes: Mapping[str, Message], within: float | None
    ) -> Mapping[str, Message | NoReply]:
        started = time.perf_counter()
        call = _Call(self._grid, self._roster, self._lively, verb, notes, within)
        try:
            return call.answers()
        finally:
            call.post.close()
            log.info("%s of %d sites: %.3f s", verb, len(notes), time.perf_counter() - started)

    def waiting(self) -> set[str]:
        """None: Flower reaches a site that comes back in the same run."""
        return set()

    def present(self) -> None:
        """Cannot be told: a node that has gone is on Flower's list for a minute."""

    def close(self) -> None:
        """Sends the sites' workers home."""
        nodes = [node.node_id for node in self._grid.get_nodes()]
        post = Mailbox(self._grid)
        until = time.monotonic() + FAREWELL
        left = post.send(BYE, _empty(BYE, nodes, FAREWELL + GRACE)) if nodes else set()
        while left:
            mail = post.next(until - time.monotonic())
            if mail is None:
                log.warning("nodes %s did not say farewell", sorted(left))
                break
            left.discard(mail.node)
        post.close()

    def __enter__(self) -> FlowerTransport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Call:
    """One request to some sites."""

    def __init__(
        self,
        grid: Grid,
        roster: Roster,
        lively: set[int],
        verb: str,
        notes: Mapping[str, Message],
        within: float | None,
    ) -> None:
        self.post = Mailbox(grid)
        self._grid, self._roster, self._lively = grid, roster, lively
        self._verb, self._notes, self._within = verb, notes, within
        self._began, self._patience = time.monotonic(), Patience(verb)
        self._sent: dict[int, str] = {}
        self._answers: dict[str, Message | NoReply] = {}
        self._contents: dict[int, RecordDict] = {}
        self._kept_awake: dict[int, tuple[int, float]] = {}

    def answers(self) -> dict[str, Message | NoReply]:
        self._roster.refresh(self._grid.get_nodes())
        while True:
            nameless = self._roster.questions(self._began)
            if nameless:
                self.post.send(NAME, _empty(NAME, nameless, NAMING + GRACE))
            self._send()
            if len(self._answers) == len(self._notes):
                return self._answers
            mail = self.post.next(min(DOZE, self._left()))
            if mail is not None:
                self._open(mail)
            elif self._left() <= 0:
                late = NoReply(f"no answer within {self._within:g} s")
                return {site: self._answers.get(site, late) for site in self._notes}
            self._patience.look(set(self._notes) - set(self._answers))
            self._keep_awake()

    def _left(self) -> float:
        if self._within is None:
            return FOR_EVER
        return self._began + self._within - time.monotonic()

    def _send(self) -> None:
        """Sends to every site that can be reached by now and has not been sent to."""
        messages: dict[int, FlowerMessage] = {}
        ttl = FOR_EVER if self._within is None else max(0.0, self._left()) + GRACE
        for site in set(self._notes) - set(self._answers) - set(self._sent.values()):
            node = self._roster.find(site)
            if isinstance(node, NoReply):
                self._answers[site] = node
            elif node is not None:
                messages[node] = _message(self._content(site), ASK, node, ttl, self._verb)
                self._sent[node] = site
        if not messages:
            return
        reached = self.post.send(ASK, messages)
        for node in set(messages) - reached:
            self._answers[self._sent[node]] = NoReply("Flower did not take the message for it")
        self._rouse(reached & self._lively, ttl)

    def _content(self, site: str) -> RecordDict:
        """The records of a site's note; made once for all that are sent the same."""
        message = self._notes[site]
        if id(message) not in self._contents:
            self._contents[id(message)] = to_records(pack(message, {"verb": self._verb}))
        return self._contents[id(message)]

    def _open(self, mail: Mail) -> None:
        if mail.action == NAME:
            claim = None if isinstance(mail.reply, str) else _said(mail.reply, "site")
            self._roster.heard(mail.node, claim)
            return
        site = self._sent[mail.node]
        self._answers[site] = self._read(mail)

    def _read(self, mail: Mail) -> Message | NoReply:
        if isinstance(mail.reply, str):
            return NoReply(f"its answer cannot be used: {mail.reply}")
        if mail.reply.has_error():
            error = mail.reply.error
            reason = from_outside(error.reason or "no reason given")
            return NoReply(f"{reason} (Flower's error {error.code})")
        content = mail.reply.content
        try:
            message, about = opened(lambda: from_records(content))
        except WireError as error:
            return NoReply(f"its answer cannot be used: {from_outside(error)}")
        wrong = self._roster.contradicts(mail.node, about.get("site", ""))
        if wrong:
            return NoReply(wrong)
        if about.get("stays") == "yes":
            self._lively.add(mail.node)
        return message

    def _keep_awake(self) -> None:
        """Something to do for nodes that have answered while others have not."""
        now = time.monotonic()
        done = {node for node, site in self._sent.items() if site in self._answers}
        tired = {
            node
            for node in done & self._lively & set(self._kept_awake)
            if self._kept_awake[node][0] < AWAKENINGS and now - self._kept_awake[node][1] >= DOZE
        }
        self._rouse(tired, DOZING)

    def _rouse(self, nodes: set[int], ttl: float) -> None:
        if not nodes:
            return
        self.post.send(AWAKE, _empty(AWAKE, nodes, ttl), look=False)
        for node in nodes:
            times = self._kept_awake.get(node, (0, 0.0))[0]
            self._kept_awake[node] = (times + 1, time.monotonic())


def _message(content: RecordDict, action: str, node: int, ttl: float, group: str) -> FlowerMessage:
    """A message to a node; the group is what the node's own log shows."""
    return FlowerMessage(content, node, f"query.{action}", ttl=ttl, group_id=group)


def _empty(action: str, nodes: Iterable[int], ttl: float) -> dict[int, FlowerMessage]:
    return {node: _message(RecordDict(), action, node, ttl, action) for node in nodes}


def _said(reply: FlowerMessage, what: str) -> str | None:
    """What a node says of itself, in a reply without a note."""
    record = reply.content.get("about") if reply.has_content() else None
    value = record.get(what) if isinstance(record, ConfigRecord) else None
    return value if isinstance(value, str) else None
