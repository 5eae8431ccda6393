"""Where a draw stands, and a Builder that can draw."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from itertools import count

from .graph import Builder, Value


def place(form: str, ordinal: int) -> int:
    """The u32 that keys the ``ordinal``-th draw of ``form``: no edit outside the form moves it."""
    return int.from_bytes(sha256(f"{form}/{ordinal}".encode()).digest()[:4], "big")


def places(form: str) -> Iterator[int]:
    """The places of the draws of ``form``, in the order in which it makes them."""
    return (place(form, ordinal) for ordinal in count())


class DrawBuilder(Builder):
    """A Builder whose draws are keyed by ``seed``, u32[2], and by the next of ``places``."""

    def __init__(self, seed: Value, places: Iterator[int]) -> None:
        super().__init__()
        self.seed, self.places = seed, places

    def draw(self, shape: tuple[int, ...], salt: Value | int) -> Value:
        """u32 random bits of ``shape``; ``salt`` is an i64 scalar."""
        salt = salt if isinstance(salt, Value) else self.const(salt, "i64")
        return self("philox", self.seed, salt, shape=shape, place=next(self.places))
