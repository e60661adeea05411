"""What a Flower site says of its own trouble: its kind, never its text, which may hold paths."""

import logging
import socket
import threading
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="needs autofedavg[flower]")

from flwr.app import Context, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.supercore.task_identity import TaskIdentity

from autofedavg.core.errors import ConfigError, RunError
from autofedavg.engines.flower import dispatch as errands
from autofedavg.engines.flower import resident, worker
from autofedavg.engines.flower.codec import pack, unpack
from autofedavg.engines.flower.parcel import Parcel, receive, send
from autofedavg.engines.flower.records import to_records
from autofedavg.engines.remote import site_service as desks
from autofedavg.federation.messages import Message

SECRET = "/home/anna/patients/0815.nii.gz"


@pytest.fixture(autouse=True)
def a_task(monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def answered(action: str) -> RecordDict:
    content = to_records(pack(Message(), {"verb": "hello"})) if action == "ask" else RecordDict()
    message = FlowerMessage(content, 1, f"query.{action}")
    context = Context(1, 1, {"site": "A"}, RecordDict(), {"job": "{}"})
    return errands.answer(message, context, watch=1, stays=False)


@pytest.mark.parametrize("action", ["ask", "bye"])
@pytest.mark.parametrize(
    ("error", "says"),
    [
        (PermissionError(13, "Permission denied", SECRET), "PermissionError, and this site's own"),
        (RuntimeError(f"no home in {SECRET}"), "RuntimeError, and this site's own log says more"),
        (ConfigError("it is not so", where=SECRET, remedy=f"mend {SECRET}"), "it is not so"),
    ],
    ids=["OSError", "RuntimeError", "ConfigError"],
)
def test_what_goes_wrong_is_told_without_its_text(monkeypatch, caplog, action, error, says):
    def fail(*_args):
        raise error

    monkeypatch.setattr(resident, "workers_folder", fail)
    with caplog.at_level(logging.ERROR), pytest.raises(RunError) as told:
        answered(action)
    assert str(told.value).startswith(says)
    assert SECRET not in str(told.value)
    assert SECRET in caplog.text, "the site's own log says it"


def test_a_site_without_a_name_is_told_so():
    message = FlowerMessage(RecordDict(), 1, "query.name")
    with pytest.raises(RunError, match="the SuperNode does not say which site it is"):
        errands.answer(message, Context(1, 1, {}, RecordDict(), {}), watch=1, stays=False)


class Selection:
    """Answers what cannot be sent, but for the verb "fine"."""

    def __init__(self, *_args):
        self.bad = {
            "nan": Message({}, {"loss": float("nan"), "case": SECRET}),
            "object": Message({}, {"loss": {SECRET}}),
            "sparse": Message({"values": torch.ones(2).to_sparse()}, {"case": SECRET}),
        }

    def answer(self, verb: str, _note: Message) -> Message:
        return self.bad.get(verb, Message({}, {"verb": verb}))


def test_an_answer_that_cannot_be_sent_does_not_end_the_worker(tmp_path, monkeypatch):
    monkeypatch.setattr(desks, "SiteService", Selection)
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()
        serving = threading.Thread(target=worker.serve, args=(listener, 20.0), daemon=True)
        serving.start()

        def ask(verb: str) -> Parcel:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as to:
                to.settimeout(20)
                to.connect(path)
                send(to, pack(Message(), {"verb": verb, "site": "A", "job": "{}"}))
                return receive(to)

        for verb in ("nan", "object", "sparse"):
            (error,) = unpack(ask(verb)).facts.values()
            assert error.startswith(f"its answer to {verb} cannot be sent (")
            assert SECRET not in error
            assert unpack(ask("fine")).facts == {"verb": "fine"}
        ask(resident.BYE)
        serving.join(20)
        assert not serving.is_alive()


def test_a_folder_too_long_for_a_socket_is_refused_and_a_long_home_is_left(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 90)
    monkeypatch.setenv(resident.FOLDER, str(long))
    with pytest.raises(RunError, match="too long for a socket") as refused:
        resident.place("A", "job")
    assert "xxx" not in str(refused.value)  # it may be sent on
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(long))
    assert resident.short_home() == Path("/tmp")
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/var/tmp")
    assert resident.short_home() == Path("/var/tmp")
