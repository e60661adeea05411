"""Models on a GPU are aggregated there, also from a first model and a memory on the CPU."""

from dataclasses import replace

import pytest
import torch

from aggregations import aggregation
from autofedavg.core.bank import Bank
from autofedavg.methods.averaging import Aggregation
from autofedavg.methods.fedadagrad import FedAdagrad
from autofedavg.methods.fedadam import FedAdam
from autofedavg.methods.fedavgm import FedAvgM
from autofedavg.methods.fedexp import FedExP
from autofedavg.methods.fedyogi import FedYogi
from autofedavg.methods.geometric_median import GeometricMedian
from autofedavg.methods.ima import IMA
from autofedavg.methods.median import Median
from autofedavg.methods.multi_krum import MultiKrum
from autofedavg.methods.robust_weights import RobustWeights
from autofedavg.methods.trimmed_mean import TrimmedMean

METHODS = [FedAdagrad(), FedAdam(), FedAvgM(), FedExP(), FedYogi(), IMA(start=0.0)]
METHODS += [GeometricMedian(), Median(), MultiKrum(f=1), RobustWeights(cap=2.0), TrimmedMean()]
DELTAS = [[0.1, 0.7], [0.3, -0.2], [0.5, 0.9], [0.2, 0.2], [0.7, 0.1]]


def moved(at: Aggregation, device: str) -> Aggregation:
    """The same round with the sites' models on another device."""
    bank = at.w_k
    there = Bank(bank.sites, bank.values.to(device), bank.counters.to(device))
    return replace(at, trained=replace(at.trained, w_k=there), memory=dict(at.memory))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_models_on_a_gpu_give_the_answers_of_the_cpu(method) -> None:
    here = aggregation(DELTAS, [0.3, 0.1], probed=[1.0, 2.0, 0.5, 0.1, 3.0], t=2)
    there = moved(here, "cuda")
    assert there.w.values.device.type == "cuda"
    for _ in range(2):
        one, other = method.aggregate(here), method.aggregate(there)
        assert other.values.device.type == "cuda"
        torch.testing.assert_close(one.values, other.values.cpu(), rtol=1e-12, atol=1e-12)
        assert [*here.memory] == [*there.memory]
        # As after a checkpoint: the memory of the second round is on the CPU.
        there.memory = {name: value.cpu() for name, value in there.memory.items()}
        begin = method.departure(one, there.memory)
        assert begin.values.device == one.values.device
