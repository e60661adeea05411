"""Messages that the server pushes to sites of its job, and that are answered at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from autofedavg.federation.messages import Message, NoReply
from autofedavg.federation.serialization import WireError

VERB, WITHIN = "autofedavg_verb", "autofedavg_within"  # headers of a message
ENDLESS = 30 * 24 * 3600.0  # seconds: what a message without a limit is given


def push(
    context: FLContext,
    topic: str,
    verb: str,
    messages: Mapping[str, Message],
    within: float | None,
    write: Callable[[Message], Shareable],
) -> dict[str, object]:
    """Sends each named site its note; returns what came back, if anything.

    FLARE's own way of sending several messages at a time (multicast_aux_requests) fails in
    2.9.0, so sites with the same note, which mostly is all of them, are asked together.
    """
    engine = context.get_engine()
    groups: dict[int, list[str]] = {}
    for name, note in messages.items():
        groups.setdefault(id(note), []).append(name)

    def send(names: Sequence[str]) -> Mapping[str, object]:
        message = write(messages[names[0]])
        message.set_header(VERB, verb)
        message.set_header(WITHIN, within)
        replies: Mapping[str, object] | None = engine.send_aux_request(
            targets=list(names),
            topic=topic,
            request=message,
            timeout=within or ENDLESS,
            fl_ctx=context,
            optional=True,
        )
        return replies or {}

    found: dict[str, object] = {}
    with ThreadPoolExecutor(max_workers=max(1, len(groups))) as plan:
        for replies in plan.map(send, groups.values()):
            found |= replies
    return found


def answer(
    reply: object, read: Callable[[object], Message], within: float | None
) -> Message | NoReply:
    """The note in a reply, or why there is none."""
    if reply is None:
        return NoReply("no answer" if within is None else f"no answer within {within:g} s")
    try:
        return read(reply)
    except WireError as error:
        return NoReply(str(error))
