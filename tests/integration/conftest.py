import os
import subprocess
import sys
from pathlib import Path

import pytest

TINY = """
[study]
name = "tiny"
title = "Tiny hospitals"
baseline = "fedavg"

[base]
rounds = 3

[base.task]
name = "synthetic"
scale = 0.02
extent = [24.0, 24.0, 30.0]

[base.task.pipeline]
roi = [16, 16, 8]
channels = [4, 8]

[base.training]
iterations = 2
batch_size = 2
learning_rate = 3e-3

[[run]]
name = "local-only"
label = "Local only"
method = { name = "local-only" }

[[run]]
name = "fedavg"
label = "FedAvg"
method = { name = "fedavg" }

[[run]]
name = "n-dirichlet"
label = "Auto-FedAvg-N-Dirichlet"
method = { name = "auto-fedavg", S = 2 }
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A study of three rows that runs in seconds."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture
def command():
    """The installed command's arguments, run in a process of their own."""

    def run(*arguments: object, **how) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", "autofedavg", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=240,
            **how,
        )

    return run


@pytest.fixture
def start():
    """Like `command`, but returns the running process; killed at the end whatever happens."""
    running = []

    def launch(*arguments: object) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-m", "autofedavg", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "COVERAGE_PROCESS_START": ""},
        )
        running.append(process)
        return process

    yield launch
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()
