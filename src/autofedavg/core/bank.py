"""The model bank: K flat models as one (K, D) matrix, and what is done with it.

Two products with the matrix are all the method needs: w = sum_k alpha_k w_k, and dL/dalpha_k =
<grad L(w), w_k>. How a network becomes a vector is `layouts`.

The buffer rule (decision 6): floating buffers are averaged with the alpha of the layer that owns
them; integer counters take the maximum over the clients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from autofedavg.core.errors import AutoFedAvgError
from autofedavg.core.forms import Form
from autofedavg.core.layout import LayerKind, Layers, Layout, Model, no_counters

__all__ = ["Bank", "Gram", "LayerKind", "Layers", "Layout", "Model", "joint_digest", "model_for"]

ALIGNMENT = 64  # bytes: where PyTorch puts what it allocates
BLOCK = 2**20  # columns that are looked at at a time


@dataclass(frozen=True)
class Gram:
    """Inner products of Delta_k = w_k - w, in float64 on the CPU.

    Attributes:
        deltas: <Delta_j, Delta_k>, (K, K), or (P, K, K) by layer.
        along: <Delta_k, w>, (K,) or (P, K).
        square: ||w||^2, () or (P,).
    """

    deltas: Tensor
    along: Tensor
    square: Tensor

    @property
    def norms(self) -> Tensor:
        """||Delta_k||, (K,) or (P, K)."""
        return self.deltas.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()

    @property
    def cosines(self) -> Tensor:
        """cos(w_k, w), (K,) or (P, K); 1 where one of the two is zero."""
        before = self.square.unsqueeze(-1)
        after = before + 2 * self.along + self.deltas.diagonal(dim1=-2, dim2=-1)
        lengths = (before * after.clamp(min=0)).sqrt()
        return torch.where(lengths > 0, (before + self.along) / lengths, 1.0).clamp(-1, 1)

    def distances(self, weights: Tensor) -> Tensor:
        """||Delta_k - sum_j weights_j Delta_j||, (K,) or (P, K)."""
        seen = self.deltas @ weights
        own = self.deltas.diagonal(dim1=-2, dim2=-1)
        return (own - 2 * seen + (seen * weights).sum(-1, keepdim=True)).clamp(min=0).sqrt()


@dataclass(frozen=True)
class Bank:
    """K models as a matrix: `values` (K, D), `counters` (K, C), one row per site in `sites`."""

    sites: tuple[str, ...]
    values: Tensor
    counters: Tensor
    form: Form | None = None

    @classmethod
    def gather(cls, models: Mapping[str, Model]) -> Bank:
        """Stacks models into a bank, without copying rows that already lie in one matrix."""
        rows = list(models.values())
        return cls(
            tuple(models),
            _matrix([model.values for model in rows]),
            _matrix([model.counters for model in rows]),
            rows[0].form,
        )

    def __contains__(self, site: str) -> bool:
        return site in self._rows

    def __getitem__(self, site: str) -> Model:
        k = self._rows[site]
        return Model(self.values[k], self.counters[k], self.form)

    def combine(self, alpha: Tensor, layers: Layers | None = None) -> Model:
        """W = sum_k alpha_k w_k; with `layers`, w_p = sum_k alpha_{k,p} w_{k,p}.

        Args:
            alpha: (K,), or (K, P) with `layers`; cast to the models' type here.
            layers: the P layers for layer-wise weights.
        """
        self._check(alpha, layers)
        alpha = alpha.detach().to(self.values)
        if layers is None:
            values = alpha @ self.values
        else:
            values = torch.empty_like(self.values[0])
            for start, stop, p in layers.segments:
                torch.mv(self.values[:, start:stop].t(), alpha[:, p], out=values[start:stop])
        counters = self.counters.amax(dim=0) if self.counters.numel() else no_counters(alpha.device)
        return Model(values, counters, self.form)

    def project(self, gradient: Tensor, layers: Layers | None = None) -> Tensor:
        """dL/dalpha_k = <grad L(w), w_k>: (K,), or (K, P) with `layers`; float64 on the CPU.

        Args:
            gradient: grad L(w) over the trainable part of the vector, (D',) with D' <= D.
            layers: the P layers for layer-wise weights.
        """
        end = gradient.numel()
        # BLAS sums in another order from elsewhere in memory: engines must not change bits.
        gradient = gradient.clone() if gradient.data_ptr() % ALIGNMENT else gradient
        if layers is None:
            return (self.values[:, :end] @ gradient).to("cpu", torch.float64)
        g = torch.zeros(len(self.sites), layers.P, dtype=gradient.dtype, device=gradient.device)
        for start, stop, p in layers.segments:
            if start < end:
                g[:, p] += self.values[:, start : min(stop, end)] @ gradient[start:stop]
        return g.to("cpu", torch.float64)

    def gram(self, w: Model, end: int, layers: Layers | None = None) -> Gram:
        """Inner products of the w_k - w with each other and with w, over the first `end` numbers.

        Args:
            w: the model that the clients started from.
            end: D', the length of the trainable part.
            layers: to have them by layer.
        """
        K, P = len(self.sites), layers.P if layers else 1
        deltas, along, square = (torch.zeros(P, K, K), torch.zeros(P, K), torch.zeros(P))
        found = [part.to(self.values.device, torch.float64) for part in (deltas, along, square)]
        for first, last, p in layers.segments if layers else ((0, end, 0),):
            for start, stop in _blocks(first, min(last, end)):
                base = w.values[start:stop].double()
                moved = self.values[:, start:stop].double() - base
                found[0][p] += moved @ moved.t()
                found[1][p] += moved @ base
                found[2][p] += base @ base
        made = [part.cpu() for part in found]
        return Gram(*made) if layers else Gram(*(part[0] for part in made))

    def columns(self, reduce: Callable[[Tensor], Tensor], end: int) -> Tensor:
        """`reduce` of every block of columns: (K, B) to (B,), over the first `end` numbers."""
        return torch.cat([reduce(self.values[:, start:stop]) for start, stop in _blocks(0, end)])

    @cached_property
    def _rows(self) -> dict[str, int]:
        """Every site's row: found at once, however many sites there are."""
        return {site: k for k, site in enumerate(self.sites)}

    def _check(self, alpha: Tensor, layers: Layers | None) -> None:
        expected = (len(self.sites),) if layers is None else (len(self.sites), layers.P)
        if tuple(alpha.shape) != expected:
            raise AutoFedAvgError(
                f"alpha has shape {tuple(alpha.shape)}, expected {expected}", where="Bank.combine"
            )


def joint_digest(digests: Mapping[str, str]) -> str:
    """A bank's digest from those of its models, in order."""
    return hashlib.blake2b(repr(list(digests.items())).encode(), digest_size=16).hexdigest()


def model_for(w: Model | Bank, site: str) -> Model:
    """What a site goes on from: the global model, or its own row of a bank."""
    return w if isinstance(w, Model) else w[site]


def _blocks(first: int, end: int) -> Iterator[tuple[int, int]]:
    """Ranges that cover first .. end, none of them too long for a copy in float64."""
    for start in range(first, end, BLOCK):
        yield start, min(start + BLOCK, end)


def _matrix(rows: Sequence[Tensor]) -> Tensor:
    """Stacks vectors; a view when they are already the consecutive rows of one matrix."""
    first = rows[0]
    length, start = first.numel(), first.storage_offset()
    memory = first.untyped_storage().data_ptr()
    if length and all(
        row.storage_offset() == start + k * length
        and row.untyped_storage().data_ptr() == memory
        and row.is_contiguous()
        for k, row in enumerate(rows)
    ):
        return first.as_strided((len(rows), length), (length, 1), start)
    return torch.stack(list(rows))
