"""Which of Flower's nodes is which site.

A name that the server's administrator registered with a node's key (`flwr supernode register
--name`) is the site's name, whatever the node says. Nodes without a registered name are no sites,
since whoever has such a key could claim any name. Where the server's administrator lets them in
(AUTOFEDAVG_NAMELESS=yes), they are asked; what they say is their own word, and no claim to a name
that was once seen registered.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from flwr.proto.node_pb2 import NodeInfo

from autofedavg.federation.messages import NoReply

NAMING = 20.0  # seconds a node has to say its name
SULKING = 15.0  # seconds before one that did not is asked again
NAMELESS = "AUTOFEDAVG_NAMELESS"  # environment variable of the SuperLink


def nameless_allowed() -> bool:
    """Whether the server's administrator lets nodes in that have no registered name."""
    return os.environ.get(NAMELESS) == "yes"


class Roster:
    """The nodes that are there, and whose they are.

    Args:
        nameless: whether nodes without a registered name may say which site they are.
    """

    def __init__(self, nameless: bool = False) -> None:
        self._nameless = nameless
        self._here: set[int] = set()
        self._registered: dict[int, str] = {}
        self._taken: set[str] = set()  # names that were registered, whether their node is here
        self._claims: dict[int, tuple[str | None, float]] = {}  # what a node said, and when
        self._asked: dict[int, float] = {}
        self._silent: dict[int, float] = {}

    def refresh(self, nodes: Iterable[NodeInfo]) -> None:
        """Takes in who is connected now."""
        nodes = list(nodes)
        self._here = {node.node_id for node in nodes}
        self._registered = {node.node_id: node.name for node in nodes if node.name}
        self._taken.update(self._registered.values())
        for table in (self._claims, self._asked, self._silent):
            for node in set(table) - self._here:
                del table[node]

    def questions(self, since: float) -> set[int]:
        """The nodes to ask for their name now; they count as asked.

        Nodes that claim one name are asked again, where they have not said it since then: one
        that is gone, and has come back under a new id, is silent.
        """
        if not self._nameless:
            return set()
        now = time.monotonic()
        for node, when in list(self._asked.items()):
            if now - when > NAMING:
                del self._asked[node]
                self._claims.pop(node, None)
                self._silent[node] = now
        patient = {node for node, when in self._silent.items() if now - when < SULKING}
        unknown = self._here - set(self._registered) - set(self._claims)
        twins = {
            node
            for nodes in self._names().values()
            for node in nodes
            if len(nodes) > 1 and node in self._claims and self._claims[node][1] < since
        }
        asked = (unknown | twins) - set(self._asked) - patient
        self._asked.update(dict.fromkeys(asked, now))
        return asked

    def heard(self, node: int, claim: str | None) -> None:
        """Takes in what a node said its name is; None where that made no sense."""
        self._claims[node] = (claim, time.monotonic())
        self._asked.pop(node, None)

    def contradicts(self, node: int, claim: str) -> str | None:
        """Why a node's own word cannot be: it is registered under another name."""
        name = self._registered.get(node)
        if name in (None, claim):
            return None
        return f"its node {node} is registered as {name} and calls itself {claim!r}"

    def find(self, site: str) -> int | NoReply | None:
        """A site's node, why it has none, or None where that is still to be heard."""
        nodes = self._names().get(site, [])
        if len(nodes) == 1 and (nodes[0] in self._registered or not self._asked):
            return nodes[0]
        if self._asked:
            return None
        if not nodes:
            strangers = len(self._here - set(self._registered))
            if self._nameless or not strangers:
                return NoReply("is not connected")
            return NoReply(
                "is not connected under a registered name; nodes without one that are there: "
                f"{strangers}; register each key with `flwr supernode register --name SITE`, or "
                f"let them say their names ({NAMELESS}=yes where the SuperLink is started)"
            )
        two = " and ".join(str(node) for node in sorted(nodes))
        return NoReply(
            f"two nodes go by this name, {two}; stop one, or register each key under its own "
            "name (flwr supernode register --name)"
        )

    def _names(self) -> dict[str, list[int]]:
        names: dict[str, list[int]] = {}
        for node in sorted(self._here):
            claim = self._claims.get(node, (None, 0.0))[0]
            name = self._registered.get(node) or (None if claim in self._taken else claim)
            if name:
                names.setdefault(name, []).append(node)
        return names
