"""Methods: one file and one line each."""

from autofedavg.core.registry import Registry

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
