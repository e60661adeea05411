"""Learned weights in your own ClientApp: one query function.

    @app.query("autofedavg")
    def weights(message: Message, context: Context) -> Message:
        return learn_weights(message, context, network=Net(), loss=loss, batches=validation)

The ServerApp asks with `autofedavg.engines.flower.strategy.LearnedFedAvg`.
"""

from __future__ import annotations

import torch
from flwr.app import Context
from flwr.app import Message as FlowerMessage
from torch import nn

from autofedavg.core.errors import AutoFedAvgError, error_facts
from autofedavg.core.trainer import Loss
from autofedavg.engines.dropin.responder import Batches, Responder
from autofedavg.engines.flower.codec import from_records, to_records
from autofedavg.engines.flower.context_state import ContextState
from autofedavg.federation.messages import Message

ACTION = "autofedavg"
LINES = f"""\
    @app.query("{ACTION}")
    def weights(message, context):
        return learn_weights(message, context, network=..., loss=..., batches=...)"""


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
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    try:
        request, about = from_records(message.content)
        client_state = ContextState(context.state, device)
        name = site or f"node-{context.node_id}"
        responder = Responder(name, network, loss, batches, client_state)
        reply = responder.answer(about.get("verb", ""), request)
        client_state.save()
    except AutoFedAvgError as error:
        reply = Message({}, error_facts(error))
    return FlowerMessage(to_records(reply, {}), reply_to=message)
