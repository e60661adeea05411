"""Where tensors live: a device that is asked for, checked before anything is put on it."""

from __future__ import annotations

import gc

import torch

from autofedavg.core.errors import ConfigError


def checked_device(device: str) -> torch.device:
    """The device, which becomes this process's current GPU if it is one.

    Raises:
        ConfigError: the device cannot be used.
    """
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"{device!r} cannot be used: {reason}", where="device", remedy="use --device cpu"
        ) from error
    found = torch.device(device)
    if found.type == "cuda" and found.index is not None:
        torch.cuda.set_device(found)
    return found


def release_memory(device: str) -> None:
    """Gives a GPU's memory back that nothing uses any more; nothing on a CPU.

    Recorded steps are in reference cycles, and what a finished run held would be missing to the
    next one, which puts as many data and sites on the GPU as there is room for.
    """
    if torch.device(device).type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
