"""Methods: ours, one file and one line each, and those that other packages add.

A package adds a method by an entry point in the group `autofedavg.methods`. What an author of a
method needs is exported here: `Method`, `Round`, `Federation`, `setting`.
"""

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
        "ditto": "autofedavg.methods.ditto:Ditto",
        "ensemble": "autofedavg.methods.ensemble:EnsembleMethod",
        "fedavg": "autofedavg.methods.fedavg:FedAvg",
        "fedavg-ft": "autofedavg.methods.fedavg_ft:FedAvgFineTuned",
        "fedavgm": "autofedavg.methods.fedavgm:FedAvgM",
        "fedbe": "autofedavg.methods.fedbe:FedBE",
        "feddf": "autofedavg.methods.feddf:FedDF",
        "fedma": "autofedavg.methods.fedma.method:FedMA",
        "fednova": "autofedavg.methods.fednova:FedNova",
        "fedprox": "autofedavg.methods.fedprox:FedProx",
        "fltrust": "autofedavg.methods.fltrust:FLTrust",
        "local-only": "autofedavg.methods.local_only:LocalOnly",
        "median": "autofedavg.methods.median:Median",
        "scaffold": "autofedavg.methods.scaffold:Scaffold",
    },
    group="autofedavg.methods",
    base="autofedavg.methods.base:Method",
)


def __getattr__(name: str) -> Any:  # imported when first used: they bring PyTorch
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("autofedavg"), name)
