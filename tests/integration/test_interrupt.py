import json
import os
import pty
import select
import shlex
import signal
import sys
import time
from pathlib import Path

import psutil

from autofedavg.studies import launch


def rounds_done(folder: Path) -> int:
    path = folder / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def last_saved(folder: Path) -> int:
    # A round's line is written before its checkpoint: only the checkpoint is kept by all means.
    files = (folder / "checkpoints").glob("last-*.json")
    return max((int(path.stem.split("-")[1]) for path in files), default=0)


def test_ctrl_c_keeps_the_checkpoint_and_exits_130(tiny, tmp_path, command, start) -> None:
    folder = tmp_path / "runs" / "tiny" / "fedavg" / "seed-0"
    process = start(
        "run", tiny, "--only", "fedavg", "--set", "rounds=500", "--out", tmp_path / "runs"
    )
    while last_saved(folder) < 2 and process.poll() is None:
        time.sleep(0.01)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f"continue with `autofedavg resume {tmp_path}/runs/tiny`" in stderr
    assert json.loads((folder / "status.json").read_text())["state"] == "interrupted"
    saved = last_saved(folder)
    assert saved >= 2
    psutil.wait_procs(workers, timeout=10)
    assert not any(worker.is_running() for worker in workers)

    # The run can be shortened to what is left of it and finished.
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("rounds = 500", f"rounds = {saved + 1}"))
    assert command("resume", folder).returncode == 0
    assert json.loads((folder / "status.json").read_text())["state"] == "finished"
    assert rounds_done(folder) == saved + 1


def test_workers_end_when_the_command_is_killed(tiny, tmp_path, start) -> None:
    folder = tmp_path / "runs" / "tiny" / "fedavg" / "seed-0"
    process = start(
        "run", tiny, "--only", "fedavg", "--set", "rounds=500", "--workers", "2",
        "--out", tmp_path / "runs",
    )  # fmt: skip
    while rounds_done(folder) < 1 and process.poll() is None:
        time.sleep(0.01)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) == 2
    os.kill(process.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(workers, timeout=15)
    assert not alive


def test_a_closed_terminal_leaves_a_run_that_says_interrupted(tiny, tmp_path) -> None:
    folder = tmp_path / "runs" / "tiny" / "fedavg" / "seed-0"
    given = ["run", tiny, "--only", "fedavg", "--set", "rounds=500", "--workers", "2"]
    process, terminal = pty.fork()
    if process == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
        arguments = [*map(str, given), "--out", str(tmp_path / "runs")]
        os.execv(sys.executable, [sys.executable, "-m", "autofedavg", *arguments])
    try:
        for _ in range(6000):
            if last_saved(folder) >= 2:
                break
            if select.select([terminal], [], [], 0.01)[0]:
                os.read(terminal, 65536)  # a terminal that is full keeps its programs waiting
        workers = psutil.Process(process).children(recursive=True)
        assert len(workers) == 2
        os.close(terminal)
        for _ in range(3000):
            if os.waitpid(process, os.WNOHANG)[0]:
                break
            time.sleep(0.01)
        else:
            raise AssertionError("it goes on without a terminal")
        assert json.loads((folder / "status.json").read_text())["state"] == "interrupted"
        assert not psutil.wait_procs(workers, timeout=15)[1]
    finally:
        if psutil.pid_exists(process):
            os.kill(process, signal.SIGKILL)


def test_nohup_goes_on(tiny, tmp_path, start) -> None:
    folder = tmp_path / "runs" / "tiny" / "fedavg" / "seed-0"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what nohup does; children inherit it
    try:
        process = start("run", tiny, "--only", "fedavg", "--set", "rounds=6", "--out",
                        tmp_path / "runs")  # fmt: skip
    finally:
        signal.signal(signal.SIGHUP, before)
    while rounds_done(folder) < 1 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=60)
    assert process.returncode == 0


def stop(*_: object) -> None:
    raise KeyboardInterrupt


def continuing(err: str) -> list[str]:
    """The arguments of the command that an interrupted one names."""
    return shlex.split(err.split("continue with `autofedavg ")[1].partition("`")[0])


def test_the_command_that_an_interrupted_run_names_continues_it(
    tiny, tmp_path, say, monkeypatch
) -> None:
    out = tmp_path / "my runs"
    with monkeypatch.context() as patched:
        patched.setattr(launch, "_run_all", stop)
        code, _, err = say("run", tiny, "--only", "local-only", "--set", "rounds=1", "--out", out)
        assert (code, continuing(err)) == (130, ["resume", str(out / "tiny")])
        code, _, err = say("resume", out / "tiny", "--workers", "1")
        assert (code, continuing(err)) == (130, ["resume", str(out / "tiny")])
    assert say(*continuing(err))[0] == 0
    assert (out / "tiny" / "local-only" / "seed-0" / "scores.csv").is_file()


def test_a_run_that_is_stopped_before_it_begins_has_nothing_to_resume(
    tiny, tmp_path, say, monkeypatch
) -> None:
    monkeypatch.setattr(launch, "write_study_json", stop)
    code, _, err = say("run", tiny, "--out", tmp_path / "runs")
    assert code == 130
    assert "interrupted: no run was started; the same command starts them" in err
    assert "resume" not in err


def test_only_the_verb_says_what_an_interrupted_command_keeps(tiny_home, say, monkeypatch) -> None:
    monkeypatch.setattr("autofedavg.report.collection.read_results", stop)
    code, _, err = say("report", tiny_home, "--out", "run")
    assert (code, err.strip()) == (130, "interrupted")
