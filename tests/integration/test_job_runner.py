"""Rows as jobs on an engine of this machine: supervision, resumption, reports to the caller.

The engine here is a fake in this process, which can be made to give a job up.
"""

import contextlib
import sys
from pathlib import Path

import pytest

from autofedavg import Machine, read_study, resume, run_study
from autofedavg import engines as rooms
from autofedavg.core.errors import AutoFedAvgError, ConfigError, RunError
from autofedavg.core.registry import Registry
from autofedavg.core.seeds import Seeds
from autofedavg.engines.remote.server import host
from autofedavg.experiment.folder import Ledger, read_json
from autofedavg.federation.messages import NoReply
from autofedavg.studies.machine import clients
from autofedavg.studies.observer import Observer
from deployed import InProcessTransport, assert_same_run
from toy import TRAINING, toy_problem

BOTH = {"flare": "FakeEngine", "flower": "Other"}


class GivenUp(BaseException):
    """The engine ends the job's server process: nothing is written any more."""


class FakeEngine:
    """A loopback engine without processes; `trouble(number of the job)` spoils answers."""

    opened: list["FakeEngine"]
    trouble = None  # set by every test

    def __init__(self, sites, site_files, runs: Path, scratch: Path) -> None:
        assert scratch.is_dir()
        self.sites, self.files, self.runs, self.scratch = sites, site_files, runs, scratch
        self.jobs = 0
        self.open = True
        type(self).opened.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.open = False

    def run(self, job, tick) -> None:
        self.jobs += 1
        transport = InProcessTransport(job, self.files, spoil=self.trouble(self.jobs))
        transport.name, transport.waiting = "flare", getattr(self, "waiting", set)
        with contextlib.suppress(AutoFedAvgError, GivenUp):
            host(job, transport, self.runs)
        tick()


@pytest.fixture(autouse=True)
def engine(monkeypatch):
    FakeEngine.opened = []
    monkeypatch.setattr(FakeEngine, "trouble", staticmethod(lambda _number: unspoilt))
    names = {
        "simulator": "autofedavg.engines.simulator.simulator:Simulator",
        "flare": f"{__name__}:FakeEngine",
    }
    monkeypatch.setattr("autofedavg.studies.launch.ENGINES", Registry("engine", names))
    assert __name__ in sys.modules  # the registry imports this engine by its name
    return FakeEngine


def unspoilt(verb, site, answer):
    return answer


def gives_up_in(*jobs: int):
    """The server process ends in the second round of these jobs."""

    def trouble(number):
        seen = []

        def spoil(verb, site, answer):
            seen.append(verb)
            if number in jobs and seen.count("local_train") > 4:
                raise GivenUp
            return answer

        return spoil

    return staticmethod(trouble)


def test_all_rows_run_on_one_federation_and_give_the_simulators_bits(tiny, tiny_trained, tmp_path):
    rounds = []

    class Telling(Observer):
        def round(self, seen):
            rounds.append((seen.t, seen.T))

    home = run_study(read_study(tiny), tmp_path, Machine("flare"), Telling())
    for row in ("local-only", "fedavg", "n-dirichlet"):
        assert_same_run(tiny_trained / row / "seed-0", home / row / "seed-0")
    assert rounds == [(t, 3) for _ in range(3) for t in (1, 2, 3)]
    (engine,) = FakeEngine.opened
    assert engine.jobs == 3
    assert not engine.open
    assert not engine.scratch.exists()


def test_a_job_given_up_is_an_error_that_says_how_to_go_on(engine, tiny, tiny_trained, tmp_path):
    engine.trouble = gives_up_in(1)
    plan = read_study(tiny, only=["n-dirichlet"])
    with pytest.raises(RunError, match=r"gave the job up.*autofedavg resume"):
        run_study(plan, tmp_path, Machine("flare"))
    assert not FakeEngine.opened[0].open
    engine.trouble = gives_up_in()
    resume(tmp_path / "tiny")
    assert len(FakeEngine.opened) == 2  # on the engine it was begun on
    assert_same_run(tiny_trained / "n-dirichlet/seed-0", tmp_path / "tiny/n-dirichlet/seed-0")


def test_a_supervised_job_is_started_anew_by_itself(engine, tiny, tiny_trained, tmp_path):
    engine.trouble = gives_up_in(1, 2)
    plan = read_study(tiny, only=["n-dirichlet"])
    run_study(plan, tmp_path, Machine("flare", supervise=True))
    assert FakeEngine.opened[0].jobs == 3
    assert_same_run(tiny_trained / "n-dirichlet/seed-0", tmp_path / "tiny/n-dirichlet/seed-0")


def test_supervision_ends_where_nothing_moves(engine, tiny, tmp_path):
    def lost(number):
        return lambda verb, site, answer: NoReply("gone") if site == "II" else answer

    engine.trouble = staticmethod(lost)
    plan = read_study(tiny, only=["fedavg"])
    with pytest.raises(RunError, match="client II, hello: did not join within 1 s"):
        run_study(plan, tmp_path, Machine("flare", supervise=True, wait=1.0))
    assert FakeEngine.opened[0].jobs == 3


