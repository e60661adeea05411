"""Flower's ClientApp: answers one message, in a process that Flower starts for it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from autofedavg.core.errors import AutoFedAvgError, ConfigError, RunError
from autofedavg.engines.flower.codec import from_records, to_records
from autofedavg.engines.flower.context_state import ContextState
from autofedavg.engines.flower.export import job_text
from autofedavg.engines.flower.transport import ASK, NAME
from autofedavg.engines.remote.site_service import SiteService
from autofedavg.federation.messages import Message as Reply
from autofedavg.federation.serialization import not_sent

log = logging.getLogger(__name__)

app = ClientApp()


@app.query(ASK)
def ask(message: Message, context: Context) -> Message:
    """Answers a request of the server's port."""
    with _errors_without_details(message):
        return Message(_answer(message, context), reply_to=message)


@app.query(NAME)
def name(message: Message, context: Context) -> Message:
    """Says which site this is, where the server's administrator lets a site name itself."""
    with _errors_without_details(message):
        return Message(to_records(Reply(), _about(message, context)), reply_to=message)


def _answer(message: Message, context: Context) -> RecordDict:
    about, job = _about(message, context), job_text(context.run_config)
    request, said = from_records(message.content)
    verb = said.get("verb", "")
    owner = hashlib.sha256(job.encode()).hexdigest()
    client_state = ContextState(context.state, torch.device("cpu"), owner)
    local = context.node_config.get("site-file")
    path = Path(str(local)).expanduser() if local else None
    service = SiteService(job, about["site"], path, client_state, client_state.history)
    reply = service.answer(verb, request)
    client_state.history = service.history()
    client_state.save()
    try:
        return to_records(reply, about)
    except Exception as error:
        log.exception("%s", verb)
        return to_records(not_sent(verb, error), about)


def _about(message: Message, context: Context) -> dict[str, str]:
    """What a reply says of itself.

    Flower identifies objects by their content: two equal replies at once would share one.
    """
    site = context.node_config.get("site")
    if not isinstance(site, str) or not site:
        raise ConfigError(
            "the SuperNode does not say which site it is",
            remedy="start it with --node-config 'site=\"NAME\"'",
        )
    return {"site": site, "to": message.metadata.message_id}


@contextmanager
def _errors_without_details(message: Message) -> Iterator[None]:
    """Logs errors here and raises them without paths and cases, since Flower sends their text."""
    ours = logging.getLogger("autofedavg")
    if not ours.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        ours.addHandler(handler)
        ours.setLevel(logging.INFO)
    try:
        yield
    except Exception as error:
        log.exception("%s", message.metadata.message_type)
        kind = f"{type(error).__name__}, and this site's own log says more"
        raise RunError(error.what if isinstance(error, AutoFedAvgError) else kind) from None
