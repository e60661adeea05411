"""Learned weights in your own Flower app.

In the ServerApp, in place of Flower's own FedAvg:

    strategy = LearnedFedAvg(fraction_train=1.0, S=20)  # was: FedAvg(fraction_train=1.0)

In the ClientApp, one query function:

    @app.query("autofedavg")
    def weights(message: Message, context: Context) -> Message:
        return learn_weights(message, context, network=Net(), loss=loss, batches=validation)
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from inspect import signature
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from torch import Tensor, nn

from autofedavg.core.errors import AutoFedAvgError, ConfigError, error_facts, printable
from autofedavg.core.trainer import Loss
from autofedavg.engines.dropin.learner import SETTINGS, WeightLearner
from autofedavg.engines.dropin.responder import Batches, Responder
from autofedavg.engines.flower.codec import from_records, to_records
from autofedavg.engines.flower.context_state import ContextState
from autofedavg.engines.flower.transport import read_reply
from autofedavg.federation.messages import Message, NoReply

__all__ = ["LearnedFedAvg", "learn_weights"]

log = logging.getLogger("flwr")  # Flower's own: one log of the strategy
DEADLINE = 3600.0  # seconds: what Flower's own strategies wait for training
ACTION = "autofedavg"
LINES = f"""\
    @app.query("{ACTION}")
    def weights(message, context):
        return learn_weights(message, context, network=..., loss=..., batches=...)"""


class LearnedFedAvg(FedAvg):
    """FedAvg whose weights are learned from the sites' own data (the paper's Algorithm 1).

    All arguments of `FedAvg` keep their meaning; `weighted_by_key` weights the metrics. The learned
    weights are in the log and in the metrics of every round, as `alpha/<site>`, or as
    `alpha/<site>/<layer>` with `weights="layer"`.

    Args:
        *args: FedAvg's.
        **settings: FedAvg's, and those of the method `auto-fedavg`: `constraint`, `weights`, `t0`,
            `S`, `beta_rate` and so on; further `deadline` (seconds a call may take, 3600),
            `retries`, `bad_answers`, `quorum` (sites that must answer, 0 for all that have
            trained) and `seed`.

    Note:
        Flower starts a process for every message, so by default a site takes all S steps in one
        message, on its own, before the server averages: `steps_per_message = S`, a variant of
        Algorithm 1 (decision 33). `steps_per_message=1` is the paper's; the models then wait in the
        context of the ClientApp between the messages.

    Raises:
        ConfigError: a setting is unknown or wrong.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        ours = {name: settings.pop(name) for name in [*settings] if name in SETTINGS}
        ours = {"deadline": DEADLINE, **ours}
        self.learner = WeightLearner("LearnedFedAvg", **ours)
        method = self.learner.method
        if method.learning == "clients" and "steps_per_message" not in ours:
            self.learner = WeightLearner("LearnedFedAvg", **ours, steps_per_message=method.S)
        self._grid: Grid | None = None
        self._w: dict[str, Tensor] = {}
        self._T = 0
        super().__init__(*args, **settings)

    def start(self, *args: Any, **settings: Any) -> Result:
        given = signature(FedAvg.start).bind(self, *args, **settings)
        given.apply_defaults()
        self._T = given.arguments["num_rounds"]
        return super().start(*args, **settings)

    def summary(self) -> None:
        super().summary()
        method = self.learner.method
        log.info("\t└──> Learned weights:")
        log.info("\t\t├── %s, one per client and %s", method.constraint, method.weights)
        log.info("\t\t├── Rounds between two calls: t0 = %s", method.t0)
        log.info(
            "\t\t└── Steps on beta: S = %d, %d in a message", method.S, method.steps_per_message
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[FlowerMessage]:
        self._grid, self._w = grid, _state(arrays)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[FlowerMessage]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        trained = {
            str(reply.metadata.src_node_id): _trained(reply)
            for reply in replies
            if not reply.has_error()
        }
        if not trained or self._grid is None:
            return super().aggregate_train(server_round, replies)
        channel = GridChannel(self._grid)
        learned = self.learner.round(server_round, self._w, trained, channel, self._T)
        log.info("aggregate_train: alpha of round %d, %s", server_round, learned)
        # Flower's own checks, log lines and metrics; its average is not used.
        _, metrics = super().aggregate_train(server_round, replies)
        metrics = MetricRecord() if metrics is None else metrics
        for name, value in learned.metrics().items():
            metrics[name] = value
        # In the order that the clients know.
        order = {name: learned.state[name] for name in self._w if name in learned.state}
        return ArrayRecord({k: Array(a.cpu().numpy()) for k, a in order.items()}), metrics


class GridChannel:
    """The way to the sites: queries to nodes; an address is a node's number."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def ask(
        self, verb: str, messages: Mapping[str, Message], within: float | None
    ) -> dict[str, Message | NoReply]:
        queries = [
            FlowerMessage(
                to_records(message, {"verb": verb}),
                dst_node_id=int(address),
                message_type=f"query.{ACTION}",
                group_id=verb,
            )
            for address, message in messages.items()
        ]
        replies = self._grid.send_and_receive(queries, timeout=within)
        found = {str(reply.metadata.src_node_id): _reply(reply) for reply in replies}
        late = NoReply("no answer" if within is None else f"no answer within {within:g} s")
        return {address: found.get(address, late) for address in messages}


def _reply(reply: FlowerMessage) -> Message | NoReply:
    if reply.has_error() and f"registered with name '{ACTION}'" in (reply.error.reason or ""):
        unable = ConfigError(
            f"its ClientApp has no query function {ACTION!r}",
            where=f"node {reply.metadata.src_node_id}",
            remedy=f"add these lines to it:\n{LINES}",
        )
        return Message({}, error_facts(unable))
    found = read_reply(reply)
    return found if isinstance(found, NoReply) else found[0]


def _trained(reply: FlowerMessage) -> dict[str, Tensor]:
    """The model in a reply; empty, and so refused under its site's name, without exactly one."""
    records = list(reply.content.array_records.values())
    return _state(records[0]) if len(records) == 1 else {}


def _state(record: ArrayRecord) -> dict[str, Tensor]:
    """The readable arrays of a record; the learner reports the others as missing."""
    found = {}
    for name, array in record.items():
        try:
            found[name] = torch.from_numpy(array.numpy().copy())
        except (TypeError, ValueError, EOFError):
            log.warning("the array %s cannot be read", printable(name))
    return found


def learn_weights(
    message: FlowerMessage,
    context: Context,
    *,
    network: nn.Module,
    loss: Loss,
    batches: Batches,
    site: str | None = None,
) -> FlowerMessage:
    """Answers the server's `LearnedFedAvg`.

    Args:
        message: the query.
        context: of the ClientApp; holds the other sites' models between the messages of a round.
        network: the network that is trained, with any weights.
        loss: (network, batch) -> scalar; moves the batch to the network's device.
        batches: a data loader over cases that were not trained on, or a function
            (round, step) -> batch.
        site: the site's name in logs and metrics; `node-<number>` by default. A node without a key
            of its own has another number after a restart, so give a name where you can.

    Returns:
        The reply.
    """
    try:
        request, about = from_records(message.content)
        device = next((p.device for p in network.parameters()), torch.device("cpu"))
        client_state = ContextState(context.state, device)
        name = site or f"node-{context.node_id}"
        responder = Responder(name, network, loss, batches, client_state)
        reply = responder.answer(about.get("verb", ""), request)
        client_state.save()
    except AutoFedAvgError as error:
        reply = Message({}, error_facts(error))
    return FlowerMessage(to_records(reply, {}), reply_to=message)
