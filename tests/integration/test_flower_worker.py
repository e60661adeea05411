"""The resident worker of a site: one process, found, started, replaced and ended."""

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from autofedavg import read_study
from autofedavg.core.errors import RunError
from autofedavg.engines.flower import resident
from autofedavg.engines.flower.codec import pack, unpack
from autofedavg.engines.flower.parcel import Parcel
from autofedavg.federation.messages import Message
from deployed import job_of


@pytest.fixture
def work(tmp_path, monkeypatch, tiny):
    """(asks the worker, its folder, the process it is bound to)."""
    folder = tmp_path / "w"
    monkeypatch.setenv(resident.FOLDER, str(folder))
    job = job_of(read_study(tiny), "fedavg").text()
    host = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    def ask(verb: str, job: str = job, **facts) -> Message:
        about = {"verb": verb, "site": "I", "job": job}
        return unpack(resident.exchange("I", job, pack(Message({}, facts), about), host.pid))

    yield ask, resident.place("I", job), host
    host.kill()
    host.wait()
    until = time.monotonic() + 10
    while workers(folder):
        assert time.monotonic() < until, "a worker outlived its host"
        time.sleep(0.1)


def workers(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        alive = "autofedavg.engines.flower.worker" in words and str(folder) in " ".join(words)
        if alive and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def test_a_worker_answers_stays_is_replaced_and_ends(work):
    ask, folder, _ = work
    assert ask("hello").facts["cases"]["train"] > 0
    (first,) = workers(folder)
    assert ask("hello").facts == ask("hello").facts
    assert [p.pid for p in workers(folder)] == [first.pid]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "socket").stat().st_mode) == 0o600
    first.kill()
    assert ask("hello").facts["version"]
    (second,) = workers(folder)
    assert second.pid != first.pid
    assert "error" in ask("no such verb").facts
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(str(folder / "socket"))
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert ask("hello").facts["version"]
    assert [p.pid for p in workers(folder)] == [second.pid]


def test_a_worker_that_is_killed_over_a_request_is_asked_again(work):
    ask, folder, _ = work
    ask("hello")
    (first,) = workers(folder)
    first.suspend()
    answers = []
    asking = threading.Thread(target=lambda: answers.append(ask("hello")))
    asking.start()
    time.sleep(0.5)
    first.kill()
    asking.join(60)
    assert answers[0].facts["version"]
    assert [p.pid for p in workers(folder)] != [first.pid]


def test_never_two_and_gone_when_told(work):
    ask, folder, host = work
    rivals = [resident.start_worker(folder, host.pid) for _ in range(4)]
    assert ask("hello").facts["version"]
    until = time.monotonic() + 40
    while len(workers(folder)) != 1:
        assert time.monotonic() < until
        time.sleep(0.1)
    assert sorted(rival.poll() is None for rival in rivals) == [False, False, False, True]
    assert resident.dismiss("I", job_text(folder, ask))
    for rival in rivals:
        rival.wait(10)
    assert not (folder / "socket").exists()
    assert not workers(folder)


def job_text(folder: Path, ask) -> str:
    return ask.__defaults__[0]


def test_a_worker_ends_with_its_host_and_when_idle(work, monkeypatch):
    ask, folder, host = work
    ask("hello")
    host.send_signal(signal.SIGKILL)
    until = time.monotonic() + 5
    while workers(folder):
        assert time.monotonic() < until
        time.sleep(0.1)
    monkeypatch.setenv(resident.IDLE, "0.5")
    lazy = resident.start_worker(folder, os.getpid())
    assert lazy.wait(20) == 0
    assert "nothing was asked" in (folder / "worker.log").read_text()


def test_somebody_elses_folder_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o755)
    monkeypatch.setenv(resident.FOLDER, str(folder))
    with pytest.raises(RunError, match="not this user's alone"):
        resident.exchange("I", "job", Parcel(), os.getpid())


def test_what_the_shim_needs_is_light():
    """Flower starts a process for every message: PyTorch must not be among its imports."""
    pytest.importorskip("flwr", reason="needs autofedavg[flower]")
    code = "import sys, autofedavg.engines.flower.client_app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
