"""Learned weights in a ClientApp of somebody else's making: one query function.

    @app.query("autofedavg")
    def weights(message: Message, context: Context) -> Message:
        return learn_weights(message, context, network=Net(), loss=loss, batches=validation)

The ServerApp asks with `autofedavg.engines.flower.strategy.LearnedFedAvg`.
"""

from __future__ import annotations

import torch
from flwr.app import Context, RecordDict
from flwr.app import Message as FlowerMessage
from torch import nn

from autofedavg.core.bank import Bank
from autofedavg.core.errors import AutoFedAvgError, error_facts
from autofedavg.core.trainer import Loss
from autofedavg.engines.dropin.responder import BankState, Batches, Responder
from autofedavg.engines.flower.codec import opened, pack
from autofedavg.engines.flower.records import ARRAYS, NOTE, from_records, to_records
from autofedavg.federation.messages import Message, bag_of, model_of
from autofedavg.federation.serialization import WireError

ACTION = "autofedavg"
STATE = "autofedavg-"  # what the names of our records in a context begin with
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
        context: of the ClientApp; holds the other sites' models between messages, where there are
            several in a round.
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
    client_state = ContextState(context.state, device)
    try:
        note, about = opened(lambda: from_records(message.content))
        name = site or f"node-{context.node_id}"
        responder = Responder(name, network, loss, batches, client_state)
        answer = responder.answer(about.get("verb", ""), note)
        client_state.save()
    except AutoFedAvgError as error:
        answer = Message({}, error_facts(error))
    return FlowerMessage(to_records(pack(answer)), reply_to=message)


class ContextState(BankState):
    """Models in the state that Flower keeps between a node's messages."""

    def __init__(self, state: RecordDict, device: torch.device) -> None:
        super().__init__()
        self._state, self._device = state, device

    def bank(self, digest: str) -> Bank | None:
        return super().bank(digest) or self._read(digest)

    def save(self) -> None:
        """Writes what is to be kept, and nothing else, into the state."""
        if self._bank is None:
            return
        digest, bank = self._bank
        note = Message(bag_of(bank), {"digest": digest, "sites": list(bank.sites)})
        for key, record in to_records(pack(note)).items():
            self._state[STATE + key] = record

    def forget(self) -> None:
        super().forget()
        for key in (NOTE, ARRAYS):
            self._state.pop(STATE + key, None)

    def _read(self, digest: str) -> Bank | None:
        kept = {
            key: self._state[STATE + key] for key in (NOTE, ARRAYS) if STATE + key in self._state
        }
        try:
            note, _ = opened(lambda: from_records(RecordDict(kept)))
        except WireError:  # written by another version, or not at all
            return None
        if note.facts.get("digest") != digest:
            return None
        arrays = {key: array.to(self._device) for key, array in note.arrays.items()}
        return Bank.gather({site: model_of(arrays, site) for site in note.facts["sites"]})
