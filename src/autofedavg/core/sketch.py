"""A public linear map from D' numbers to a few: inner products survive it, vectors do not.

CountSketch: every number is added, with a random sign, to one of m buckets. <Ra, Rb> then has the
mean <a, b> and a standard deviation of about |a| |b| / sqrt(m). Numbers are laid out in rows of m,
and every row is shifted by a random amount. Two numbers meet in a bucket with probability 1 / m at
most, as with a random bucket for each; sums need no scattered writes, so a GPU repeats their bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from torch import Generator, Tensor

from autofedavg.core.bank import Layers


@dataclass(frozen=True)
class Part:
    """Numbers that are sketched together: one layer, or all of them.

    Attributes:
        segments: where they lie in the vector.
        length: how many they are.
        buckets: how many numbers are left of them; all of them where they fit.
    """

    segments: tuple[tuple[int, int], ...]
    length: int
    buckets: int

    @property
    def exact(self) -> bool:
        return self.buckets == self.length


@dataclass(frozen=True)
class Sketch:
    """The shape of the map: which numbers share which buckets.

    Example:
        >>> Sketch.of(100, None, 16).size, Sketch.of(100, None, 0).size
        (16, 100)
    """

    parts: tuple[Part, ...]
    length: int

    @classmethod
    def of(cls, length: int, layers: Layers | None, most: int) -> Sketch:
        """A map of `length` numbers to at most `most`, but for a bucket a layer; 0 keeps them all.

        With `layers` every layer has buckets of its own: half of them are dealt out evenly, and a
        layer that fits is exact; the others share the rest in proportion to their lengths.
        """
        segments: list[list[tuple[int, int]]] = [[] for _ in range(layers.P if layers else 1)]
        for start, stop, p in layers.segments if layers else ((0, length, 0),):
            if start < length:
                segments[p].append((start, min(stop, length)))
        lengths = [sum(stop - start for start, stop in one) for one in segments]
        buckets = _dealt(lengths, most) if 0 < most < length else lengths
        parts = zip(map(tuple, segments), lengths, buckets, strict=True)
        return cls(tuple(Part(*part) for part in parts), length)

    @property
    def size(self) -> int:
        """How many numbers the map gives."""
        return sum(part.buckets for part in self.parts)

    def apply(self, vector: Tensor, seed: int) -> Tensor:
        """R x of a vector (D',), as float64 on its device; R is drawn from the seed."""
        if all(part.exact for part in self.parts) and len(self.parts) == 1:
            return vector.double()
        signs, shifts = _drawn(self, seed)
        found, used = [], 0
        for part in self.parts:
            x = torch.cat([vector[start:stop] for start, stop in part.segments] or [vector[:0]])
            if part.exact:
                found.append(x.double())
                continue
            rows = -(-part.length // part.buckets)
            chosen = signs[used : used + part.length].to(x.device)
            x = torch.where(chosen, x, -x).double()
            x = torch.nn.functional.pad(x, (0, rows * part.buckets - part.length))
            total = torch.zeros(part.buckets, dtype=torch.float64, device=x.device)
            for row, shift in zip(x.view(rows, -1), shifts[part], strict=True):
                total += torch.roll(row, shift)
            found.append(total)
            used += part.length
        return torch.cat(found)

    def inner(self, one: Tensor, other: Tensor) -> Tensor:
        """<a, b> of every part, from R a and R b in float64: (P,)."""
        sizes = [part.buckets for part in self.parts]
        return torch.stack([piece.sum() for piece in torch.split(one * other, sizes)])


@lru_cache(maxsize=16)  # of two rounds, with the eight groups of judged steps
def _drawn(sketch: Sketch, seed: int) -> tuple[Tensor, dict[Part, list[int]]]:
    """A sign for every number of the parts that are not exact, and a shift for each of their rows.

    All sites of a process use the same ones, some of them twice.
    """
    chance = Generator().manual_seed(seed)
    inexact = [part for part in sketch.parts if not part.exact]
    length = sum(part.length for part in inexact)
    bits = torch.randint(256, (-(-length // 8),), dtype=torch.uint8, generator=chance)
    signs = torch.from_numpy(np.unpackbits(bits.numpy())[:length]).bool()
    shifts = {
        part: torch.randint(
            part.buckets, (-(-part.length // part.buckets),), generator=chance
        ).tolist()
        for part in inexact
    }
    return signs, shifts


def _dealt(lengths: list[int], most: int) -> list[int]:
    """`most` buckets dealt to parts of these lengths; at least one to each that is not empty."""
    even = max(1, most // (2 * len(lengths)))
    whole = [n <= even for n in lengths]
    left = most - sum(n for n, fits in zip(lengths, whole, strict=True) if fits)
    long = [0, *(n for n, fits in zip(lengths, whole, strict=True) if not fits)]
    ends = np.cumsum(long) / max(1, sum(long)) * max(left, 0)
    shares = iter([max(1, int(b) - int(a)) for a, b in pairwise(ends)])
    return [n if fits else min(n, next(shares)) for n, fits in zip(lengths, whole, strict=True)]
