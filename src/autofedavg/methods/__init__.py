"""Methods: one file and one line each; and what the author of a method imports."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from autofedavg.core.registry import Registry

if TYPE_CHECKING:
    from autofedavg.algorithm import Round
    from autofedavg.core.settings import setting
    from autofedavg.federation.port import Federation
    from autofedavg.methods.base import Method

__all__ = ["METHODS", "Federation", "Method", "Round", "setting"]

METHODS = Registry(
    "method",
    {
        "auto-fedavg": "autofedavg.methods.auto_fedavg:AutoFedAvg",
        "ensemble": "autofedavg.methods.ensemble:EnsembleMethod",
        "fedavg": "autofedavg.methods.fedavg:FedAvg",
        "fedma": "autofedavg.methods.fedma.method:FedMA",
        "fedprox": "autofedavg.methods.fedprox:FedProx",
        "local-only": "autofedavg.methods.local_only:LocalOnly",
    },
)


def __getattr__(name: str) -> Any:
    """Imports PyTorch only for those who ask: listing the methods must stay fast."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    homes = {"Round": "algorithm", "setting": "core.settings", "Federation": "federation.port"}
    return getattr(import_module(f"autofedavg.{homes.get(name, 'methods.base')}"), name)
