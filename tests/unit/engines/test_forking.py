"""Whether processes forked from this one could train, and what is done where they cannot."""

import os
import signal
import subprocess
import sys

import pytest
import torch

from autofedavg.core.errors import ConfigError
from autofedavg.core.seeds import Seeds
from autofedavg.core.trainer import Training
from autofedavg.engines.simulator import simulator, workers
from autofedavg.engines.simulator.simulator import Simulator, WorkerPlan
from autofedavg.federation.port import Federation

TRAINING = Training(iterations=2)
FRESH = """
import torch
from autofedavg.engines.simulator.workers import gradients_after_fork
torch.accelerator.is_available = lambda: True
print(gradients_after_fork())
"""


@pytest.fixture
def gpu(monkeypatch):
    """As on a machine with a GPU and two cores; how a trial ends is up to the test."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(simulator, "usable_cores", lambda: 2)
    return lambda trial: monkeypatch.setattr(workers, "_take_gradient", trial)


def test_where_forked_processes_can_train_there_are_workers(problem, gpu):
    gpu(lambda: os._exit(0))
    with Simulator(problem, TRAINING, Seeds(0), workers=2) as transport:
        assert transport.plan == WorkerPlan(2, 1)


def test_where_they_cannot_one_process_does_everything(problem, gpu, caplog):
    """As many threads as before, so the same bits; a choice of the user's is not overruled."""
    gpu(lambda: os._exit(1))
    with Simulator(problem, TRAINING, Seeds(0), threads=1) as transport:
        assert transport.plan == WorkerPlan(1, 1)
    assert "1 worker instead of 3: a process forked from this one could not take" in caplog.text
    wrong = "^workers: a process forked from .* use 1 worker, or a process of its own"
    with pytest.raises(ConfigError, match=wrong):
        Simulator(problem, TRAINING, Seeds(0), workers=2)
    with Simulator(problem, TRAINING, Seeds(0), workers=1) as transport:
        assert transport.plan.workers == 1


def test_without_a_gpu_no_trial_is_needed(gpu, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    gpu(lambda: os._exit(1))
    assert workers.gradients_after_fork()


def test_a_trial_that_hangs_is_ended(gpu, monkeypatch):
    monkeypatch.setattr(workers, "LONG", 0.2)
    gpu(signal.pause)
    assert not workers.gradients_after_fork()


def test_a_trial_fails_where_pytorch_refuses(gpu, monkeypatch):
    def refuses(_):
        raise RuntimeError("Unable to handle autograd's threading in combination with fork")

    monkeypatch.setattr(torch.Tensor, "backward", refuses)
    assert not workers.gradients_after_fork()


@pytest.mark.process
def test_a_fresh_process_passes_its_trial():
    found = subprocess.run(
        [sys.executable, "-c", FRESH], capture_output=True, text=True, check=True
    )
    assert found.stdout == "True\n"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_machine_with_a_gpu_clients_train_on_the_cpu_after_a_gradient_here(problem):
    torch.ones(1, requires_grad=True).backward()
    with Simulator(problem, TRAINING, Seeds(0), threads=1) as transport:
        assert transport.plan == WorkerPlan(1, 1)
        trained = Federation(transport).local_train(1, problem.initial(Seeds(0))[0], T=1)
        losses = trained.losses
    assert set(losses) == {"A", "B", "C"}
