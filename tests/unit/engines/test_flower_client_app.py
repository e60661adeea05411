"""Our ClientApp, called in this process: its state between messages, and what its errors say."""

import logging

import pytest
import torch

pytest.importorskip("flwr", reason="needs autofedavg[flower]")

from flwr.app import Context, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.supercore.task_identity import TaskIdentity

from autofedavg.core.bank import Bank, Model
from autofedavg.core.errors import ConfigError, RunError
from autofedavg.core.forms import Form
from autofedavg.engines.flower import client_app, context_state
from autofedavg.engines.flower.codec import from_records, to_records
from autofedavg.engines.flower.context_state import ContextState
from autofedavg.federation.messages import Message
from autofedavg.federation.secure_sum import MaskState

SECRET = "/home/anna/patients/0815.nii.gz"
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def a_task(monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def model(value: float, form: Form | None = None) -> Model:
    return Model(torch.full((5,), value), torch.tensor([int(value)]), form)


def test_every_part_of_the_state_comes_back():
    state, form = RecordDict(), Form((3, 2), 1)
    kept = ContextState(state, CPU, "job")
    kept.keep_own(model(1.5, form))
    kept.keep_parts({"d1": model(2.0), "d2": model(3.0)})
    kept.keep_reference(model(4.0), "ref")
    kept.history = {"asked": [["hello", 1]]}
    kept.masks = MaskState("ab" * 32, {"local_train": (3, 1, ["north", "south"], "digest")})
    kept.save()
    back = ContextState(state, CPU, "job")
    assert back.own().digest() == model(1.5).digest()
    assert back.own().form == form
    assert {d: m.digest() for d, m in back.parts().items()} == {
        "d1": model(2.0).digest(),
        "d2": model(3.0).digest(),
    }
    assert back.reference("ref").digest() == model(4.0).digest()
    assert back.reference("else") is None
    assert back.history == kept.history
    assert back.masks == kept.masks, "a key outlives the process of a message"
    back.keep_bank(Bank.gather({"A": model(1.0), "B": model(2.0)}), "whole")
    back.save()
    again = ContextState(state, CPU, "job")
    assert again.parts() == {}
    assert torch.equal(again.bank("whole").values, back.bank("whole").values)
    assert again.bank("whole").sites == ("A", "B")
    assert again.bank("other") is None
    again.keep_own(model(2.0))
    again.save()
    assert ContextState(state, CPU, "job").bank("whole") is None, "of an earlier round"
    assert ContextState(state, CPU, "another job").own() is None


def test_a_state_that_flower_cannot_carry_is_refused(monkeypatch):
    monkeypatch.setattr(context_state, "MOST_BYTES", 10)
    kept = ContextState(RecordDict(), CPU)
    kept.keep_own(model(1.0))
    with pytest.raises(RunError, match="Flower keeps at most 10; use FLARE"):
        kept.save()


class Service:
    """Answers what cannot be sent, but for the verb "fine"; raises `error` if there is one."""

    error: Exception | None = None

    def __init__(self, *_args):
        self.bad = {
            "nan": Message({}, {"loss": float("nan"), "case": SECRET}),
            "object": Message({}, {"loss": {SECRET}}),
            "sparse": Message({"values": torch.ones(2).to_sparse()}, {"case": SECRET}),
        }

    def answer(self, verb: str, _message: Message) -> Message:
        if self.error:
            raise self.error
        return self.bad.get(verb, Message({}, {"verb": verb}))

    def history(self):
        return {}


def asked(verb: str, config: dict | None = None) -> FlowerMessage:
    message = FlowerMessage(to_records(Message(), {"verb": verb}), 1, "query.ask")
    config = {"site": "A"} if config is None else config
    return client_app.app(message, Context(1, 1, config, RecordDict(), {"job": "{}"}))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (PermissionError(13, "Permission denied", SECRET), "PermissionError, and this site's own"),
        (RuntimeError(f"no home in {SECRET}"), "RuntimeError, and this site's own log says more"),
        (ConfigError("it is not so", where=SECRET, remedy=f"mend {SECRET}"), "it is not so"),
    ],
    ids=["OSError", "RuntimeError", "ConfigError"],
)
def test_an_error_leaves_without_its_text(monkeypatch, caplog, error, says):
    monkeypatch.setattr(client_app, "SiteService", Service)
    monkeypatch.setattr(Service, "error", error)
    with caplog.at_level(logging.ERROR), pytest.raises(RunError) as raised:
        asked("hello")
    assert str(raised.value).startswith(says)
    assert SECRET not in str(raised.value)
    assert SECRET in caplog.text, "the site's own log says it"


def test_an_answer_that_cannot_be_sent_says_so_without_its_content(monkeypatch):
    monkeypatch.setattr(client_app, "SiteService", Service)
    for verb in ("nan", "object", "sparse"):
        (error,) = from_records(asked(verb).content)[0].facts.values()
        assert error.startswith(f"its answer to {verb} cannot be sent (")
        assert SECRET not in error
    assert from_records(asked("fine").content)[0].facts == {"verb": "fine"}


@pytest.mark.parametrize("action", ["ask", "name"])
def test_a_supernode_without_a_site_is_refused(action):
    message = FlowerMessage(RecordDict(), 1, f"query.{action}")
    with pytest.raises(RunError, match="the SuperNode does not say which site it is"):
        client_app.app(message, Context(1, 1, {}, RecordDict(), {"job": "{}"}))


def test_an_app_without_a_job_is_refused():
    with pytest.raises(RunError, match="the app holds no job"):
        client_app.app(
            FlowerMessage(RecordDict(), 1, "query.ask"),
            Context(1, 1, {"site": "A"}, RecordDict(), {}),
        )


def test_a_node_says_its_name():
    message = FlowerMessage(RecordDict(), 1, "query.name")
    reply = client_app.app(message, Context(1, 1, {"site": "A"}, RecordDict(), {}))
    assert reply.content["about"]["site"] == "A"
