"""A hospital for tests that asks another one behind the server's back, and writes down the answers.

It takes part in the job as it should. In its first `local_train` it asks site II, in every way that
FLARE has, and writes what came back to `asked.json` in the runs folder, and to its own log.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from nvflare.apis.fl_constant import AdminCommandNames
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
from nvflare.fuel.f3.message import Message as CellMessage
from nvflare.private.admin_defs import Message as AdminMessage
from nvflare.private.defs import SysCommandTopic

from autofedavg.engines.flare import executor as executors
from autofedavg.engines.flare.codec import encode_bytes
from autofedavg.engines.flare.transport import TOPIC, VERB
from autofedavg.federation.messages import Message

PATH = "flare_intruder.Intruder"
VICTIM = "II"
SECRET = "local/autofedavg-secret.txt"  # in the victim's kit


class Intruder(executors.AutoFedAvgExecutor):
    asked = False

    def handle_event(self, event_type, fl_ctx) -> None:
        executors.AccessCheck = lambda *_: None  # to receive what others send
        super().handle_event(event_type, fl_ctx)

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        answer = super().execute(task_name, shareable, fl_ctx, abort_signal)
        if task_name == "local_train" and not self.asked:
            self.asked = True
            model = {"values": torch.zeros(1636), "counters": torch.zeros(0, dtype=torch.int64)}
            replies = self._aux_messages(model, fl_ctx) | self._requests(fl_ctx)
            for what, said in replies.items():
                self.log_info(fl_ctx, f"asked {VICTIM} for {what}: {said}")
            Path(os.environ["AUTOFEDAVG_RUNS"], "asked.json").write_text(json.dumps(replies))
        return answer

    def _aux_messages(self, model, fl_ctx) -> dict[str, str]:
        messages = {
            "hello": Message({}, {}),
            "class_counts": Message({}, {}),
            "evaluate": Message(model, {"split": "train"}),
            "local_train": Message(model, {"t": 1, "T": 3}),
        }
        replies = {}
        for verb, asked in messages.items():
            (reply,) = (
                fl_ctx.get_engine()
                .send_aux_request(
                    targets=[VICTIM],
                    topic=TOPIC,
                    request=_aux_message(verb, asked),
                    timeout=9,
                    fl_ctx=fl_ctx,
                )
                .values()
            )
            replies[f"aux {verb}"] = f"{reply.get_return_code()} {sorted(reply)}"
        return replies

    def _requests(self, fl_ctx) -> dict[str, str]:
        """Past FLARE's own functions, to the job's process and to the one it is a child of."""
        cell = fl_ctx.get_engine().get_cell().core_cell
        worker = f"{VICTIM}.{fl_ctx.get_job_id()}"
        aux = _aux_message("hello", Message({}, {}))
        aux.set_peer_props({"who": "me"})
        show = AdminMessage(SysCommandTopic.SHELL, f"cat {SECRET}")
        asks = {
            "a request": (worker, CellChannel.AUX_COMMUNICATION, TOPIC, aux),
            "its status": (
                worker,
                CellChannel.CLIENT_COMMAND,
                AdminCommandNames.CHECK_STATUS,
                Shareable(),
            ),
            "its neighbours": (worker, "_net_manager", "peers", None),
            "a file": (VICTIM, CellChannel.CLIENT_MAIN, show.topic, show),
        }
        replies = {}
        for what, (target, channel, topic, payload) in asks.items():
            reply = cell.send_request(
                channel, topic, target, CellMessage(payload=payload), timeout=9
            )
            code = reply.get_header(MessageHeaderKey.RETURN_CODE)
            said = getattr(reply.payload, "body", reply.payload)
            replies[what] = f"{code} {reply.get_header(MessageHeaderKey.ERROR)} {said}"
        return replies


def _aux_message(verb: str, asked: Message) -> Shareable:
    message = encode_bytes(asked)
    message.set_header(VERB, verb)
    return message
