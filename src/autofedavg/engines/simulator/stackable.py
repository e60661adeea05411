"""Which clients can take their training steps together on one GPU."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import cast

import torch

from autofedavg.core.forms import Form, reshaped
from autofedavg.engines.simulator.stacked.layers import Layer, fits, layers_of
from autofedavg.federation.client import Client
from autofedavg.tasks.cifar.pictures import PictureSite

AMPERE = (8, 0)  # the first generation with bf16 in hardware


def why_not_together(clients: Mapping[str, Client]) -> str:
    """Why clients cannot take their steps together; nothing where they can."""
    some = next(iter(clients.values()))
    training = some.trainer.training
    if find_spec("triton") is None:
        return "Triton is not installed"
    if some.private:
        return "their steps are differentially private, patient by patient"
    if training.precision != "bf16" or training.optimiser != "sgd":
        return "only SGD in bf16 is done together"
    device = some.trainer.device
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < AMPERE:
        return "the GPU has no bf16"
    if not all(isinstance(client.data, PictureSite) for client in clients.values()):
        return "the sites' data are not pictures with classes"
    if some.trainer.loss_of is not pictures_of(some).plain_loss:
        return "the loss is not the sites' own"
    if some.trainer.layout.trainable != some.trainer.layout.size:
        return "parts of the network are frozen"
    layers = layers_in(some, None)
    if layers is None:
        return "the network has layers other than 3 x 3 convolutions, maxima and linear ones"
    if not fits(layers, training.batch_size):
        return f"a batch of {training.batch_size} does not fit the kernels' tiles"
    return ""


def layers_in(client: Client, form: Form | None) -> list[Layer] | None:
    """A client's network in this form as layers that the kernels know; None if some are not."""
    data, network = pictures_of(client), client.trainer.network
    built = network if form is None else reshaped(network, form)
    return layers_of(built, len(data.shown.mean), data.shown.size)


def pictures_of(client: Client) -> PictureSite:
    """A client's data, which `why_not_together` has looked at."""
    return cast(PictureSite, client.data)
