"""Whole jobs over our ServerApp's transport and ClientApp, without processes."""

import itertools
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="needs autofedavg[flower]")

from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from autofedavg import read_study, run_study
from autofedavg.engines.flower import client_app, transport
from autofedavg.engines.flower.context_state import RECORD
from autofedavg.engines.flower.transport import FlowerTransport
from autofedavg.engines.remote.server import host
from autofedavg.federation.messages import Message
from deployed import assert_same_run, job_of


@pytest.fixture(autouse=True)
def a_task(monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr(transport, "LOOK", 0.01)


class Grid:
    """Nodes that run our ClientApp; `lose` may clear a node's context after a message."""

    def __init__(self, job, lose=lambda verb, site: False):
        self.contexts = {
            number: Context(1, number, {"site": site}, RecordDict(), {"job": job.text()})
            for number, site in enumerate(job.sites, 1)
        }
        self.replies, self.lose, self._ids = {}, lose, itertools.count()

    def get_nodes(self):
        return [
            SimpleNamespace(node_id=number, name=context.node_config["site"])
            for number, context in self.contexts.items()
        ]

    def push_messages(self, messages):
        ids = [f"m{next(self._ids)}" for _ in messages]
        for id, message in zip(ids, messages, strict=True):
            context = self.contexts[message.metadata.dst_node_id]
            self.replies[id] = client_app.app(message, context)
            if self.lose(message.metadata.group_id, context.node_config["site"]):
                context.state.clear()
        return ids

    def pull_messages(self, ids):
        return [self.replies.pop(id) for id in ids]


@pytest.mark.parametrize("loses", [False, True], ids=["kept", "lost"])
def test_a_process_per_message_gives_the_simulators_bits(loses, tiny, tmp_path):
    """Nothing but the context lives from message to message; one that is lost costs no bit."""
    study = read_study(tiny, ["rounds=2"], only=["n-dirichlet"])
    home = run_study(study, tmp_path / "here")
    job = job_of(study, "n-dirichlet")
    verbs, lost = [], set()

    def lose(verb, site):
        verbs.append(verb)
        if not loses or site != "II" or verb not in {"local_train", "share_models"} - lost:
            return False
        lost.add(verb)
        return True

    grid = Grid(job, lose)
    folder = host(job, FlowerTransport(grid), tmp_path / "there")
    assert_same_run(home / "n-dirichlet" / "seed-0", folder)
    assert verbs.count("share_models") == 6 + len(lost)
    assert all(set(context.state) == {RECORD} for context in grid.contexts.values())


def test_what_was_asked_is_remembered_from_message_to_message(tiny, tmp_path):
    study = read_study(tiny, ["rounds=2"], only=["fedavg"])
    job = job_of(study, "fedavg")
    grid = Grid(job)
    host(job, FlowerTransport(grid), tmp_path)
    first = {"t": 1, "T": 2}
    (reply,) = FlowerTransport(grid).ask("local_train", {"I": Message({}, first)}, 60).values()
    assert "comes after the final test of this job" in reply.facts["error"]
    grid.contexts[1].run_config["job"] = job_of(study, "fedavg", seed=1).text()
    (reply,) = FlowerTransport(grid).ask("local_train", {"I": Message({}, first)}, 60).values()
    assert "final test" not in reply.facts["error"], "another job begins with no history"
