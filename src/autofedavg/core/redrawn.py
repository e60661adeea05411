"""New initial weights for a network that exists already."""

from __future__ import annotations

import copy

from torch import nn

from autofedavg.core.errors import ConfigError


def redrawn(network: nn.Module) -> nn.Module:
    """A copy of the network with new initial weights, from PyTorch's global generator.

    They are drawn on the CPU, so that they are the same on every device.

    Raises:
        ConfigError: a module holds parameters and cannot draw them.
    """
    network = copy.deepcopy(network).cpu()
    for name, module in network.named_modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
        elif any(True for _ in module.parameters(recurse=False)):
            raise ConfigError(
                f"{name or type(module).__name__} cannot draw new weights: "
                "it has no reset_parameters",
                where=type(network).__name__,
                remedy="give it one, or set method.initial = 'shared'",
            )
    return network
