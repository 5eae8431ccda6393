"""Where a draw stands, and a Builder that can draw."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from hashlib import sha256
from itertools import count

from ..graph.core import Builder, Value

# Behind it: the part of a step that the runner names where one of its draws is from no distribution. No name of a run
# file holds a space.
UNDRAWN = "undrawn in "


def place(form: str, ordinal: int) -> int:
    """The u32 that keys the ``ordinal``-th draw of ``form``: no edit outside the form moves it."""
    return int.from_bytes(sha256(f"{form}/{ordinal}".encode()).digest()[:4], "big")


def places(form: str) -> Iterator[int]:
    """The places of the draws of ``form``, in the order in which it makes them."""
    return (place(form, ordinal) for ordinal in count())


class DrawBuilder(Builder):
    """A Builder whose draws are keyed by ``seed``, u32[2], and by the next of ``places``. ``undrawn``: of each draw
    that needs a distribution how many had none, a scalar f32."""

    def __init__(self, seed: Value, places: Iterator[int]) -> None:
        super().__init__()
        self.seed, self.places = seed, places
        self.last = 0
        self.undrawn: list[Value] = []

    def undrawn_after(self, *before: Value) -> Value | None:
        """``before`` and ``undrawn``, added up; None where there is nothing."""
        terms = [*before, *self.undrawn]
        return reduce(lambda x, y: self("+", x, y), terms) if terms else None

    def draw(self, shape: tuple[int, ...], salt: Value | int) -> Value:
        """u32 random bits of ``shape``; ``salt`` is an i64 scalar."""
        self.last = next(self.places)
        return self._words(shape, salt, self.last)

    def draw_beside(self, salt: Value | int) -> Value:
        """One u32 word more for the latest draw, at the complement of its place: so no other draw moves."""
        return self._words((), salt, ~self.last & 0xFFFFFFFF)

    def _words(self, shape: tuple[int, ...], salt: Value | int, place: int) -> Value:
        salt = salt if isinstance(salt, Value) else self.const(salt, "i64")
        return self("philox", self.seed, salt, shape=shape, place=place)
