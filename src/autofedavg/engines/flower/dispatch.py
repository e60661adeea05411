"""What a site does with a message: handed to its worker, or answered at once.

Used by Flower's process per message and by the resident executor alike.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict

from autofedavg.core.errors import AutoFedAvgError, ConfigError, RunError
from autofedavg.engines.flower import resident
from autofedavg.engines.flower.parcel import BadParcel, Parcel
from autofedavg.engines.flower.records import from_records, to_records

log = logging.getLogger(__name__)

ASK, NAME, AWAKE, BYE = "ask", "name", "awake", "bye"
ACTIONS = (ASK, NAME, AWAKE, BYE)  # of Flower's message type "query"


def answer(message: Message, context: Context, watch: int, stays: bool) -> RecordDict:
    """The content of the reply to a message.

    Args:
        message: from the server.
        context: of this site and run.
        watch: the process without which the worker shall end.
        stays: whether this process stays for the next message.

    Raises:
        RunError: there is no answer; names no path or case, since Flower sends its text on.
    """
    try:
        return _answer(message, context, watch, stays)
    except Exception as error:
        log.exception("%s", message.metadata.message_type)
        raise RunError(said(error)) from None


def _answer(message: Message, context: Context, watch: int, stays: bool) -> RecordDict:
    action = message.metadata.message_type.partition(".")[2]
    site = _site(context)
    # Flower knows objects by their content: two equal replies at once would share one.
    about = {"site": site, "stays": "yes" if stays else "no", "to": message.metadata.message_id}
    if action == ASK:
        return to_records(_ask(message, context, site, watch, about))
    if action == BYE:
        resident.dismiss(site, _job(context))
    return RecordDict({"about": ConfigRecord(dict(about))})


def _ask(
    message: Message, context: Context, site: str, watch: int, about: dict[str, str]
) -> Parcel:
    try:
        parcel = from_records(message.content)
        verb = parcel.about["verb"]
    except (BadParcel, KeyError) as error:
        raise RunError(f"the message is no request: {error}") from None
    job, local = _job(context), context.node_config.get("site-file")
    request = {"verb": verb, "site": site, "job": job}
    if local:
        request["local"] = str(Path(str(local)).expanduser())
    back = resident.exchange(site, job, replace(parcel, about=request), watch)
    return replace(back, about=about)


def _site(context: Context) -> str:
    name = context.node_config.get("site")
    if not isinstance(name, str) or not name:
        raise ConfigError(
            "the SuperNode does not say which site it is",
            remedy="start it with --node-config 'site=\"NAME\"'",
        )
    return name


def _job(context: Context) -> str:
    job = context.run_config.get("job")
    if not isinstance(job, str):
        raise ConfigError("the app holds no job", remedy="make it with `autofedavg export flower`")
    return job


def said(error: BaseException) -> str:
    """What may be told of an error: our own words; of others the kind only."""
    if isinstance(error, AutoFedAvgError):
        return error.what
    return f"{type(error).__name__}, and this site's own log says more"
