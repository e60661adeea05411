"""Pairwise masks: random integers that cancel in the sum over all sites, and in no other sum.

Every two sites agree on a key by X25519. ChaCha20 makes a stream of integers from it for every sum.
Of the two, the site that comes first in the list adds the stream, and the other subtracts it. This
module alone uses the library `cryptography`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autofedavg.core.errors import missing_extra

try:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import (
        X25519PrivateKey,
        X25519PublicKey,
    )
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as error:
    raise missing_extra("blind", "cryptography") from error

KEY = 64  # characters of a key: 32 bytes in sixteens
CALLS = ("local_train", "masked_gradient")  # their places in a nonce: never reorder
MOST_ROUND, MOST_ATTEMPT = 2**32 - 1, 2**16 - 1
_UNSIGNED: Mapping[torch.dtype, type[np.unsignedinteger[Any]]] = {
    torch.int32: np.uint32,
    torch.int64: np.uint64,
}


@dataclass(frozen=True)
class Address:
    """The sum that masks are for: no two sums under one key share a stream."""

    t: int
    call: str
    attempt: int

    @property
    def nonce(self) -> bytes:
        """ChaCha20's 16 bytes: the first eight count blocks."""
        call = CALLS.index(self.call).to_bytes(2, "big")
        return bytes(8) + self.t.to_bytes(4, "big") + call + self.attempt.to_bytes(2, "big")


@dataclass(frozen=True)
class MaskKey:
    """A site's key pair; the private half never leaves the site."""

    private: str = field(repr=False)

    @classmethod
    def new(cls) -> MaskKey:
        """One from the system's own source of random numbers."""
        return cls(X25519PrivateKey.generate().private_bytes_raw().hex())

    @property
    def public(self) -> str:
        return _public(self.private)

    def masked(
        self, arrays: Mapping[str, Tensor], site: str, keys: Mapping[str, str], at: Address
    ) -> dict[str, Tensor]:
        """Integer arrays with this site's masks added: on the CPU, in new memory.

        Args:
            arrays: int32 or int64, by name.
            site: whose they are.
            keys: the public keys of all sites of the sum, in their fixed order.
            at: the sum.
        """
        order = list(keys)
        found = {
            name: array.detach().cpu().contiguous().numpy().reshape(-1).view(_UNSIGNED[array.dtype])
            for name, array in sorted(arrays.items())
        }
        found = {name: array.copy() for name, array in found.items()}
        for other, public in keys.items():
            if other == site:
                continue
            pieces = _stream(_shared(self.private, public), at.nonce, list(found.values()))
            for array, piece in zip(found.values(), pieces, strict=True):
                if order.index(site) < order.index(other):
                    array += piece
                else:
                    array -= piece
        kinds = {name: array.dtype for name, array in arrays.items()}
        return {
            name: torch.from_numpy(array.view(array.dtype.str.replace("u", "i"))).to(kinds[name])
            for name, array in found.items()
        }


def is_key(text: object) -> bool:
    """Whether a text can be a public key."""
    return isinstance(text, str) and len(text) == KEY and set(text) <= set("0123456789abcdef")


@lru_cache(maxsize=64)
def _public(private: str) -> str:
    key = X25519PrivateKey.from_private_bytes(bytes.fromhex(private))
    return key.public_key().public_bytes_raw().hex()


@lru_cache(maxsize=1024)
def _shared(private: str, public: str) -> bytes:
    """The key of two sites; both derive the same one."""
    own = X25519PrivateKey.from_private_bytes(bytes.fromhex(private))
    secret = own.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(public)))
    pair = "/".join(sorted((_public(private), public)))
    return HKDF(hashes.SHA256(), 32, None, f"autofedavg masks {pair}".encode()).derive(secret)


def _stream(
    key: bytes, nonce: bytes, like: Sequence[np.ndarray[Any, Any]]
) -> list[np.ndarray[Any, Any]]:
    """ChaCha20's stream as integers, of these arrays' lengths and types."""
    cipher = Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor()
    return [
        np.frombuffer(cipher.update(bytes(array.nbytes)), array.dtype.newbyteorder("<"))
        for array in like
    ]
