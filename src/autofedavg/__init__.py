"""Auto-FedAvg: federated averaging with weights learned from the clients' own data.

Names are imported when first used, so that `import autofedavg` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_WHERE = {
    "AutoFedAvg": "methods.auto_fedavg",
    "AutoFedAvgError": "core.errors",
    "Bank": "core.bank",
    "Dirichlet": "core.constraints",
    "Ensemble": "core.ensemble",
    "EnsembleMethod": "methods.ensemble",
    "FedAvg": "methods.fedavg",
    "FedMA": "methods.fedma.method",
    "FedProx": "methods.fedprox",
    "Federation": "federation.port",
    "LoaderSite": "tasks.loaders",
    "LocalOnly": "methods.local_only",
    "Machine": "studies.machine",
    "Problem": "core.problem",
    "Softmax": "core.constraints",
    "Training": "core.trainer",
    "federate": "studies.federate",
    "predict": "inference.predict",
    "read_study": "experiment.config",
    "resume": "studies.launch",
    "run_study": "studies.launch",
}

__all__ = [*sorted(_WHERE)]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'autofedavg' has no attribute {name!r}")
    return getattr(import_module(f"autofedavg.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
