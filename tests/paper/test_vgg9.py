"""The CIFAR-10 study's network: VGG-9 as FedMA has it, without batch norm."""

import pytest
import torch

from autofedavg.core.bank import Layout
from autofedavg.tasks.cifar.vgg9 import vgg9
from toy import seeded


@pytest.fixture(scope="module")
def network():
    return seeded(vgg9, 0)


def test_size(network):
    assert sum(parameter.numel() for parameter in network.parameters()) == 3_491_530


def test_eighteen_tensors_in_nine_layers(network):
    layout = Layout.of(network)
    assert len(layout.entries) == 18
    assert layout.layers("module").P == 9
    assert layout.layers("tensor").P == 18
    assert layout.trainable == layout.size == 3_491_530
    assert layout.nbytes == 4 * 3_491_530


def test_no_buffers_to_average(network):
    assert list(network.buffers()) == []


def test_widths_are_fedma_s(network):
    shapes = [tuple(p.shape[:2]) for p in network.parameters() if p.dim() > 1]
    convolutions = [(32, 3), (64, 32), (128, 64), (128, 128), (256, 128), (256, 256)]
    assert shapes == [*convolutions, (512, 4096), (512, 512), (10, 512)]


@pytest.mark.parametrize("classes", [10, 3])
def test_one_score_per_class(classes):
    network = seeded(lambda: vgg9(classes), 0).eval()
    with torch.no_grad():
        assert network(torch.zeros(2, 3, 32, 32)).shape == (2, classes)
