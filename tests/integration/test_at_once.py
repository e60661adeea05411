"""Several runs of a study at a time."""

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest
from tests_tiny import TINY

import toy_task
from autofedavg import Machine, resume, run_study
from autofedavg.core.errors import AutoFedAvgError, ConfigError, RunError
from autofedavg.engines.remote.processes import ProcessGuard
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.studies import parallel, run_process
from autofedavg.studies.observer import Observer
from autofedavg.studies.parallel import _mark_interrupted, _Processes
from autofedavg.studies.study_file import read_study, write_study_json
from autofedavg.tasks import TASKS

ROWS = ("local-only", "fedavg", "n-dirichlet")
SHORT = ["--set", "rounds=2"]
LONG = ["--set", "rounds=500", "--only", "fedavg", "--only", "n-dirichlet"]


@pytest.fixture(scope="module", autouse=True)
def toys(tmp_path_factory):
    """A task without MONAI, which every process would import, for this one and those it starts."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("installed")
        patch.setenv("PYTHONPATH", toy_task.install(home))
        patch.syspath_prepend(home)
        vars(TASKS).pop("_added", None)  # entry points that were looked up before
        yield
    vars(TASKS).pop("_added", None)  # not there if no test of this process asked


def write_study(folder: Path) -> Path:
    """The rows of the tiny study with the toy task."""
    head = toy_task.STUDY.replace('"toys"', '"tiny"').replace("rounds = 1", "rounds = 3")
    path = folder / "tiny.toml"
    path.write_text(head + TINY[TINY.index("[[run]]") :])
    return path


@pytest.fixture
def tiny(tmp_path) -> Path:
    return write_study(tmp_path)


@pytest.fixture(scope="module")
def tiny_trained(toys, tmp_path_factory) -> Path:
    """That study, run one row after another; not to be written into."""
    home = tmp_path_factory.mktemp("trained")
    return run_study(read_study(write_study(home)), home / "runs")


def outcome(folder: Path) -> list:
    """What must not depend on who else runs."""
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    rounds = [{key: line[key] for key in ("t", "alpha", "beta", "loss")} for line in lines]
    return [rounds, (folder / "scores.csv").read_bytes()]


def state(folder: Path) -> str:
    path = folder / "status.json"
    return json.loads(path.read_text())["state"] if path.exists() else ""


def saved(folder: Path) -> int:
    """The last round that is kept by all means."""
    files = (folder / "checkpoints").glob("last-*.json")
    return max((int(path.stem[5:]) for path in files), default=0)


class Told(Observer):
    """Writes down what it is told, one list for all runs."""

    def __init__(self, events=None, run="") -> None:
        self.events, self.run = [] if events is None else events, run

    def beside(self) -> Observer:
        return Told(self.events)

    def found(self, folder) -> None:
        self.events.append(("found", folder.parent.name))

    def started(self, run, seed, index, total, folder) -> None:
        self.run = run.name
        self.events.append(("started", run.name, index, total))

    def round(self, seen) -> None:
        self.events.append(("round", self.run, seen.t, seen.T, seen.sites))

    def finished(self, folder) -> None:
        self.events.append(("finished", self.run))

    def failed(self, folder, error) -> None:
        self.events.append(("failed", self.run))


def test_the_same_results_as_one_after_another(tiny, tiny_trained, tmp_path, monkeypatch) -> None:
    # Weights are in the order of the names, whatever the task's own order is.
    monkeypatch.setattr(toy_task.ToySites, "site_names", lambda _: ["B", "A"])
    told = Told()
    home = run_study(read_study(tiny), tmp_path / "runs", None, told, at_once=2)
    for row in ROWS:
        assert outcome(home / row / "seed-0") == outcome(tiny_trained / row / "seed-0")
    kinds = [event[0] for event in told.events]
    assert told.events[:2] == [("started", "local-only", 1, 3), ("started", "fedavg", 2, 3)]
    assert kinds.index("finished") < kinds.index("started", 2)  # the third waits for a place
    rounds = [event[2:4] for event in told.events if event[:2] == ("round", "fedavg")]
    T = rounds[0][1]
    assert rounds == [(t, T) for t in range(1, T + 1)]
    assert {event[-1] for event in told.events if event[0] == "round"} == {("A", "B")}
    assert sorted(event[1] for event in told.events if event[0] == "finished") == sorted(ROWS)


@pytest.fixture
def processes(monkeypatch) -> list[int]:
    """The processes that are started for runs."""
    started: list[int] = []

    class Guard(ProcessGuard):
        def start(self, *given) -> int:
            started.append(super().start(*given))
            return started[-1]

    monkeypatch.setattr(parallel, "ProcessGuard", Guard)
    return started


def test_a_process_makes_one_run_after_another(tiny, tiny_trained, tmp_path, processes) -> None:
    home = run_study(read_study(tiny), tmp_path / "runs", at_once=2)
    assert len(processes) == 2 < len(ROWS)
    for row in ROWS:
        assert outcome(home / row / "seed-0") == outcome(tiny_trained / row / "seed-0")


def test_a_process_whose_run_failed_makes_no_other(tiny_trained, tmp_path, processes) -> None:
    home = unfinished(tiny_trained, tmp_path, *ROWS)
    for row in ROWS[:2]:
        damage_checkpoint(home / row / "seed-0")
    with pytest.raises(AutoFedAvgError, match="2 of 3 runs failed"):
        resume(home, at_once=2)
    assert len(processes) == 3


def test_a_failure_whose_kind_cannot_be_carried_takes_no_other_run_with_it(tiny, tmp_path) -> None:
    """A missed deadline is an error of the federation, which names a client and a call."""
    name = 'name = "local-only"\n'
    late = "exchange = { deadline = 0.00001, retries = 0 }\n"
    tiny.write_text(tiny.read_text().replace(name, name + late, 1))
    machine = Machine(workers=2, threads=1)
    with pytest.raises(RunError, match="did not answer") as caught:
        run_study(read_study(tiny), tmp_path / "runs", machine, at_once=2)
    assert "its process was killed" not in str(caught.value)
    folders = [tmp_path / "runs" / "tiny" / row / "seed-0" for row in ROWS]
    assert [state(folder) for folder in folders] == ["failed", "finished", "finished"]


def test_a_process_reads_the_data_once(tiny, tmp_path, monkeypatch) -> None:
    home, scratch, made = tmp_path / "runs" / "tiny", tmp_path / "scratch", []
    write_study_json(home, read_study(tiny), Machine().resolved())
    scratch.mkdir()
    for turn, row in enumerate(ROWS, 1):
        what = {"folder": str(home / row / "seed-0"), "machine": asdict(Machine(workers=1))}
        (scratch / f"{turn}.json").write_text(json.dumps(what))
    (scratch / f"{len(ROWS) + 1}.json").write_text("null")
    plain = toy_task.ToySites.problem
    monkeypatch.setattr(
        toy_task.ToySites, "problem", lambda self, *given: made.append(self) or plain(self, *given)
    )
    monkeypatch.setattr(sys, "argv", ["run_process", str(scratch)])
    run_process.main()
    assert [state(home / row / "seed-0") for row in ROWS] == ["finished"] * len(ROWS)
    assert len(made) == 1


def test_a_process_that_could_start_no_workers_any_more_says_so_and_ends(
    tiny, tmp_path, monkeypatch
) -> None:
    """PyTorch's gradients beside a GPU cannot be forked; the next run gets a new process."""
    home, scratch = tmp_path / "runs" / "tiny", tmp_path / "scratch"
    write_study_json(home, read_study(tiny), Machine().resolved())
    scratch.mkdir()
    what = {"folder": str(home / ROWS[0] / "seed-0"), "machine": asdict(Machine(workers=1))}
    (scratch / "1.json").write_text(json.dumps(what))
    monkeypatch.setattr(run_process, "gradients_after_fork", lambda: False)
    monkeypatch.setattr(sys, "argv", ["run_process", str(scratch)])
    run_process.main()
    assert json.loads((scratch / "1.done.json").read_text()) == {"ends": True}
    assert state(home / ROWS[0] / "seed-0") == "finished"


