"""Canonical JSON: one text for one value. Integers, strings, booleans, null, lists and objects; never a float."""

from __future__ import annotations

import json
from typing import Any, NoReturn

MAX_BYTES = 16 * 2**20
MAX_INTEGER = 2**63 - 1


class Malformed(ValueError):
    """The bytes are not JSON of our kind; the message is the user's."""


def dumps(value: Any) -> bytes:
    """``value`` as canonical ASCII bytes (the same as RFC 8785 for this subset)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def loads(data: bytes, floats: bool = False) -> Any:
    """The value of UTF-8 JSON ``data``. Refuses duplicate keys, NaN and infinities, integers beyond 64 bits, lone
    surrogates, deep nesting and, unless ``floats``, every number that is not an integer."""
    if len(data) > MAX_BYTES:
        raise Malformed(f"{len(data)} bytes; the limit is {MAX_BYTES}")
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_float=_float if floats else _no_float,
            parse_constant=_no_float,
            parse_int=_integer,
        )
    except RecursionError:
        raise Malformed("the JSON nests too deeply") from None
    except UnicodeDecodeError as error:
        raise Malformed(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise Malformed(f"not JSON: {error.msg} at character {error.pos}") from None


def loads_canonical(data: bytes) -> Any:
    """``loads``, and the bytes are exactly what ``dumps`` makes of the value."""
    value = loads(data)
    if dumps(value) != data:
        raise Malformed("the JSON is not in canonical form")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise Malformed(f"the key {twice!r} is given twice")
    return out


def _integer(text: str) -> int:
    if len(text) > 20 or abs(int(text)) > MAX_INTEGER:
        raise Malformed(f"the integer {text[:30]} does not fit 64 bits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise Malformed(f"the number {text[:30]} is not finite")
    return value


def _no_float(text: str) -> NoReturn:
    raise Malformed(f"the number {text[:30]} is not allowed here")
