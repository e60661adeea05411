"""NumPy's SeedSequence written out for the addresses of this package.

NumPy mixes all of an address for every number. Here what clients and rounds share is mixed once and
remembered, so that a step's own number costs a few microseconds (decision 48).
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

Pool = tuple[int, int, int, int, int]

# Of NumPy's SeedSequence, whose numbers are promised never to change.
INIT_A, MULT_A = 0x43B0D7E5, 0x931E8875
INIT_B, MULT_B = 0x8B51F9DD, 0x58F38DED
MIX_L, MIX_R = 0xCA01F9DD, 0x4973F715
LOW = 0xFFFFFFFF
WIDTH = 4  # words of the pool


@lru_cache(maxsize=4096)
def _of_client(seed: int, client: str, purpose: int) -> Pool:
    """SeedSequence(seed, spawn_key=(client's name, purpose))'s pool, to continue from."""
    name = int.from_bytes(hashlib.blake2b(client.encode(), digest_size=8).digest(), "big")
    words = _words(seed)
    words += [0] * (WIDTH - len(words))
    const, pool = INIT_A, []
    for word in words[:WIDTH]:
        value, const = _hashed(word, const)
        pool.append(value)
    for source in range(WIDTH):
        for target in range(WIDTH):
            if source != target:
                value, const = _hashed(pool[source], const)
                mixed = (MIX_L * pool[target] - MIX_R * value) & LOW
                pool[target] = mixed ^ mixed >> 16
    begun: Pool = (pool[0], pool[1], pool[2], pool[3], const)
    for word in words[WIDTH:]:
        begun = _absorbed(begun, word)
    return _absorbed(_absorbed(begun, name), int(purpose))


@lru_cache(maxsize=1024)
def _of_round(seed: int, client: str, purpose: int, t: int) -> Pool:
    """The pool of all steps of a round: only the step's own number is still to be mixed in."""
    return _absorbed(_of_client(seed, client, purpose), t)


def _absorbed(pool: Pool, number: int) -> Pool:
    """The pool with one more number of the key mixed in."""
    for word in (number,) if 0 <= number <= LOW else _words(number):
        *old, const = pool
        new = []
        for x in old:
            value = word ^ const
            const = const * MULT_A & LOW
            value = value * const & LOW
            mixed = (MIX_L * x - MIX_R * (value ^ value >> 16)) & LOW
            new.append(mixed ^ mixed >> 16)
        pool = (new[0], new[1], new[2], new[3], const)
    return pool


def first_number(seed: int, client: str, purpose: int, t: int, s: int) -> int:
    """The first 64 bits that NumPy's SeedSequence gives for this address.

    Example:
        >>> import numpy as np
        >>> key = (int.from_bytes(hashlib.blake2b(b"A", digest_size=8).digest(), "big"), 5, 1, 2)
        >>> theirs = np.random.SeedSequence(0, spawn_key=key).generate_state(1, np.uint64)
        >>> int(theirs[0]) == first_number(0, "A", 5, 1, 2)
        True
    """
    pool = _absorbed(_of_round(seed, client, purpose, t), s)
    low, const = pool[0] ^ INIT_B, INIT_B * MULT_B & LOW
    low = low * const & LOW
    high = (pool[1] ^ const) * (const * MULT_B & LOW) & LOW
    return low ^ low >> 16 | (high ^ high >> 16) << 32


def _hashed(value: int, const: int) -> tuple[int, int]:
    value, const = value ^ const, const * MULT_A & LOW
    value = value * const & LOW
    return value ^ value >> 16, const


def _words(number: int) -> list[int]:
    """A number's 32-bit words, the lowest first; at least one."""
    if number < 0:
        raise ValueError(f"expected non-negative integer, not {number}")
    words = [number & LOW]
    while number := number >> 32:
        words.append(number & LOW)
    return words
