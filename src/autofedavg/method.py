"""What a method is: settings that can run T rounds on a federation."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from autofedavg.algorithm import Round
from autofedavg.averaging import Layout
from autofedavg.errors import ConfigError
from autofedavg.federation import Federation
from autofedavg.settings import Settings


class Method(Settings):
    """A frozen set of settings with one verb; subclasses add a `name` and override `rounds`."""

    @property
    def learns_on(self) -> str | None:
        """The split that the aggregation weights are learned on, if any."""
        return None

    @property
    def has_global_model(self) -> bool:
        """Whether the server averages, and so validates, a global model."""
        return True

    def check(self, sites: int) -> None:
        """Refuses a federation this method cannot work with."""
        if sites < 1:
            raise ConfigError("there is no site", where="method", remedy="add a site")

    def extra_traffic(self, sites: int) -> float:
        """Bytes over those of FedAvg, as a ratio."""
        return 0.0

    def begin(self, federation: Federation, start: Round) -> Round:
        """The state round 1 starts from, given w^0."""
        return start

    def rounds(
        self, federation: Federation, layout: Layout, T: int, start: Round
    ) -> Iterator[Round]:
        """Yields the rounds after `start` up to T."""
        raise NotImplementedError


def size_weights(federation: Federation) -> Tensor:
    """alpha_k = n_k / n, n_k being training cases (decision 8)."""
    n = torch.tensor([site.cases["train"] for site in federation.sites], dtype=torch.float64)
    return n / n.sum()


def even_weights(federation: Federation) -> Tensor:
    """alpha_k = 1 / K."""
    return torch.full((federation.K,), 1 / federation.K, dtype=torch.float64)
