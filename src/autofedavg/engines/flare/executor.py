"""A site's side of a FLARE job: hands what arrives to the site's desk, and its answer back."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from autofedavg.core.errors import AutoFedAvgError, from_outside
from autofedavg.engines.flare.access import Door
from autofedavg.engines.flare.codec import as_letter, as_weights, of_letter, of_weights
from autofedavg.engines.flare.export import text_in
from autofedavg.engines.flare.pushing import VERB, WITHIN
from autofedavg.engines.flare.transport import BY_TASK, GLANCE, IN_LETTERS, LETTERS, TOPIC
from autofedavg.engines.remote.site import SiteService
from autofedavg.federation.messages import Message
from autofedavg.federation.serialization import WireError, not_sent

log = logging.getLogger(__name__)

SITE_FILE = "autofedavg.toml"  # in the `local` folder of the site's kit
SITE_VARIABLE = "AUTOFEDAVG_SITE"  # another such file, or a folder with a <site>.toml


class AutoFedAvgExecutor(Executor):  # type: ignore[misc]
    """Answers for this site; keeps its data, network and models in memory for the job."""

    def __init__(self) -> None:
        super().__init__()
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._selection: SiteService | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            self._begin(fl_ctx)

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """A note with models, as a task."""
        if task_name not in BY_TASK:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        return self._answer(task_name, shareable, of_weights, as_weights, fl_ctx, abort_signal)

    def _begin(self, fl_ctx: FLContext) -> None:
        workspace = fl_ctx.get_engine().get_workspace()
        site = fl_ctx.get_identity_name()
        try:
            text = text_in(Path(workspace.get_app_config_dir(fl_ctx.get_job_id())))
            self._selection = SiteService(
                text, site, _site_file(site, workspace.get_site_config_dir())
            )
        except AutoFedAvgError as error:
            self.system_panic(str(error), fl_ctx)
            return
        # One thread does all of the site's work: what arrives in between waits for its turn, and
        # torch sees one caller. A daemon, so that a long answer cannot keep the process alive.
        threading.Thread(target=self._do_work, name="autofedavg-desk", daemon=True).start()
        Door(fl_ctx.get_engine().get_cell(), TOPIC)
        fl_ctx.get_engine().register_aux_message_handler(TOPIC, self._read_message)

    def _do_work(self) -> None:
        while True:
            self._work.get()()

    def _read_message(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """A small note, as a message; a model comes as a task, which the site's filters see."""
        verb = str(request.get_header(VERB))
        if verb not in LETTERS:
            self.log_error(fl_ctx, f"refused: {from_outside(verb)} does not come as a message")
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        stop = fl_ctx.get_run_abort_signal() or Signal()
        return self._answer(verb, request, _of_small_letter, as_letter, fl_ctx, stop)

    def _answer(
        self,
        verb: str,
        message: Shareable,
        read: Callable[[object], Message],
        write: Callable[[Message], Shareable],
        fl_ctx: FLContext,
        stop: Signal,
    ) -> Shareable:
        selection = self._selection
        if selection is None:
            return make_reply(ReturnCode.SERVICE_UNAVAILABLE)
        promise: Future[Shareable] = Future()

        def work() -> None:
            if not promise.set_running_or_notify_cancel():
                return  # too late: nobody waits any more
            try:
                promise.set_result(_written(verb, selection.answer(verb, read(message)), write))
            except Exception as error:
                promise.set_exception(error)

        self._work.put(work)
        waited, within = 0.0, message.get_header(WITHIN)
        while True:
            try:
                return promise.result(GLANCE)
            except TooLate:
                waited += GLANCE
                if stop.triggered or (isinstance(within, int | float) and waited > within):
                    promise.cancel()
                    return make_reply(ReturnCode.TASK_ABORTED)
            except AutoFedAvgError as error:
                self.log_error(fl_ctx, f"{verb}: {error}")
                return make_reply(ReturnCode.BAD_REQUEST_DATA)


def _of_small_letter(message: object) -> Message:
    """The note in a small message, which holds no model."""
    note = of_letter(message)
    if more := note.arrays.keys() - IN_LETTERS:
        raise WireError(f"a message with {from_outside(', '.join(sorted(more)))} in it is refused")
    return note


def _written(verb: str, answer: Message, write: Callable[[Message], Shareable]) -> Shareable:
    """An answer as FLARE carries it, or that it cannot be."""
    try:
        return write(answer)
    except Exception as error:
        log.exception("%s", verb)
        return write(not_sent(verb, error))


def _site_file(site: str, folder: str) -> Path | None:
    """The site's own file, if it has one."""
    told = os.environ.get(SITE_VARIABLE)
    path = Path(told) if told else Path(folder) / SITE_FILE
    if path.is_dir():
        path = path / f"{site}.toml"
    return path if told or path.exists() else None
