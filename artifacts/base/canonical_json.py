"""Canonical JSON, which has one text for each value, and the JSON lines of a run's output.

Values are integers, strings, booleans, null, lists and objects, never floats.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from surroundings.json_line import line as line
from surroundings.json_line import number as number

from .errors import shown

MAX_BYTES = 16 * 2**20
MAX_INTEGER = 2**63 - 1
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")  # the escape of a half of a surrogate pair, which may have its other half
BOM = b"\xef\xbb\xbf"


class Malformed(ValueError):
    """The bytes are not JSON of this kind; the message is for the user."""


def dumps(value: Any) -> bytes:
    """``value`` as canonical ASCII bytes (the same as RFC 8785 for this subset)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def loads(data: bytes) -> Any:
    """The value of UTF-8 JSON ``data``. Refuses a byte order mark, duplicate keys, lone surrogates, deep nesting,
    integers beyond 64 bits and every other number."""
    if len(data) > MAX_BYTES:
        raise Malformed(f"{len(data)} bytes; the limit is {MAX_BYTES}")
    if data.startswith(BOM):
        raise Malformed("a byte order mark (U+FEFF) stands before the JSON")
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_float=_no_float,
            parse_constant=_no_float,
            parse_int=_integer,
        )
        if _HALF.search(data):
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
        return value
    except RecursionError:
        raise Malformed("the JSON nests too deeply") from None
    except UnicodeEncodeError:
        raise Malformed("a character is one half of a surrogate pair") from None
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
        raise Malformed(f"the key {shown(repr(twice))} is given twice")
    return out


def _integer(text: str) -> int:
    if len(text) > 20 or abs(int(text)) > MAX_INTEGER:
        raise Malformed(f"the integer {text[:30]} does not fit 64 bits")
    return int(text)


def _no_float(text: str) -> NoReturn:
    raise Malformed(f"the number {text[:30]} is not allowed here")
