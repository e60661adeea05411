import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests_tiny import TINY, committed_tiny, run_tiny

from autofedavg import cli
from trained_models import train_pictures, train_scans


@pytest.fixture
def say(capsys):
    """Runs a verb in this process: (exit code, stdout, stderr)."""

    def call(*arguments: object) -> tuple[int, str, str]:
        code = cli._main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A study of three rows that runs in seconds."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="session")
def tiny_home(tmp_path_factory) -> Path:
    """The finished study folder of the tiny study, as committed; not to be written into."""
    return committed_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def once(tmp_path_factory, worker_id) -> Callable[[str, Callable[[Path], Path]], Path]:
    """Calls a function with a folder once for all workers; what it returned lies in there."""

    def called(name: str, make: Callable[[Path], Path]) -> Path:
        base = tmp_path_factory.getbasetemp()  # of this worker, below the one of all
        shared = (base if worker_id == "master" else base.parent) / name
        shared.mkdir(exist_ok=True)
        with (shared / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            place = shared / "place"
            if not place.exists():
                place.write_text(str(make(shared)))
            return Path(place.read_text())

    return called


@pytest.fixture(scope="session")
def tiny_trained(once) -> Path:
    """The tiny study run on this machine; not to be written into.

    For tests that compare with numbers which this machine computes.
    """
    return once("tiny-trained", run_tiny)


@pytest.fixture(scope="session")
def scans_run(once) -> Path:
    """A run on two-channel volumes whose data is gone; not to be written into."""
    return once("scans", train_scans)


@pytest.fixture(scope="session")
def pictures_run(once) -> Path:
    """A run on colour pictures whose data is gone; not to be written into."""
    return once("pictures", train_pictures)


@pytest.fixture
def command():
    """The installed command's arguments, run in a process of their own."""

    def run(*arguments: object, **how) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", "autofedavg", *map(str, arguments)],
            capture_output=True,
            text=True,
            **{"timeout": 240, **how},
        )

    return run


@pytest.fixture
def start():
    """Like `command`, but returns the running process; killed at the end whatever happens."""
    running = []

    def launch(*arguments: object, **variables) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-m", "autofedavg", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
            # A shell that puts the tests into the background has Ctrl-C ignored, by children too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        running.append(process)
        return process

    yield launch
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def serving(start):
    """Runs `serve` on any free port: the process, and the address it printed."""

    def launch(*arguments: object, **variables) -> tuple[subprocess.Popen, str]:
        process = start("serve", *arguments, "--port", 0, "--every", 0.2, **variables)
        url = process.stdout.readline().strip()
        assert url.startswith("http://"), process.communicate()
        return process, url

    return launch
