"""A SuperExec that stays: answers a SuperNode's messages without a new process for each.

    flower-supernode ... --isolation process --superexec-auth-secret-file SECRET
    python -m autofedavg.engines.flower.executor --runtime-api-address 127.0.0.1:9094 --insecure \
        --superexec-auth-secret-file SECRET

In the place of `flower-superexec`, over the same Runtime API. It runs no code that an app brings:
it answers what this package's own app asks, and nothing else.
"""

from __future__ import annotations

import argparse
import logging
import os
import threading
import time
from pathlib import Path

import httpx
from flwr.app import Context, Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import context_from_proto
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
)
from flwr.supercore.auth import load_superexec_auth_secret
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    pull_and_inflate_object_from_tree,
)
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import push_message, push_task_output

from autofedavg.core.errors import RunError
from autofedavg.engines.flower.dispatch import ACTIONS, answer, said

log = logging.getLogger(__name__)

QUICK, SLOW = 0.1, 0.5  # seconds between two looks for a message, soon after one and later
SOON = 3.0
GONE = 60.0  # seconds without a SuperNode, then it ends
DELIVERY = 30.0  # seconds the SuperNode may take to fetch a message that it has announced
LATE = 2.0  # seconds at most between two looks for a part of one
FIRST_BEAT = 5.0  # seconds after which a message counts as long: a heartbeat is due within 60


def main() -> None:
    """Answers messages for as long as there is a SuperNode."""
    chosen = _arguments().parse_args()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    supernode = Supernode(chosen)
    last_task = last_word = time.monotonic()
    while time.monotonic() - last_word < GONE:
        try:
            busy = supernode.take_one()
        except httpx.HTTPError as error:
            log.warning("the SuperNode does not answer (%s)", error)
            time.sleep(1.0)
            continue
        last_word = time.monotonic()
        if busy:
            last_task = last_word
        time.sleep(0.0 if busy else QUICK if last_word - last_task < SOON else SLOW)
    log.error("no SuperNode for %g s", GONE)
    raise SystemExit(1)


class Supernode:
    """The SuperNode's Runtime API."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self._address: str = chosen.runtime_api_address
        self._insecure: bool = chosen.insecure
        certificates: Path | None = chosen.root_certificates
        self._certificates = certificates.read_bytes() if certificates else None
        secret = load_superexec_auth_secret(chosen.superexec_auth_secret_file)
        extra: list[ProtobufClientInterceptor] = []
        if secret:
            methods = frozenset({"/flwr.proto.Runtime/AcquireTask"})
            extra = [SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=methods)]
        self._client = self._connect("SuperExec", extra)

    def take_one(self) -> bool:
        """Has a message answered by a thread of its own; whether there was one.

        A SuperNode may announce a message that it then cannot fetch, because its run was over:
        whoever waits for that one must not keep others waiting.
        """
        found = self._client.AcquireTask(
            AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        )
        if found.token:
            threading.Thread(target=self._work, args=(found.token,), daemon=True).start()
        return bool(found.token)

    def _work(self, token: str) -> None:
        task = self._connect("flwr-clientapp", [RuntimeTokenHttpInterceptor(token)])
        beat = HeartbeatSender(make_task_heartbeat_fn_http(task))
        timer = threading.Timer(FIRST_BEAT, beat.start)
        timer.daemon = True
        timer.start()
        try:
            self._serve(task)
        except (httpx.HTTPError, ObjectPullError) as error:
            log.warning("a message could not be answered (%s)", error)
        finally:
            timer.cancel()
            if beat.is_running:
                beat.stop()
            task.close()

    def _serve(self, task: RuntimeHttpClient) -> None:
        started = time.perf_counter()
        message, context = _receive(task)
        kind = message.metadata.message_type
        status, details = SubStatus.COMPLETED, ""
        try:
            if kind.partition(".")[2] not in ACTIONS:
                raise RunError("this site answers autofedavg's messages only")
            reply = Message(answer(message, context, os.getpid(), stays=True), reply_to=message)
        except Exception as error:
            log.exception("%s", kind)
            status, details = SubStatus.FAILED, said(error)
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, details), reply_to=message)
        try:
            push_message(task, reply, context)
        except ObjectPushError:  # the SuperNode had all it needed and has sent the reply on
            log.info("part of the reply to %s was there already", kind)
        push_task_output(task, context, status, details)
        took = time.perf_counter() - started
        log.info("%s %s: %.3f s", kind, message.metadata.group_id, took)

    def _connect(self, component: str, extra: list[ProtobufClientInterceptor]) -> RuntimeHttpClient:
        version = RuntimeVersionHttpInterceptor(component_name=component)
        return RuntimeHttpClient.from_server_address(
            server_address=self._address,
            insecure=self._insecure,
            root_certificates=self._certificates,
            interceptors=[version, *extra],
        )


def _receive(task: RuntimeHttpClient) -> tuple[Message, Context]:
    """The message of a task; the SuperNode announces one before it has all of it."""
    context = context_from_proto(task.PullTaskInput(PullTaskInputRequest()).context)
    until = time.monotonic() + DELIVERY
    while not (found := task.PullMessages(PullAppMessagesRequest())).messages_list:
        if time.monotonic() > until:
            raise httpx.ReadTimeout("the SuperNode announced a message that never came")
        time.sleep(QUICK / 4)
    tree, node, run = found.message_object_trees[0], Node(node_id=context.node_id), context.run_id
    message = pull_and_inflate_object_from_tree(
        tree,
        make_pull_object_fn_protobuf(task.PullObject, node, run),
        make_confirm_message_received_fn_protobuf(task.ConfirmMessageReceived, node, run),
        return_type=Message,
        initial_backoff=QUICK / 4,
        backoff_cap=LATE,
    )
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message, context


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m autofedavg.engines.flower.executor",
        description="Answers a SuperNode's messages without a new process for each.",
    )
    parser.add_argument("--runtime-api-address", required=True, help="the SuperNode's host:port")
    parser.add_argument("--insecure", action="store_true", help="without TLS, on this machine")
    parser.add_argument("--root-certificates", type=Path, help="authority of the SuperNode")
    parser.add_argument("--superexec-auth-secret-file", help="the secret shared with it")
    return parser


if __name__ == "__main__":
    main()
