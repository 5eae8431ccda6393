"""The shuffled order of records: a keyed permutation in O(1) memory, a function of (seed, loader, epoch, position).

A balanced Feistel network over 2**(2h) >= n numbers, with cycle walking: a number that lands outside [0, n) is sent
through again. Rounds are keyed by sha256 and mix with the finaliser of splitmix64 (Steele, Lea and Flood, 2014).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from attrs import frozen

ROUNDS = 8
WINDOW = 4096  # positions that are computed together


@frozen
class Order:
    """The stream of records of a loader of ``n`` records: epoch after epoch, each record once an epoch."""

    seed: int
    loader: str
    n: int
    shuffle: bool

    def records(self, start: int, count: int) -> np.ndarray:
        """The record numbers at positions ``start`` to ``start + count - 1``; i64."""
        out = np.empty(count, np.int64)
        filled = 0
        while filled < count:
            epoch, index = divmod(start + filled, self.n)
            first = index - index % WINDOW
            length = min(count - filled, min(self.n, first + WINDOW) - index)
            if self.shuffle:
                out[filled : filled + length] = window(self, epoch, first)[index - first : index - first + length]
            else:
                out[filled : filled + length] = np.arange(index, index + length)
            filled += length
        return out

    def permute(self, indices: np.ndarray, epoch: int) -> np.ndarray:
        """Where the permutation of ``epoch`` sends each of ``indices`` (u64, below n)."""
        if self.n == 1:
            return indices
        keys = round_keys(f"sexpgpu-order\0{self.seed}\0{self.loader}\0{epoch}".encode())
        half = max(2, ((self.n - 1).bit_length() + 1) // 2)
        permute_once = _permutation(keys, half)
        out = permute_once(indices)
        outside = np.nonzero(out >= self.n)[0]
        while outside.size:
            out[outside] = permute_once(out[outside])
            outside = outside[out[outside] >= self.n]
        return out


@lru_cache(maxsize=8)
def window(order: Order, epoch: int, first: int) -> np.ndarray:
    """The records at positions ``first`` to ``first + WINDOW - 1`` of ``epoch``, or to its end; u64, read-only. It
    takes about a hundred NumPy calls whatever the window's size, longer than a small step: so not once a batch."""
    out = order.permute(np.arange(first, min(first + WINDOW, order.n), dtype=np.uint64), epoch)
    out.flags.writeable = False
    return out


def _permutation(keys: list[np.uint64], half: int) -> Callable[[np.ndarray], np.ndarray]:
    """``feistel`` with ``keys``, as a lookup table if the domain is small."""
    if 1 << 2 * half > 4 * WINDOW:
        return lambda x: feistel(x, keys, half)
    table = feistel(np.arange(1 << 2 * half, dtype=np.uint64), keys, half)
    return lambda x: table[x]


def round_keys(text: bytes) -> list[np.uint64]:
    """ROUNDS keys of 64 bits: the words of sha256(text + counter byte), little-endian."""
    digests = b"".join(hashlib.sha256(text + bytes([i])).digest() for i in range(-(-ROUNDS // 4)))
    return list(np.frombuffer(digests, "<u8")[:ROUNDS])


def feistel(x: np.ndarray, keys: list[np.uint64], half: int) -> np.ndarray:
    """A permutation of the numbers of ``2 * half`` bits, u64 to u64."""
    mask = np.uint64((1 << half) - 1)
    left, right = x >> np.uint64(half), x & mask
    for key in keys:
        left, right = right, left ^ (mix(right ^ key) & mask)
    return (left << np.uint64(half)) | right


def mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64; wraps around 2**64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