def test_a_process_that_nobody_needs_any_more_ends(tmp_path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-P", "-m", "autofedavg.studies.run_process", str(scratch)]
    process = psutil.Popen(command)
    shutil.rmtree(scratch)
    assert process.wait(60) == 0


def test_a_process_that_dies_between_two_runs_is_replaced(
    tiny, tiny_trained, tmp_path, processes, monkeypatch
) -> None:
    waiting = _Processes._waiting

    def all_killed(self):
        for process in self._idle:
            os.kill(process.number, signal.SIGKILL)
            while self._guard.alive(process.number):
                time.sleep(0.01)
        return waiting(self)

    monkeypatch.setattr(_Processes, "_waiting", all_killed)
    home = run_study(read_study(tiny), tmp_path / "runs", at_once=2)
    assert len(processes) == 3
    assert all(state(home / row / "seed-0") == "finished" for row in ROWS)


def test_what_a_process_printed_in_earlier_runs_explains_no_later_end(
    tiny, tmp_path, processes, monkeypatch
) -> None:
    class Dying(Told):
        def beside(self) -> Observer:
            return Dying(self.events)

        def started(self, run, *args) -> None:
            super().started(run, *args)
            if run.name == ROWS[2]:  # the third run: both processes have had one
                (folder,) = {path.parent for path in scratch.glob("autofedavg-*/*/1.done.json")}
                with (folder / "output.txt").open("a") as output:
                    output.write("Traceback of a destructor\n")

        def round(self, seen) -> None:
            super().round(seen)
            if self.run == ROWS[2]:
                for number in processes:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(number, signal.SIGKILL)

    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    text = tiny.read_text()
    text = text.replace('name = "fedavg"\n', 'name = "fedavg"\nrounds = 2000\n')
    tiny.write_text(text.replace('name = "n-dirichlet"\n', 'name = "n-dirichlet"\nrounds = 2000\n'))
    alone = Machine(workers=1)  # workers would print that their parent has died
    with pytest.raises(RunError, match="2 of 3 runs failed") as caught:
        run_study(read_study(tiny), tmp_path / "runs", alone, Dying(), at_once=2)
    assert "destructor" not in str(caught.value)
    assert str(caught.value).count("its process was killed, perhaps for lack of memory") == 2


def test_processes_that_no_run_waits_for_end(tiny, tmp_path, processes) -> None:
    class Watching(Told):
        def beside(self) -> Observer:
            return Watching(self.events)

        def round(self, seen) -> None:
            super().round(seen)
            own = psutil.Process().children(recursive=True)
            mine.append({child.pid for child in own} & set(processes))

    mine: list[set[int]] = []
    text = tiny.read_text().replace(
        'name = "n-dirichlet"\n', 'name = "n-dirichlet"\nrounds = 300\n'
    )
    tiny.write_text(text)
    run_study(read_study(tiny), tmp_path / "runs", None, Watching(), at_once=2)
    assert len(processes) == 2
    assert len(mine[-1]) <= 1  # the process of the last run, which is by far the longest


@pytest.mark.slow  # damaged folders, below, take the same way in a third of the time
def test_those_that_fail_do_not_stop_the_others(tiny, tmp_path, command) -> None:
    text = tiny.read_text()
    for row in ROWS[1:]:
        name = f'name = "{row}"\n'
        text = text.replace(name, name + "training = { learning_rate = 1e30 }\n", 1)
    tiny.write_text(text)
    ended = command("run", tiny, *SHORT, "--at-once", "2", "--out", tmp_path / "runs")
    assert ended.returncode == 1
    folders = [tmp_path / "runs" / "tiny" / row / "seed-0" for row in ROWS]
    assert [state(folder) for folder in folders] == ["finished", "failed", "failed"]
    told, _, whole = ended.stderr.partition("error: 2 of 3 runs failed:\n")
    places = [f"{folder}: client A, local_train, round 1" for folder in folders[1:]]
    for text, start in ((told, "failed: "), (whole, "")):  # when it happens, and at the end
        lines = [line.partition(", step")[0] for line in text.splitlines()]
        assert sorted(line for line in lines if "client" in line) == [start + p for p in places]
    assert whole.endswith(f"then continue with `autofedavg resume {tmp_path}/runs/tiny`\n")


def unfinished(home: Path, tmp_path: Path, *rows: str) -> Path:
    """A copy of a finished study in which the last round of some runs was not noted as over."""
    copied = shutil.copytree(home, tmp_path / "tiny")
    for row in rows:
        (copied / row / "seed-0" / "status.json").write_text('{"schema": 1, "state": "running"}')
    return copied


def damage_checkpoint(folder: Path) -> None:
    path = folder / "checkpoints" / "last-3.json"
    path.write_text(json.dumps({"sha256": json.loads(path.read_text())["sha256"]}))


def test_damaged_folders_do_not_stop_the_others(tiny_trained, tmp_path, say) -> None:
    home = unfinished(tiny_trained, tmp_path, *ROWS)
    first, second, third = (home / row / "seed-0" for row in ROWS)
    damage_checkpoint(first)
    lines = (second / "rounds.jsonl").read_bytes().split(b"\n")
    (second / "rounds.jsonl").write_bytes(b"\n".join([b"{", *lines[1:]]))
    code, _, err = say("resume", home, "--at-once", "2")
    assert code == 1
    assert "2 of 3 runs failed:" in err
    assert err.endswith(f"then continue with `autofedavg resume {home}`\n")
    assert "checkpoint cannot be resumed from (KeyError: 'network')" in err
    assert str(first) in err
    assert "Traceback" not in err
    assert f"{second / 'rounds.jsonl'}: a line is damaged" in err
    assert state(third) == "finished"


def test_a_failure_that_nobody_foresaw_is_told_whole_and_stops_nobody(
    tiny_trained, tmp_path, say, monkeypatch
) -> None:
    home = unfinished(tiny_trained, tmp_path, *ROWS)
    first, *others = (home / row / "seed-0" for row in ROWS)
    python = tmp_path / "python"  # the second time, after the guard, one that fails
    python.write_text(
        f"""#!/bin/sh
case "$*" in
  *studies.run_process*) mkdir {tmp_path}/met && exec {sys.executable} -c "raise KeyError(1)"
esac
exec {sys.executable} "$@"
"""
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    code, _, err = say("resume", home, "--at-once", "2")
    assert code == 1
    assert f"{first}: its process failed:\nTraceback (most recent call last):" in err
    assert "KeyError: 1" in err
    assert [state(other) for other in others] == ["finished"] * len(others)


def test_the_kind_of_an_error_is_kept(tiny_trained, tmp_path, say) -> None:
    home = unfinished(tiny_trained, tmp_path, "fedavg")
    path = home / "fedavg" / "seed-0" / "environment.json"
    about = json.loads(path.read_text())
    about["data"]["split_sha256"] = "other"
    path.write_text(json.dumps(about))
    code, _, err = say("resume", home, "--at-once", "2")
    assert code == 3
    *_, last = err.splitlines()
    folder = home / "fedavg" / "seed-0"
    assert last.startswith(f"error: {folder}: the splits of the data have changed since")
    assert last.count("fedavg/seed-0") == 1


def test_another_number_of_threads_is_refused_before_anything_runs(tiny_trained, tmp_path) -> None:
    home = unfinished(tiny_trained, tmp_path, "fedavg")
    told = Told()
    with pytest.raises(ConfigError, match="the run started with"):
        resume(home, Machine(threads=7), told, at_once=2)
    assert {event[0] for event in told.events} <= {"found"}


def test_a_run_that_another_process_holds_is_left_alone(tiny_trained, tmp_path) -> None:
    folder = unfinished(tiny_trained, tmp_path, "fedavg") / "fedavg" / "seed-0"
    with RunFolder(folder).lock():
        _mark_interrupted(folder)
        assert state(folder) == "running"
    _mark_interrupted(folder)
    assert state(folder) == "interrupted"
    RunFolder(folder).set_status("failed", "too bad", "RunError")
    _mark_interrupted(folder)
    assert state(folder) == "failed"


def test_ctrl_c_ends_all(tiny, tmp_path, start) -> None:
    out = tmp_path / "runs"
    process = start("run", tiny, *LONG, "--at-once", "2", "--out", out)
    folders = [out / "tiny" / row / "seed-0" for row in ROWS[1:]]
    while min(map(saved, folders)) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) > 2
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "finished rounds are kept" in stderr
    assert [state(f) for f in folders] == ["interrupted"] * 2
    assert not psutil.wait_procs(family, timeout=10)[1]


@pytest.mark.slow
def test_nobody_is_left_when_the_command_is_killed(tiny, tmp_path, start) -> None:
    out = tmp_path / "runs"
    process = start("run", tiny, *LONG, "--at-once", "2", "--out", out)
    while not (out / "tiny" / "fedavg" / "seed-0" / "rounds.jsonl").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    family = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    assert not psutil.wait_procs(family, timeout=15)[1]


def test_finished_runs_are_passed_over(tiny_trained, tmp_path) -> None:
    home = shutil.copytree(tiny_trained, tmp_path / "tiny")
    told = Told()
    resume(home, None, told, at_once=2)
    assert told.events == [("found", row) for row in ROWS]


def test_real_engines_take_one_at_a_time(tiny, tiny_trained, tmp_path) -> None:
    flower = Machine(engine="flower")
    with pytest.raises(ConfigError, match="made one after another"):
        run_study(read_study(tiny), tmp_path, flower, at_once=2)
    assert not list(tmp_path.rglob("study.json"))
    with pytest.raises(ConfigError, match="made one after another"):
        resume(tiny_trained, flower, at_once=2)


def test_a_finished_run_of_a_real_engine_is_no_hindrance(
    tiny_trained, tmp_path, monkeypatch
) -> None:
    started = []
    monkeypatch.setattr(_Processes, "start", lambda _self, run, _observer: started.append(run))
    home = unfinished(tiny_trained, tmp_path, "n-dirichlet")
    for row in ("fedavg", "n-dirichlet"):
        resume(home, at_once=2)
        path = home / row / "seed-0" / "environment.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "engine": "flower"}))
    assert [run.config.name for run in started] == ["n-dirichlet"] * 2
    with pytest.raises(ConfigError, match="made one after another"):
        resume(home, at_once=2)


def test_fewer_than_one_is_refused(tiny, tmp_path, say) -> None:
    code, _, err = say("run", tiny, "--at-once", "0", "--out", tmp_path)
    assert code == 2
    assert "at-once" in err
    with pytest.raises(ConfigError, match="use 1 or more"):
        run_study(read_study(tiny), tmp_path, at_once=0)
