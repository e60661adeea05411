"""The Flower transport over a grid of made-up nodes: names, silence, invalid replies."""

import itertools
import threading
import time
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("flwr", reason="needs autofedavg[flower]")

from flwr.app import ConfigRecord, Error, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.supercore.task_identity import TaskIdentity

from autofedavg.engines.flower import roster as rosters
from autofedavg.engines.flower import transport as transports
from autofedavg.engines.flower.codec import from_records, to_records
from autofedavg.engines.flower.transport import FlowerTransport
from autofedavg.federation import waiting as patience
from autofedavg.federation.messages import Message, NoReply


@pytest.fixture(autouse=True)
def a_task(monkeypatch):
    """Flower stamps messages with the task that sends them."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr(transports, "LOOK", 0.02)


class Node:
    """A made-up SuperNode: its registered name, what it calls itself, how it answers."""

    def __init__(self, says: str = "", registered: str = "", answer=None):
        self.says, self.registered = says, registered
        self.answer = answer or (lambda message: message)
        self.asked: list[str] = []

    def reply(self, message: FlowerMessage):
        action = message.metadata.message_type.partition(".")[2]
        self.asked.append(action)
        about = {"site": self.says}
        if action != "ask":
            return to_records(Message(), about)
        given = self.answer(from_records(message.content)[0])
        return to_records(given, about) if isinstance(given, Message) else given


class Grid:
    """Delivers at once; a node whose answer is None stays silent."""

    def __init__(self, **nodes: Node):
        self.nodes = {int(name[1:]): node for name, node in nodes.items()}
        self._ids = itertools.count()
        self._replies: dict[str, FlowerMessage | None] = {}
        self.looks = 0

    def get_nodes(self):
        return [
            SimpleNamespace(node_id=id, name=node.registered) for id, node in self.nodes.items()
        ]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            node = self.nodes.get(message.metadata.dst_node_id)
            if node is None:
                ids.append(None)
                continue
            ids.append(f"m{next(self._ids)}")
            content = node.reply(message)
            self._replies[ids[-1]] = (
                content
                if content is None or isinstance(content, Exception | threading.Event)
                else FlowerMessage(content, reply_to=message)
            )
        return ids

    def pull_messages(self, ids):
        self.looks += 1
        (id,) = ids
        found = self._replies[id]
        if isinstance(found, Exception):
            raise found
        if isinstance(found, threading.Event):
            found.wait(30)
            return []
        return [] if found is None else [found]


def ask(transport: FlowerTransport, *sites: str, within: float | None = 5.0):
    message = Message({"beta": torch.ones(2, dtype=torch.float64)}, {"t": 1})
    return transport.ask("update_beta", dict.fromkeys(sites, message), within)


def test_registered_names_are_taken_and_nobody_is_asked():
    grid = Grid(n1=Node("A", "A"), n2=Node("B", "B"))
    answers = ask(FlowerTransport(grid), "A", "B")
    assert torch.equal(answers["A"].arrays["beta"], torch.ones(2, dtype=torch.float64))
    assert answers["B"].facts == {"t": 1}
    assert grid.nodes[1].asked == grid.nodes[2].asked == ["ask"]


def test_nodes_without_a_registered_name_are_asked_once():
    grid = Grid(n1=Node("A"), n2=Node("B"), n3=Node(""))
    transport = FlowerTransport(grid, nameless=True)
    for _ in range(2):
        answers = ask(transport, "A", "B", "C")
        assert isinstance(answers["A"], Message)
        assert isinstance(answers["B"], Message)
        assert answers["C"] == NoReply("is not connected")
    assert grid.nodes[1].asked == ["name", "ask", "ask"]


def test_a_key_without_a_name_claims_none():
    """Whose registered node has not connected yet: nobody is taken for it."""
    grid = Grid(n1=Node("A"), n2=Node("B", "B"))
    transport = FlowerTransport(grid)
    answers = ask(transport, "A", "B")
    assert isinstance(answers["B"], Message)
    assert "not connected under a registered name" in answers["A"].reason
    assert "connected nodes without one: 1" in answers["A"].reason
    assert "flwr supernode register --name SITE" in answers["A"].reason
    assert grid.nodes[1].asked == []
    del grid.nodes[1]
    assert ask(transport, "A") == {"A": NoReply("is not connected")}
    grid.nodes[3] = Node("A", "A")
    assert isinstance(ask(transport, "A")["A"], Message)


@pytest.mark.parametrize(("told", "allowed"), [("yes", True), ("", False), ("no", False)])
def test_nameless_nodes_are_let_in_by_the_server_s_administrator_alone(told, allowed, monkeypatch):
    monkeypatch.setenv("AUTOFEDAVG_NAMELESS", told)
    assert rosters.nameless_allowed() is allowed


def test_a_node_under_another_name_than_its_own_is_refused():
    answers = ask(FlowerTransport(Grid(n1=Node("B", registered="A"))), "A")
    assert answers["A"] == NoReply("its node 1 is registered as A and calls itself 'B'")


@pytest.mark.parametrize("registered", [True, False])
def test_two_nodes_under_one_name_are_refused_naming_both(registered):
    name = "A" if registered else ""
    grid = Grid(n11=Node("A", name), n22=Node("A", name), n3=Node("B", "B"))
    transport = FlowerTransport(grid, nameless=True)
    for _ in range(2):
        answers = ask(transport, "A", "B")
        assert isinstance(answers["B"], Message)
        assert "two nodes go by this name, 11 and 22" in answers["A"].reason
    del grid.nodes[11]
    assert isinstance(ask(transport, "A")["A"], Message)


@pytest.mark.parametrize("first", [1, 3])
def test_a_claim_to_a_registered_name_does_not_knock_its_node_out(first):
    grid = Grid(n2=Node("A", "A"), n4=Node("B"))
    grid.nodes[first] = Node("A", answer=lambda _message: Message({}, {"from": "an impostor"}))
    transport = FlowerTransport(grid, nameless=True)
    for _ in range(2):
        answers = ask(transport, "A", "B")
        assert answers["A"].facts == answers["B"].facts == {"t": 1}
    assert grid.nodes[first].asked == ["name"]
    del grid.nodes[2]
    assert ask(transport, "A") == {"A": NoReply("is not connected")}, "the name stays its own"
    assert "ask" not in grid.nodes[first].asked
    grid.nodes[9] = Node("A", "A")
    assert isinstance(ask(transport, "A")["A"], Message)


def test_a_node_that_is_gone_and_came_back_under_a_new_id_is_not_two(monkeypatch):
    monkeypatch.setattr(rosters, "NAMING", 0.5)
    grid = Grid(n1=Node("A"))
    transport = FlowerTransport(grid, nameless=True)
    assert isinstance(ask(transport, "A")["A"], Message)
    grid.nodes[1].reply = lambda _message: None  # dead, but not yet missed by the SuperLink
    grid.nodes[2] = Node("A")
    assert isinstance(ask(transport, "A")["A"], Message)
    del grid.nodes[1]
    assert isinstance(ask(transport, "A")["A"], Message)


def test_the_silent_the_failing_and_the_garbled_are_lost_and_hold_nobody_up():
    grid = Grid(
        n1=Node("A", "A", answer=lambda _message: None),
        n2=Node("B", "B", answer=lambda _message: Error(8, "ClientApp \x1b[2J crashed")),
        n3=Node("C", "C", answer=lambda _message: RecordDict({"else": ConfigRecord({})})),
        n4=Node("D", "D", answer=lambda _message: KeyError("a reply that cannot be inflated")),
        n5=Node("E", "E"),
    )
    started = time.monotonic()
    answers = ask(FlowerTransport(grid), "A", "B", "C", "D", "E", within=6.0)
    assert 5.9 < time.monotonic() - started < 9
    assert answers["A"] == NoReply("no answer within 6 s")
    assert answers["B"].reason == "ClientApp �[2J crashed (Flower's error 8)"
    assert answers["C"].reason.startswith("its answer cannot be used: Not a valid message")
    assert answers["D"].reason == "its answer cannot be used: KeyError in reading it"
    assert isinstance(answers["E"], Message)


def test_one_that_is_stuck_half_way_through_its_answer_holds_nobody_up():
    stuck = threading.Event()
    grid = Grid(n1=Node("A", "A", answer=lambda _message: stuck), n2=Node("B", "B"))
    try:
        answers = ask(FlowerTransport(grid), "A", "B", within=3.0)
    finally:
        stuck.set()
    assert answers["A"] == NoReply("no answer within 3 s")
    assert isinstance(answers["B"], Message)


def test_the_log_says_who_is_waited_for(monkeypatch, caplog):
    monkeypatch.setattr(patience, "MINUTE", 0.3)
    caplog.set_level("INFO", logger="autofedavg")
    grid = Grid(n1=Node("A", "A"), n2=Node("B", "B", answer=lambda _message: None))
    answers = ask(FlowerTransport(grid), "A", "B", within=1.5)
    assert isinstance(answers["B"], NoReply)
    said = [r.getMessage() for r in caplog.records if "waiting for" in r.getMessage()]
    assert said
    assert all(": waiting for B, " in line for line in said)


def test_no_limit_is_waited_for_ever():
    late = Node("A", "A", answer=lambda _message: None)
    grid = Grid(n1=late)
    done = []
    asking = threading.Thread(
        target=lambda: done.append(ask(FlowerTransport(grid), "A", within=None)), daemon=True
    )
    asking.start()
    asking.join(1.5)
    assert asking.is_alive()
    assert not done
    answer = to_records(Message({}, {"ok": 1}), {"site": "A"})
    grid.pull_messages = lambda _ids: [FlowerMessage(answer, 1, "query")]
    asking.join(5)
    assert done[0]["A"].facts == {"ok": 1}


def test_a_site_that_prepares_its_data_is_asked_to_join_once():
    """Every message starts a process at the site."""
    grid = Grid(n1=Node("A", "A", answer=lambda _message: None), n2=Node("B", "B"))
    transport = FlowerTransport(grid)
    hello = Message({}, {"version": "1"})
    for _ in range(3):
        answers = transport.ask("hello", {"A": hello, "B": hello}, 0.2)
        assert answers["A"] == NoReply("no answer within 0.2 s")
        assert isinstance(answers["B"], Message)
    assert grid.nodes[1].asked == ["ask"]
    assert grid.nodes[2].asked == ["ask"] * 3
    (waited,) = [id for id, found in grid._replies.items() if found is None]
    asked = FlowerMessage(RecordDict(), 1, "query.ask")
    grid._replies[waited] = FlowerMessage(Error(5, "Node Unavailable"), reply_to=asked)
    answers = transport.ask("hello", {"A": hello}, 2.0)
    assert "Node Unavailable" in answers["A"].reason
    grid.nodes[1].answer = lambda message: message
    assert isinstance(transport.ask("hello", {"A": hello}, 2.0)["A"], Message)
