"""A site's side of a FLARE job: passes requests to the site's service, and its replies back."""

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
from autofedavg.engines.flare.access import AccessCheck
from autofedavg.engines.flare.codec import decode_bytes, decode_dxo, encode_bytes, encode_dxo
from autofedavg.engines.flare.export import read_job_text
from autofedavg.engines.flare.transport import AUX_ARRAYS, AUX_VERBS, POLL, TOPIC, VERB, WITHIN
from autofedavg.engines.remote.site_files import SITE_FILE
from autofedavg.engines.remote.site_service import SiteService
from autofedavg.federation.messages import WITH_MODELS, Message
from autofedavg.federation.serialization import WireError, not_sent

log = logging.getLogger(__name__)

SITE_VARIABLE = "AUTOFEDAVG_SITE"  # names another site file, or a folder with a <site>.toml


class AutoFedAvgExecutor(Executor):  # type: ignore[misc]
    """Replies for this site; keeps its data, network and models in memory during the job."""

    def __init__(self) -> None:
        super().__init__()
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._service: SiteService | None = None

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """Handles a request with models, which comes as a task."""
        if task_name not in WITH_MODELS:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        return self._reply(task_name, shareable, decode_dxo, encode_dxo, fl_ctx, abort_signal)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type != EventType.START_RUN:
            return
        workspace = fl_ctx.get_engine().get_workspace()
        site = fl_ctx.get_identity_name()
        try:
            text = read_job_text(Path(workspace.get_app_config_dir(fl_ctx.get_job_id())))
            local = _site_file(site, workspace.get_site_config_dir())
            self._service = SiteService(text, site, local)
        except AutoFedAvgError as error:
            self.system_panic(str(error), fl_ctx)
            return
        # One thread does all of the site's work, so torch has one caller and other requests wait.
        # It is a daemon, so that a long computation cannot keep the process alive.
        threading.Thread(target=self._do_work, name="autofedavg-site", daemon=True).start()
        AccessCheck(fl_ctx.get_engine().get_cell(), TOPIC)
        fl_ctx.get_engine().register_aux_message_handler(TOPIC, self._handle_aux)

    def _do_work(self) -> None:
        while True:
            self._work.get()()

    def _handle_aux(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Handles a small request. Models come as tasks only, because filters see those."""
        verb = str(request.get_header(VERB))
        if verb not in AUX_VERBS:
            self.log_error(fl_ctx, f"refused: {from_outside(verb)} must not be an aux message")
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        stop = fl_ctx.get_run_abort_signal() or Signal()
        return self._reply(verb, request, _decode_small, encode_bytes, fl_ctx, stop)

    def _reply(
        self,
        verb: str,
        request: Shareable,
        decode: Callable[[object], Message],
        encode: Callable[[Message], Shareable],
        fl_ctx: FLContext,
        stop: Signal,
    ) -> Shareable:
        service = self._service
        if service is None:
            return make_reply(ReturnCode.SERVICE_UNAVAILABLE)
        promise: Future[Shareable] = Future()

        def work() -> None:
            if not promise.set_running_or_notify_cancel():
                return  # the caller has given up
            try:
                reply = service.answer(verb, decode(request))
                try:
                    promise.set_result(encode(reply))
                except Exception as error:
                    log.exception("%s", verb)
                    promise.set_result(encode(not_sent(verb, error)))
            except Exception as error:
                promise.set_exception(error)

        self._work.put(work)
        waited, within = 0.0, request.get_header(WITHIN)
        while True:
            try:
                return promise.result(POLL)
            except TooLate:
                waited += POLL
                if stop.triggered or (isinstance(within, int | float) and waited > within):
                    promise.cancel()
                    return make_reply(ReturnCode.TASK_ABORTED)
            except AutoFedAvgError as error:
                self.log_error(fl_ctx, f"{verb}: {error}")
                return make_reply(ReturnCode.BAD_REQUEST_DATA)


def _decode_small(request: object) -> Message:
    """Decodes an aux message and refuses models in it."""
    message = decode_bytes(request)
    if more := message.arrays.keys() - AUX_ARRAYS:
        names = from_outside(", ".join(sorted(more)))
        raise WireError(f"an aux message must not carry the arrays {names}")
    return message


def _site_file(site: str, folder: str) -> Path | None:
    """The path of the site's own file, if it has one."""
    chosen = os.environ.get(SITE_VARIABLE)
    path = Path(chosen) if chosen else Path(folder) / SITE_FILE
    if path.is_dir():
        path = path / f"{site}.toml"
    return path if chosen or path.exists() else None
