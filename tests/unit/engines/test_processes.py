"""The guard of a family of processes."""

import json
import signal
import subprocess
import sys
import time

import psutil
import pytest

from autofedavg.core.errors import RunError
from autofedavg.engines.remote.processes import ProcessGuard

# A child that leaves its session and whose own child outlives it: the worst to catch.
ESCAPES = """
import os, subprocess, sys, time
if os.fork() == 0:
    os.setsid()
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    os._exit(0)
time.sleep(300)
"""
PARENT = """
import sys, time
from pathlib import Path
from autofedavg.engines.remote.processes import ProcessGuard
guard = ProcessGuard()
guard.start([sys.executable, "-c", {code!r}], {{"MARK": sys.argv[1]}}, Path(sys.argv[2]))
print("up", flush=True)
time.sleep(300)
"""


def marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MARK") == mark and process.status() != "zombie":
                found.append(process)
        except psutil.Error:
            continue
    return found


def until(condition, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_all_are_gone_when_it_is_closed(tmp_path):
    mark, guard = str(tmp_path), ProcessGuard()
    child = guard.start([sys.executable, "-c", ESCAPES], {"MARK": mark}, tmp_path / "log")
    until(lambda: len(marked(mark)) == 2)
    assert guard.alive(child)
    psutil.Process(child).kill()
    until(lambda: not guard.alive(child))
    assert len(marked(mark)) == 1
    guard.close()
    assert not marked(mark)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_all_are_gone_when_the_caller_is_killed(number, tmp_path):
    mark = str(tmp_path)
    code = PARENT.format(code=ESCAPES)
    with subprocess.Popen(
        [sys.executable, "-c", code, mark, str(tmp_path / "log")], stdout=subprocess.PIPE
    ) as caller:
        assert caller.stdout.readline() == b"up\n"
        until(lambda: len(marked(mark)) == 2)
        caller.send_signal(number)
        caller.wait()
        until(lambda: not marked(mark), 5)


def test_what_cannot_be_started_is_seen_and_said(tmp_path):
    guard = ProcessGuard()
    child = guard.start(["/no/such/command"], {}, tmp_path / "log")
    until(lambda: not guard.alive(child))
    psutil.Process(guard._process.pid).kill()
    guard._process.wait()
    with pytest.raises(RunError, match="killed from outside"):
        guard.alive(child)
    guard.close()


REUSED = """
import json, os, signal, sys, threading
from autofedavg.engines.remote import processes as guard

guard._start = lambda request: 4242  # the system gives the same number again
guard._reaped = lambda: [4242]
asked, request = os.pipe()
answered, answer = os.pipe()
os.dup2(asked, 0)
told = os.dup(1)
os.dup2(answer, 1)
found = []

def ask(what):
    os.write(request, json.dumps(what).encode() + b"\\n")
    return json.loads(os.read(answered, 100))

def play():
    found.append(ask({"start": []}))
    found.append(ask({"alive": 4242}))
    os.kill(os.getpid(), signal.SIGCHLD)
    found.append(ask({"alive": 4242}))
    found.append(ask({"start": []}))
    found.append(ask({"alive": 4242}))
    os.close(request)

threading.Thread(target=play).start()
guard._serve(os.getppid())
os.write(told, json.dumps(found).encode())
"""


def test_a_number_that_comes_again_is_another_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", REUSED], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [4242, True, False, 4242, True]
