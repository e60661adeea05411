"""A FLARE site's executor over a fake service."""

import pytest

pytest.importorskip("nvflare", reason="the extra `flare` is not installed")

import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal

from autofedavg.engines.flare import executor as executors
from autofedavg.engines.flare.codec import decode_bytes, decode_dxo, encode_bytes, encode_dxo
from autofedavg.engines.flare.transport import TOPIC, VERB
from autofedavg.federation.messages import WITH_MODELS, Message
from lookalike_cells import AUX, Cell

SECRET = "case 0815"


class FakeService:
    """Replies with three messages that cannot be sent, then with one that can."""

    def __init__(self, *_args):
        self.bad = [
            Message({}, {"loss": float("nan"), "case": SECRET}),
            Message({}, {"loss": {SECRET}}),
            Message({"values": torch.ones(2).to_sparse()}, {"case": SECRET}),
        ]

    def answer(self, verb: str, _message: Message) -> Message:
        return self.bad.pop() if self.bad else Message({}, {"verb": verb})


class Site(FLContext):
    """Context, engine and workspace of a site."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.handlers, self.cell = folder, {}, Cell("A.job")

    def get_engine(self, *_args, **_more):
        return self

    def get_workspace(self):
        return self

    def get_identity_name(self, *_args, **_more):
        return "A"

    def get_job_id(self, *_args, **_more):
        return "job"

    def get_app_config_dir(self, _job):
        return str(self.folder)

    def get_site_config_dir(self):
        return str(self.folder)

    def get_run_abort_signal(self):
        return Signal()

    def get_cell(self):
        return self.cell

    def fire_event(self, *_args):
        """Nobody listens."""

    def register_aux_message_handler(self, topic, handler):
        self.handlers[topic] = handler


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr(executors, "SiteService", FakeService)
    monkeypatch.setattr(executors, "read_job_text", lambda _folder: "{}")
    return Site(tmp_path)


@pytest.mark.parametrize("small", [True, False])
def test_an_answer_that_cannot_be_sent_is_an_error_naming_the_verb(site, small):
    executor = executors.AutoFedAvgExecutor()
    executor.handle_event(EventType.START_RUN, site)
    verb = "update_beta" if small else min(WITH_MODELS)

    def ask() -> dict:
        if not small:
            asked = encode_dxo(Message({}, {"t": 1}))
            return decode_dxo(executor.execute(verb, asked, site, Signal())).facts
        asked = encode_bytes(Message({}, {"t": 1}))
        asked.set_header(VERB, verb)
        return decode_bytes(site.handlers[TOPIC](TOPIC, asked, site)).facts

    for _ in range(3):
        (error,) = ask().values()
        assert error.startswith(f"its answer to {verb} cannot be sent (")
        assert SECRET not in error
    assert ask() == {"verb": verb}


@pytest.mark.parametrize(
    ("verb", "arrays"),
    [
        *((verb, {}) for verb in sorted(WITH_MODELS)),
        ("anything", {}),
        ("hello", {"values": torch.zeros(3)}),
        ("update_beta", {"beta": torch.zeros(3), "values": torch.zeros(3)}),
    ],
)
def test_a_message_asks_for_small_things_and_holds_no_model(verb, arrays, site):
    executors.AutoFedAvgExecutor().handle_event(EventType.START_RUN, site)
    asked = encode_bytes(Message(arrays, {"t": 1}))
    asked.set_header(VERB, verb)
    reply = site.handlers[TOPIC](TOPIC, asked, site)
    assert reply.get_return_code() == ReturnCode.BAD_REQUEST_DATA


def test_only_the_servers_job_reaches_the_service(site):
    executors.AutoFedAvgExecutor().handle_event(EventType.START_RUN, site)
    assert not site.cell.refuses("server.job", AUX, TOPIC)
    for origin in ("server", "server.other", "A", "B.job"):
        assert site.cell.refuses(origin, AUX, TOPIC)
