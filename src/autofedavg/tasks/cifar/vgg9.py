"""VGG-9 for 32x32 images: the network of the paper's CIFAR-10 study."""

from __future__ import annotations

from torch import nn


def vgg9(classes: int = 10) -> nn.Sequential:
    """Six convolutions and three linear layers: (N, 3, 32, 32) to (N, classes).

    Biases everywhere, no batch norm; 3,491,530 parameters for ten classes. The widths are FedMA's,
    whose benchmark the paper uses.
    """
    return nn.Sequential(
        *_convolution(3, 32),
        *_convolution(32, 64),
        nn.MaxPool2d(2),
        *_convolution(64, 128),
        *_convolution(128, 128),
        nn.MaxPool2d(2),
        nn.Dropout2d(0.05),
        *_convolution(128, 256),
        *_convolution(256, 256),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(4096, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(512, classes),
    )


def _convolution(inputs: int, outputs: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()
