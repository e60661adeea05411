"""Random numbers that only the holder of a key can draw.

Noise that protects patients must not be predictable from what was drawn before, so it does not come
from a Mersenne Twister but from SHAKE-256 of a key and an address. The same address gives the same
numbers: a request that is repeated is answered by the same bits.
"""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import torch
from torch import Tensor

BLOCK = 2**20  # numbers drawn at a time


class NoiseKey:
    """Uniform and Gaussian numbers by address.

    Args:
        secret: the key; nobody who sees the numbers' use may know it.

    Example:
        >>> key = NoiseKey(b"secret")
        >>> bool((key.normals(3, "A", 1) == key.normals(3, "A", 1)).all())
        True
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def digest(self, *parts: bytes) -> str:
        """A digest of some content that nobody else can compute."""
        made = hmac.new(self._secret, digestmod="sha256")
        for part in parts:
            made.update(len(part).to_bytes(8, "big"))
            made.update(part)
        return made.hexdigest()

    def uniforms(self, count: int, *address: str | int) -> np.ndarray:
        """Numbers between 0 and 1, neither included, (count,) in float64."""
        found = [
            self._block(min(BLOCK, count - start), start, address)
            for start in range(0, count, BLOCK)
        ]
        return np.concatenate(found) if found else np.empty(0)

    def normals(self, count: int, *address: str | int) -> Tensor:
        """Standard normal numbers, (count,) in float64 on the CPU."""
        found: Tensor = torch.special.ndtri(torch.from_numpy(self.uniforms(count, *address)))
        return found

    def _block(self, count: int, start: int, address: tuple[str | int, ...]) -> np.ndarray:
        seed = self.digest(repr((start, *address)).encode()).encode()
        words = np.frombuffer(hashlib.shake_256(seed).digest(8 * count), "<u8")
        numbers: np.ndarray = ((words >> np.uint64(11)) + 0.5) * 2.0**-53
        return numbers
