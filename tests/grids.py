"""A grid of Flower's without processes: real ClientApps, called in this one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity


class LocalGrid:
    """Sends messages to ClientApps, by node number; every node has a lasting context.

    Args:
        apps: by node.
        configs: of the nodes.
        lost: whether a message gets no reply.
        spoil: what becomes of a reply.
    """

    def __init__(
        self,
        apps: Mapping[int, ClientApp],
        configs: Mapping[int, Mapping[str, str]],
        lost: Callable[[Message], bool] = lambda message: False,
        spoil: Callable[[Message, Message], Message] = lambda message, reply: reply,
    ) -> None:
        self.apps, self.lost, self.spoil = dict(apps), lost, spoil
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as in a run
        self.contexts = {
            node: Context(1, node, dict(config), RecordDict(), {})
            for node, config in configs.items()
        }
        self.sent: list[Message] = []

    def get_node_ids(self) -> list[int]:
        return sorted(self.apps)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        replies = []
        for message in messages:
            self.sent.append(message)
            if self.lost(message):
                continue
            node = message.metadata.dst_node_id
            try:
                reply = self.apps[node](message, self.contexts[node])
            except Exception as error:  # as Flower's own process does
                reason = f"{type(error)}:<'{error}'>"
                reply = Message(Error(code=2, reason=reason), reply_to=message)
            replies.append(self.spoil(message, reply))
        return replies

    def queries(self) -> list[Message]:
        return [m for m in self.sent if m.metadata.message_type == "query.autofedavg"]
