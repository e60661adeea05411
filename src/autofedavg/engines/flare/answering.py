"""A site's side of a FLARE job of somebody else's making: what it answers, and from what."""

from __future__ import annotations

import threading

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from torch import nn

from autofedavg.core.errors import AutoFedAvgError, ConfigError, error_facts
from autofedavg.core.trainer import Loss
from autofedavg.engines.dropin.responder import Batches, Responder
from autofedavg.engines.flare.access import Door
from autofedavg.engines.flare.codec import as_letter, as_weights, of_letter, of_weights
from autofedavg.engines.flare.pushing import VERB
from autofedavg.federation.messages import Message
from autofedavg.federation.serialization import WireError

TOPIC = "autofedavg_dropin"
BY_WEIGHTS = "autofedavg_by_weights"  # header of a message
LINES = "answer_with(network=..., loss=..., batches=...)"


class LearnedWeights(FLComponent):  # type: ignore[misc]
    """A site's component: hands the server's questions to what `answer_with` was given."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            _given.clear()
            Door(fl_ctx.get_engine().get_cell(), TOPIC)
            fl_ctx.get_engine().register_aux_message_handler(TOPIC, self._handle)

    def _handle(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        try:
            note = read(request)
        except WireError as error:
            self.log_error(fl_ctx, str(error))
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        return written(
            _given.answer(fl_ctx.get_identity_name(), str(request.get_header(VERB)), note)
        )


class _Given:
    """What this process's script has given."""

    def __init__(self) -> None:
        self._parts: tuple[nn.Module, Loss, Batches] | None = None
        self._responder: Responder | None = None
        self._turn = threading.Lock()

    def clear(self) -> None:
        with self._turn:
            self._parts = self._responder = None

    def take(self, network: nn.Module, loss: Loss, batches: Batches) -> None:
        with self._turn:
            self._parts, self._responder = (network, loss, batches), None

    def answer(self, site: str, verb: str, note: Message) -> Message:
        try:
            responder = self._made(site)
        except AutoFedAvgError as error:
            return Message({}, error_facts(error))
        return responder.answer(verb, note)

    def _made(self, site: str) -> Responder:
        with self._turn:
            if self._responder is None:
                if self._parts is None:
                    raise _not_given(site)
                self._responder = Responder(site, *self._parts)
            return self._responder


_given = _Given()


def answer_with(*, network: nn.Module, loss: Loss, batches: Batches) -> None:
    """Says what this site answers from; to be called before the first round.

    Args:
        network: the network that is trained, with any weights; a copy is worked on.
        loss: (network, batch) -> scalar; moves the batch to the network's device.
        batches: a data loader over cases that were not trained on, or a function
            (round, step) -> batch.
    """
    _given.take(network, loss, batches)


def _not_given(site: str) -> ConfigError:
    return ConfigError(
        "its script has not said what to learn the weights from, or runs in a process of its own",
        where=f"client {site}",
        remedy=f"add to it, before its first round, and run it in the job's process: {LINES}",
    )


def written(note: Message) -> Shareable:
    """Models as arrays, which FLARE sends in pieces; the rest as one small byte string."""
    heavy = any(name.startswith(("values", "gradient")) for name in note.arrays)
    message = as_weights(note) if heavy else as_letter(note)
    message.set_header(BY_WEIGHTS, heavy)
    return message


def read(message: object) -> Message:
    """The note in a message.

    Raises:
        WireError: there is none in it.
    """
    heavy = isinstance(message, Shareable) and message.get_header(BY_WEIGHTS) is True
    return of_weights(message) if heavy else of_letter(message)
