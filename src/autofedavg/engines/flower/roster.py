"""Which of Flower's nodes is which site.

A name that the server's administrator registered with a node's key (`flwr supernode register
--name`) is the site's name, whatever the node says. Nodes without a registered name are asked;
what they say is their own word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flwr.proto.node_pb2 import NodeInfo

from autofedavg.notes import Lost


@dataclass
class Roster:
    """The nodes that are there, and whose they are.

    Attributes:
        claims: what nodes without a registered name said; None where the answer made no sense.
        asked: nodes whose word is awaited.
    """

    claims: dict[int, str | None] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    _names: dict[str, list[int]] = field(default_factory=dict)
    _wrong: dict[int, str] = field(default_factory=dict)
    _registered: dict[int, str] = field(default_factory=dict)

    def refresh(self, nodes: Iterable[NodeInfo]) -> set[int]:
        """Takes in who is connected now; the nodes whose name must be asked for."""
        nodes = list(nodes)
        here = {node.node_id for node in nodes}
        self._registered = {node.node_id: node.name for node in nodes if node.name}
        self.claims = {node: claim for node, claim in self.claims.items() if node in here}
        self.asked &= here
        self._sort(here)
        unknown = here - set(self._registered) - set(self.claims) - self.asked
        return unknown | {node for two in self._twins().values() for node in two}

    def heard(self, node: int, claim: str | None) -> None:
        """Takes in what a node said its name is."""
        self.claims[node] = claim
        self.asked.discard(node)
        self._sort({*self.claims, *self._registered})

    def silent(self, node: int) -> None:
        """Takes in that a node did not say its name: one that is gone holds no name."""
        self.claims.pop(node, None)
        self.asked.discard(node)
        self._sort({*self.claims, *self._registered})

    def contradicts(self, node: int, claim: str) -> str | None:
        """Why a node's own word cannot be: it is registered under another name."""
        name = self._registered.get(node)
        if name in (None, claim):
            return None
        return f"its node {node} is registered as {name} and calls itself {claim}"

    def find(self, site: str) -> int | Lost | None:
        """A site's node, why it has none, or None where it may still be found."""
        nodes = self._names.get(site, [])
        if len(nodes) == 1:
            return nodes[0]
        if self.asked:
            return None
        if not nodes:
            return Lost("is not connected")
        two = " and ".join(str(node) for node in sorted(nodes))
        return Lost(
            f"two nodes go by this name, {two}; stop one, or register each key under its own "
            "name (flwr supernode register --name)"
        )

    def _sort(self, here: set[int]) -> None:
        names: dict[str, list[int]] = {}
        for node in sorted(here):
            name = self._registered.get(node) or self.claims.get(node)
            if name:
                names.setdefault(name, []).append(node)
        self._names = names

    def _twins(self) -> Mapping[str, list[int]]:
        """Names that more than one node claims by its own word; asked again, a dead one is silent."""
        return {
            name: [node for node in nodes if node not in self._registered]
            for name, nodes in self._names.items()
            if len(nodes) > 1
        }
