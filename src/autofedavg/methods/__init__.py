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
        "afl": "autofedavg.methods.afl:AFL",
        "apfl": "autofedavg.methods.apfl:APFL",
        "auto-fedavg": "autofedavg.methods.auto_fedavg:AutoFedAvg",
        "ditto": "autofedavg.methods.ditto:Ditto",
        "ensemble": "autofedavg.methods.ensemble:EnsembleMethod",
        "fedadagrad": "autofedavg.methods.fedadagrad:FedAdagrad",
        "fedadam": "autofedavg.methods.fedadam:FedAdam",
        "fedavg": "autofedavg.methods.fedavg:FedAvg",
        "fedavg-ft": "autofedavg.methods.fedavg_ft:FedAvgFineTuned",
        "fedavgm": "autofedavg.methods.fedavgm:FedAvgM",
        "fedawa": "autofedavg.methods.fedawa:FedAWA",
        "fedbe": "autofedavg.methods.fedbe:FedBE",
        "fedbn": "autofedavg.methods.fedbn:FedBN",
        "fedce": "autofedavg.methods.fedce:FedCE",
        "fedcostwavg": "autofedavg.methods.fedcostwavg:FedCostWAvg",
        "feddf": "autofedavg.methods.feddf:FedDF",
        "feddisco": "autofedavg.methods.feddisco:FedDisco",
        "fedexp": "autofedavg.methods.fedexp:FedExP",
        "fedlaw": "autofedavg.methods.fedlaw:FedLAW",
        "fedlws": "autofedavg.methods.fedlws:FedLWS",
        "fedma": "autofedavg.methods.fedma.method:FedMA",
        "fednova": "autofedavg.methods.fednova:FedNova",
        "fedpidavg": "autofedavg.methods.fedpidavg:FedPIDAvg",
        "fedprox": "autofedavg.methods.fedprox:FedProx",
        "fedyogi": "autofedavg.methods.fedyogi:FedYogi",
        "fltrust": "autofedavg.methods.fltrust:FLTrust",
        "ga": "autofedavg.methods.ga:GeneralizationAdjustment",
        "geometric-median": "autofedavg.methods.geometric_median:GeometricMedian",
        "ima": "autofedavg.methods.ima:IMA",
        "l-dawa": "autofedavg.methods.l_dawa:LDawa",
        "l2gd": "autofedavg.methods.l2gd:L2GD",
        "local-only": "autofedavg.methods.local_only:LocalOnly",
        "median": "autofedavg.methods.median:Median",
        "multi-krum": "autofedavg.methods.multi_krum:MultiKrum",
        "pfedme": "autofedavg.methods.pfedme:PFedMe",
        "q-fedavg": "autofedavg.methods.q_fedavg:QFedAvg",
        "robust-weights": "autofedavg.methods.robust_weights:RobustWeights",
        "scaffold": "autofedavg.methods.scaffold:Scaffold",
        "trimmed-mean": "autofedavg.methods.trimmed_mean:TrimmedMean",
    },
    group="autofedavg.methods",
    base="autofedavg.methods.base:Method",
)


def __getattr__(name: str) -> Any:  # imported when first used: they bring PyTorch
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("autofedavg"), name)
