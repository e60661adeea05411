"""Several models of one network as one predictor."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call


class Ensemble(nn.Module):
    """The mean of the members' softmax outputs, all with the same weight.

    Args:
        network: the network that all members are models of; its own state is not used.
        members: each member's named tensors, as for `load_state_dict`.

    The output is the logarithm of the mean, so that its argmax is the ensemble's class and its
    softmax the ensemble's chances. Classes lie in dimension 1.

    Example:
        >>> network = nn.Linear(2, 2)
        >>> alone = Ensemble(network, [network.state_dict()])
        >>> x = torch.ones(1, 2)
        >>> torch.allclose(alone(x).softmax(1), network(x).softmax(1))
        True
    """

    def __init__(self, network: nn.Module, members: Sequence[Mapping[str, Tensor]]) -> None:
        super().__init__()
        self.network = network
        self._members = [dict(member) for member in members]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Members go where the network goes: they are neither parameters nor buffers of it."""
        self._members = [{key: fn(part) for key, part in m.items()} for m in self._members]
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call, no-any-return]

    def forward(self, *inputs: Any) -> Tensor:
        return _mean(functional_call(self.network, member, inputs) for member in self._members)

    def unrolled(self) -> nn.Module:
        """The same predictor with a network for every member: what an exporter can follow."""
        networks = [copy.deepcopy(self.network) for _ in self._members]
        for network, member in zip(networks, self._members, strict=True):
            network.load_state_dict(member)
        return Unrolled(networks)


class Unrolled(nn.Module):
    """The mean of several networks' softmax outputs, as `Ensemble` has it."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, image: Tensor) -> Tensor:
        return _mean(network(image) for network in self.networks)


def _mean(outputs: Iterable[Tensor]) -> Tensor:
    """The logarithm of the mean of softmax outputs, from the logits before them."""
    chances = (torch.log_softmax(logits.float(), dim=1) for logits in outputs)
    total, count = next(chances), 1
    for count, other in enumerate(chances, 2):  # noqa: B007 - counted to the end
        total = torch.logaddexp(total, other)
    return total - math.log(count)
