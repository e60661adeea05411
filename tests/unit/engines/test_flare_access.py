"""Access checks of a FLARE site: which senders pass, and what the others hear."""

import logging

import pytest

pytest.importorskip("nvflare", reason="the extra `flare` is not installed")

from nvflare.apis.event_type import EventType
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, MessageType
from nvflare.fuel.f3.message import Message
from nvflare.private.admin_defs import Message as Command
from nvflare.private.defs import SysCommandTopic, TrainingTopic

from autofedavg.engines.flare.access import MOST_LINES, AccessCheck, SiteAccessCheck
from lookalike_cells import AUX, Cell, piece, request

TOPIC = "ours"


@pytest.fixture
def worker():
    cell = Cell("II.job")
    AccessCheck(cell, TOPIC)
    return cell


@pytest.fixture
def main():
    """A site's main process behind a relay."""
    cell = Cell("relay.II")

    class Context:
        def get_engine(self):
            return self

        def get_cell(self):
            return cell

    SiteAccessCheck().handle_event(EventType.SYSTEM_START, Context())
    assert not cell.filters
    SiteAccessCheck().handle_event(EventType.SYSTEM_BOOTSTRAP, Context())
    return cell


@pytest.mark.parametrize("origin", ["I", "I.job", "III.job", "IIb", "serverside", "x.server"])
@pytest.mark.parametrize("channel", [AUX, "_net_manager", "client_command", "server_command"])
def test_nothing_comes_in_from_another_site(origin, channel, worker):
    assert worker.refuses(origin, channel, TOPIC)
    assert worker.refuses(origin, channel, "another")


@pytest.mark.parametrize("origin", ["server", "server.job", "server.other", "II", "II.job.child"])
def test_the_server_and_the_site_itself_come_in(origin, worker):
    assert not worker.refuses(origin, "client_command", "abort")
    assert not worker.refuses(origin, AUX, "another")
    assert worker.refuses(origin, AUX, TOPIC) is (origin != "server.job")


def test_in_flares_own_simulator_the_server_s_job_is_the_server():
    cell = Cell("II.simulate_job")
    AccessCheck(cell, TOPIC)
    assert not cell.refuses("server", AUX, TOPIC)
    assert cell.refuses("I.simulate_job", AUX, TOPIC)


def test_a_main_process_lets_its_children_and_relays_in(main):
    for origin in ("server", "server.job", "relay", "relay.II.job"):
        assert not main.refuses(origin, CellChannel.CLIENT_MAIN, "x")
    for origin in ("relay.I", "relay.I.job", "I", "II"):
        assert main.refuses(origin, CellChannel.CLIENT_MAIN, "x")


def test_who_is_refused_is_told_and_the_site_s_log_says_so_once(worker, caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert worker.refuses_one(request("II.job", "I.job\x1b[2J", AUX, TOPIC))
    assert [record.message for record in caplog.records] == [
        f"refused: I.job\N{REPLACEMENT CHARACTER}[2J asked II.job for {AUX} ours without permission"
    ]
    assert worker.refuses_one(piece("II.job", "I.job", AUX, TOPIC))
    said = f"II.job refuses {AUX} ours to I.job"
    assert worker.sent[-2][2:] == (["7"],)
    assert worker.sent[-1] == ("I.job", said)
    silent = request("II.job", "I.job", AUX, TOPIC)
    silent.set_header(MessageHeaderKey.REPLY_EXPECTED, False)
    assert worker.refuses_one(silent)
    assert len(worker.sent) == 4


def test_a_stranger_cannot_fill_the_log(worker, caplog):
    with caplog.at_level(logging.WARNING):
        for n in range(MOST_LINES + 50):
            assert worker.refuses("I.job", AUX, f"topic-{n}")
    assert len(caplog.records) == MOST_LINES


def test_what_is_for_another_process_and_answers_pass(worker):
    assert not worker.refuses_one(request("II", "I.job", AUX, TOPIC))
    answer = request("II.job", "I.job", AUX, TOPIC)
    answer.set_header(MessageHeaderKey.MSG_TYPE, MessageType.REPLY)
    assert not worker.refuses_one(answer)


def test_a_site_takes_no_shell_command_and_no_role_that_may_do_everything(main):
    (check,) = main.commands

    def said(command: Command) -> str | None:
        refusal = check(Message(payload=command))
        return None if refusal is None else refusal.payload.body

    assert "shell commands: not authorized" in said(Command(SysCommandTopic.SHELL, "cat x"))
    plain = Command(TrainingTopic.DEPLOY, b"")
    assert said(plain) is None
    plain.set_headers({"job_meta": {"submitter_role": "lead"}, "_userRole": "project_admin"})
    assert said(plain) is None
    for headers in (
        {"job_meta": {"submitter_role": "super"}},
        {"_userRole": "super"},
        {"_submitterRole": "super"},
    ):
        command = Command(TrainingTopic.DEPLOY, b"")
        command.set_headers(headers)
        assert "the role super: not authorized" in said(command)
