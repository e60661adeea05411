"""What a run runs on: versions, commit, machine."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch


def environment(device: str, **more: Any) -> dict[str, Any]:
    """Versions, commit and hardware, for environment.json."""
    packages = ["autofedavg", "torch", "numpy", "scipy", "monai", "nibabel", "pydantic"]
    cuda = torch.device(device).type == "cuda"
    return {
        "versions": {"python": platform.python_version(), **{p: _version(p) for p in packages}},
        "commit": _commit(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        **more,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache  # the code that runs is the one that was there when the process began
def _commit() -> str | None:
    """The commit of the checkout this package is run from, if it is run from one."""
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)  # noqa: S603 - git
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _processor() -> str | None:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or None
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0].partition(":")[2].strip() if names else None