def test_a_site_that_comes_back_is_taken_in_by_a_new_job(engine, monkeypatch, tiny, tmp_path):
    waiting = [set(), {"II"}, set(), set(), set()]
    monkeypatch.setattr(engine, "waiting", lambda self: waiting.pop(0), raising=False)
    plan = read_study(tiny, only=["fedavg"])
    home = run_study(plan, tmp_path, Machine("flare", supervise=True))
    assert FakeEngine.opened[0].jobs == 2
    assert Ledger(home / "fedavg" / "seed-0").status() == "finished"
    about = read_json(home / "fedavg" / "seed-0" / "environment.json")
    assert [entry["after_round"] for entry in about["resumed"]] == [1]


def test_a_site_that_never_joins_does_not_stop_the_run_again_and_again(
    engine, monkeypatch, tiny, tmp_path
):
    monkeypatch.setattr(engine, "waiting", lambda self: {"II"}, raising=False)
    run_study(read_study(tiny, only=["fedavg"]), tmp_path, Machine("flare", supervise=True))
    assert FakeEngine.opened[0].jobs == 1


def test_workers_and_supervision_are_asked_where_they_exist(tiny, tmp_path):
    plan = read_study(tiny, only=["fedavg"])
    with pytest.raises(
        ConfigError, match="no effect with flare: every site runs in its own process"
    ):
        run_study(plan, tmp_path, Machine("flare", workers=2))
    with pytest.raises(ConfigError, match="the simulator has no job to supervise"):
        run_study(plan, tmp_path, Machine(supervise=True))


def test_resume_refuses_workers_and_supervision_where_they_have_no_effect(engine, tiny, tmp_path):
    engine.trouble = gives_up_in(1)
    with pytest.raises(RunError, match="gave the job up"):
        run_study(read_study(tiny, only=["fedavg"]), tmp_path, Machine("flare"))
    with pytest.raises(ConfigError, match="--workers has no effect with flare"):
        resume(tmp_path / "tiny", Machine(workers=2))
    with pytest.raises(ConfigError, match="the simulator has no job to supervise"):
        resume(tmp_path / "tiny/fedavg/seed-0", Machine("simulator", supervise=True))


def test_runs_that_began_on_two_engines_are_resumed_on_both(engine, monkeypatch, tiny, tmp_path):
    class Other(FakeEngine):
        pass

    monkeypatch.setattr(sys.modules[__name__], "Other", Other, raising=False)
    names = {name: f"{__name__}:{kind}" for name, kind in BOTH.items()}
    monkeypatch.setattr("autofedavg.studies.launch.ENGINES", Registry("engine", names))
    for row, name in (("fedavg", "flare"), ("n-dirichlet", "flower")):
        engine.trouble = gives_up_in(1)
        with pytest.raises(RunError, match="gave the job up"):
            run_study(read_study(tiny, only=[row]), tmp_path, Machine(name))
        about = tmp_path / "tiny" / row / "seed-0" / "environment.json"
        about.write_text(about.read_text().replace('"flare"', f'"{name}"'))
    FakeEngine.opened.clear()
    engine.trouble = gives_up_in()
    resume(tmp_path / "tiny")
    assert [(type(each).__name__, each.jobs) for each in FakeEngine.opened] == [
        ("FakeEngine", 1),
        ("Other", 1),
    ]


def test_a_run_of_a_deployment_is_not_gone_on_with_here(tiny, tmp_path):
    home = run_study(read_study(tiny, only=["fedavg"]), tmp_path, Machine("flare"))
    run = home / "fedavg" / "seed-0"
    (run / "loopback.json").unlink()
    (run / "status.json").write_text('{"schema": 1, "state": "running"}')
    with pytest.raises(RunError, match="started by a deployed server; submit its job again"):
        resume(run)


def test_the_kind_of_failure_is_the_servers(engine, tiny, tmp_path):
    def other(number):
        def spoil(verb, site, answer):
            return type(answer)({}, {**answer.facts, "version": "0.0.1"})

        return spoil

    engine.trouble = staticmethod(other)
    with pytest.raises(ConfigError, match=r"0\.0\.1"):
        run_study(read_study(tiny, only=["fedavg"]), tmp_path, Machine("flare"))


def test_an_interrupted_run_says_so(engine, monkeypatch, tiny, tmp_path):
    def interrupted(self, job, tick):
        host(job, InProcessTransport(job, self.files, spoil=gives_up_in(1)(1)), self.runs)

    def stop(self, job, tick):
        try:
            interrupted(self, job, tick)
        except GivenUp:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(engine, "run", stop)
    with pytest.raises(KeyboardInterrupt):
        run_study(read_study(tiny, only=["fedavg"]), tmp_path, Machine("flare"))
    assert Ledger(tmp_path / "tiny/fedavg/seed-0").status() == "interrupted"
    assert not FakeEngine.opened[0].open


def test_a_renamed_run_folder_is_not_gone_on_with_elsewhere(engine, tiny, tmp_path):
    engine.trouble = gives_up_in(1)
    with pytest.raises(RunError):
        run_study(read_study(tiny, only=["fedavg"]), tmp_path, Machine("flare"))
    moved = (tmp_path / "tiny/fedavg/seed-0").rename(tmp_path / "tiny/fedavg/mine")
    with pytest.raises(RunError, match="was renamed"):
        resume(moved)


def test_every_engine_has_an_export():
    assert set(rooms.REMOTE) == set(rooms.EXPORTS) == set(rooms.ENGINES) - {"simulator"}


def test_loaders_of_this_process_are_not_sent_to_sites():
    problem = toy_problem(3)
    with (
        pytest.raises(ConfigError, match="cannot be sent to sites on flare"),
        clients(problem, TRAINING, Seeds(0), Machine("flare")),
    ):
        pass
