"""Checks of a manifest's numbers, names and types."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..base.canonical_json import Malformed
from ..base.safetensors_io import DTYPES

MAX_RANK, MAX_ELEMENTS = 8, 2**40
MAX_COUNT = 2**31 - 1  # the language's limit for counts in a run file, and for the length of an axis
MAX_NAME_LENGTH = 512  # characters of a name


def need(condition: bool, message: str) -> None:
    """Malformed, with ``message``, unless ``condition``."""
    if not condition:
        raise Malformed(message)


def need_count(at: str, value: int | None, maximum: int = MAX_COUNT, minimum: int = 1) -> None:
    """Malformed unless ``value`` is None or from ``minimum`` to ``maximum``."""
    need(value is None or minimum <= value <= maximum, f"{at} is {value}; it should be from {minimum} to {maximum}")


def need_name(at: str, name: str) -> None:
    """Malformed unless ``name`` is one that a line and a file's name can show; it may be empty."""
    need(len(name) <= MAX_NAME_LENGTH and name.isprintable(), f"{at}: the name {name[:60]!r} is not allowed")


def need_unique(what: str, names: Iterable[str]) -> None:
    """Malformed if one of ``names`` occurs twice."""
    seen: set[str] = set()
    for name in names:
        need(name not in seen, f"{what} names {name} twice")
        seen.add(name)


def check_type(name: str, shape: tuple[int, ...], dtype: str) -> None:
    """Malformed unless a tensor may have this type."""
    need(dtype in DTYPES, f"{name} has the unknown dtype {dtype[:30]!r}")
    need(
        len(shape) <= MAX_RANK and all(1 <= n <= MAX_COUNT for n in shape) and math.prod(shape) < MAX_ELEMENTS,
        f"{name} has a shape that no tensor may have",
    )
