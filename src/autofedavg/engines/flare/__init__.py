"""The algorithm on NVIDIA FLARE: models travel as tasks, what is small as aux messages.

Nothing is decided here: the Controller carries what the server asks, the Executor hands it to the
site's desk. FLARE itself is imported only by what runs inside it, and PyTorch by what needs it: a
site's main process imports its door alone.
"""

from typing import Any

__all__ = ["Loopback"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(name)
    from autofedavg.engines.flare.loopback import Loopback

    return Loopback
