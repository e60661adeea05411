"""Which of Flower's nodes is which site.

The name that the server's administrator registered with a node's key (`flwr supernode register
--name`) is the site's name, whatever the node says. A node without a registered name is no site,
since the owner of such a key could claim any name. If the administrator allows it
(AUTOFEDAVG_NAMELESS=yes), such nodes are asked for their names. They cannot claim a name that was
ever registered.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from autofedavg.federation.messages import NoReply

NAMING = 60.0  # seconds a node has to say its name: Flower starts a process for the question
ASK_AGAIN = 15.0  # seconds before a node that did not reply is asked again
NAMELESS = "AUTOFEDAVG_NAMELESS"  # environment variable of the SuperLink


def nameless_allowed() -> bool:
    """Whether the server's administrator admits nodes that have no registered name."""
    return os.environ.get(NAMELESS) == "yes"


class Roster:
    """The connected nodes and their sites.

    Args:
        nameless: whether nodes without a registered name may name themselves.
    """

    def __init__(self, nameless: bool = False) -> None:
        self._nameless = nameless
        self._connected: Mapping[int, str] = {}  # with the registered names; empty ones without
        self._taken: set[str] = set()  # names ever registered, also of nodes that are away
        self._claims: dict[int, tuple[str | None, float]] = {}  # what a node said, and when
        self._asked: dict[int, float] = {}
        self._silent: dict[int, float] = {}

    def refresh(self, nodes: Mapping[int, str]) -> None:
        """Updates the connected nodes, each with its registered name or an empty one."""
        self._connected = nodes
        self._taken.update(filter(None, nodes.values()))
        for table in (self._claims, self._asked, self._silent):
            for node in set(table) - set(nodes):
                del table[node]

    def questions(self, since: float) -> set[int]:
        """The nodes to ask for their name now; they count as asked.

        Nodes that claim the same name are asked again unless they have said it since then: a node
        that has left, and has come back under a new id, stays silent.
        """
        if not self._nameless:
            return set()
        now = time.monotonic()
        for node, when in list(self._asked.items()):
            if now - when > NAMING:
                del self._asked[node]
                self._claims.pop(node, None)
                self._silent[node] = now
        resting = {node for node, when in self._silent.items() if now - when < ASK_AGAIN}
        unknown = {node for node, name in self._connected.items() if not name} - set(self._claims)
        twins = {
            node
            for nodes in self._nodes_by_name().values()
            for node in nodes
            if len(nodes) > 1 and node in self._claims and self._claims[node][1] < since
        }
        asked = (unknown | twins) - set(self._asked) - resting
        self._asked.update(dict.fromkeys(asked, now))
        return asked

    def claim(self, node: int, name: str | None) -> None:
        """Records what a node calls itself; None where its reply cannot be read."""
        self._claims[node] = (name, time.monotonic())
        self._asked.pop(node, None)

    def contradiction(self, node: int, claim: str) -> str | None:
        """Why a node cannot be what it says: it is registered under another name."""
        name = self._connected.get(node)
        if not name or name == claim:
            return None
        return f"its node {node} is registered as {name} and calls itself {claim!r}"

    def find(self, site: str) -> int | NoReply | None:
        """A site's node, why it has none, or None while names are still awaited."""
        nodes = self._nodes_by_name().get(site, [])
        if len(nodes) == 1 and (self._connected[nodes[0]] or not self._asked):
            return nodes[0]
        if self._asked:
            return None
        if nodes:
            both = " and ".join(str(node) for node in sorted(nodes))
            return NoReply(
                f"two nodes go by this name, {both}; stop one, or register each key under its own "
                "name (flwr supernode register --name)"
            )
        strangers = sum(not name for name in self._connected.values())
        if self._nameless or not strangers:
            return NoReply("is not connected")
        return NoReply(
            "is not connected under a registered name; connected nodes without one: "
            f"{strangers}; register each key with `flwr supernode register --name SITE`, or "
            f"let them name themselves ({NAMELESS}=yes in the SuperLink's environment)"
        )

    def _nodes_by_name(self) -> dict[str, list[int]]:
        names: dict[str, list[int]] = {}
        for node, registered in sorted(self._connected.items()):
            claim = self._claims.get(node, (None, 0.0))[0]
            name = registered or (None if claim in self._taken else claim)
            if name:
                names.setdefault(name, []).append(node)
        return names
