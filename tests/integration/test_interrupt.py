import json
import os
import pty
import select
import signal
import sys
import time
from pathlib import Path

import psutil


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
    assert "interrupted" in stderr
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
