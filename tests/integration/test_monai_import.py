"""Runs start without the libraries that MONAI and PyTorch would load for parts nobody uses here."""

import subprocess
import sys

PROGRAM = """
import sys
import torch
import autofedavg.tasks.imaging.segmentation
from autofedavg.core.beta_optimiser import BetaOptimiser
BetaOptimiser("adam", 0.1).start()(torch.ones(3), torch.zeros(3))
assert "monai.transforms" in sys.modules
loaded = {"mlflow", "scipy.signal", "torch._dynamo"} & sys.modules.keys()
assert not loaded, loaded
import mlflow, scipy.signal
assert mlflow.__version__ and scipy.signal.find_peaks
"""


def test_what_it_does_not_need_is_left_out_and_can_be_imported_later() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_library_that_is_there_already_stays() -> None:
    before = "import scipy.signal as first\n"
    after = "import scipy.signal\nassert scipy.signal is first"
    program = f"{before}import autofedavg.tasks.imaging.image\n{after}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
