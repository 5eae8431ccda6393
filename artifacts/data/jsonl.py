"""Reads records from JSON lines, one object a line: many lines at a time, and one by one to find an error.

Values that no field reads are not checked, as long as the line is JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import IO, Any

import numpy as np
from attrs import frozen

from ..base import safetensors_io
from ..base.canonical_json import BOM
from ..base.errors import DATA_FIELD, DATA_LINE, DATA_RANGE, DATA_READ, RunError, shown
from ..format.manifest import Field

CHUNK = 2**18  # bytes of lines decoded together
MAX_LINE = 16 * 2**20
# Bytes of Python's objects for a byte of text, at most: an object with a few numbers takes 35.
OBJECT_BYTES_PER_BYTE = 40
_SPACE = " \t\r\n"
_ESCAPED_KEY = re.compile(rf'\\[u/][^"\\]*"[{_SPACE}]*:')  # from its last escape on


@frozen
class _Unrepresentable:
    """Placeholder for a number that no field can hold: an integer beyond 64 bits, NaN, an infinity."""

    text: str


class _DuplicateKeys(dict):
    """An object that gives the keys ``duplicates`` more than once."""

    duplicates: frozenset[str] = frozenset()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) == len(pairs):
        return out
    keys = [key for key, _ in pairs]
    with_duplicates = _DuplicateKeys(out)
    with_duplicates.duplicates = frozenset(key for key in out if keys.count(key) > 1)
    return with_duplicates


def _integer(text: str) -> int | _Unrepresentable:
    return int(text) if len(text) <= 20 and -(2**63) <= int(text) < 2**63 else _Unrepresentable(text)


_fast_decode = json.JSONDecoder().raw_decode
_strict_decode = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_constant=_Unrepresentable
).raw_decode


def max_records(lines: int, size: int, fields: Sequence[Field]) -> int:
    """Upper bound of the number of records in ``size`` bytes with ``lines`` newlines."""
    shortest = 1 + sum(len(field.name) + 4 + _min_length(field.shape) for field in fields)
    return min(lines + 1, size // shortest + 1)


def _min_length(shape: tuple[int, ...]) -> int:
    """Characters of a value of ``shape``, its brackets and commas counted."""
    return 1 + shape[0] * (1 + _min_length(shape[1:])) if shape else 1


def read_lines(
    file: IO[bytes], where: str, fields: Sequence[Field], limit: int, tick: Callable[[int], None]
) -> dict[str, np.ndarray]:
    """field -> array [lines, ...]. A blank line is not a record; line numbers in messages count from 1.

    limit: records that there can be; room for them is set aside, and taken as it is filled
    tick: is told of bytes as they are read
    """
    out = {f.name: np.empty((limit, *f.shape), safetensors_io.dtype(f.dtype)) for f in fields}
    at = 0
    for number, text in _chunks(file, where):
        arrays = _arrays(text, fields)
        if arrays is None:
            raise _first_error(text, number, where, fields)
        count = len(next(iter(arrays.values())))
        if at + count > limit:
            raise RunError(DATA_READ, "the file grew while it was read", where)
        for name, array in arrays.items():
            out[name][at : at + count] = array
        at += count
        tick(len(text))
    return {name: array[:at] for name, array in out.items()}


def _chunks(file: IO[bytes], where: str) -> Iterator[tuple[int, bytes]]:
    """(number of the first line, bytes) of chunks of complete lines, without a byte order mark at the start."""
    number, mark = 1, file.read(len(BOM))
    if mark[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise RunError(DATA_LINE, "the text is UTF-16", f"{where}:1", "save it as UTF-8")
    leftover = b"" if mark == BOM else mark
    while text := leftover + file.read(CHUNK):
        leftover = b""
        text += b"" if text.endswith(b"\n") else file.readline(MAX_LINE + 1)
        last = text.rfind(b"\n", 0, len(text) - 1) + 1
        if len(text) - last > MAX_LINE:
            before = text.count(b"\n", 0, last)
            raise RunError(DATA_LINE, f"the line is longer than {MAX_LINE} bytes", f"{where}:{number + before}")
        yield number, text
        number += text.count(b"\n")


def _arrays(text: bytes, fields: Sequence[Field]) -> dict[str, np.ndarray] | None:
    """field -> array of the lines in ``text``; None where one of them is not a record."""
    records = _records(text, fields)
    if records is None:
        return None
    arrays = {field.name: _column(records, field) for field in fields}
    return None if any(array is None for array in arrays.values()) else arrays  # type: ignore[return-value]


def _records(data: bytes, fields: Sequence[Field]) -> list[dict[str, Any]] | None:
    """The objects of all lines; None where a line is not one, or gives a field twice."""
    try:
        text = data.decode("utf-8")
        lines = [line for raw in text.split("\n") if (line := raw.strip(_SPACE))]
        records = _decoded(lines, _fast_decode)
        if records is None or not _fields_given_once(text, fields, len(lines)):
            records = _decoded(lines, _strict_decode)
    except (ValueError, RecursionError):
        return None
    names = {field.name for field in fields}
    if records is None or any(type(each) is _DuplicateKeys and each.duplicates & names for each in records):
        return None
    return records


def _decoded(lines: list[str], decode: Callable[[str], tuple[Any, int]]) -> list[dict[str, Any]] | None:
    """The objects of ``lines``, by ``decode``; None where it finds something else, or something after one."""
    try:
        pairs = list(map(decode, lines))
    except ValueError:  # not JSON, or an integer that is too long for Python
        if decode is _strict_decode:
            raise
        return None
    no_trailing_text = all(end == len(line) for (_, end), line in zip(pairs, lines, strict=True))
    return (
        [value for value, _ in pairs]
        if no_trailing_text and {type(value) for value, _ in pairs} <= {dict, _DuplicateKeys}
        else None
    )


def _fields_given_once(text: str, fields: Sequence[Field], count: int) -> bool:
    """Whether each of ``count`` lines that have every field gives it once, for sure: where no key is written with an
    escape, a field's name in quotes before a colon is a key, of a line's object or of one within."""
    keys = (re.compile(f'"{re.escape(field.name)}"[{_SPACE}]*:') for field in fields)
    return not _ESCAPED_KEY.search(text) and all(len(key.findall(text)) == count for key in keys)


def _column(records: list[dict[str, Any]], field: Field) -> np.ndarray | None:
    """The field of all ``records``; None where one is absent, of another shape or kind, or does not fit."""
    try:
        flat: list[Any] | None = [record[field.name] for record in records]
    except KeyError:
        return None
    for length in field.shape:
        if set(map(type, flat)) - {list} or set(map(len, flat)) - {length}:
            return None
        flat = list(chain.from_iterable(flat))
    array = _numbers(flat, field)
    return None if array is None else array.reshape(len(records), *field.shape)


def _kinds(field: Field) -> tuple[type, ...]:
    """The Python types that a number of the field may have in JSON."""
    return (bool,) if field.dtype == "bool" else (int, float) if field.dtype in safetensors_io.FLOATS else (int,)


def _numbers(flat: list[Any], field: Field) -> np.ndarray | None:
    """``flat`` in the field's dtype; None unless each fits."""
    types, kind = set(map(type, flat)), safetensors_io.dtype(field.dtype)
    if types - set(_kinds(field)):
        return None
    try:
        if field.dtype == "bool":
            return np.array(flat, kind)
        if int in types:
            integers_only = flat if len(types) == 1 else [number for number in flat if type(number) is int]
            integers = np.array(integers_only, np.int64)
            if field.dtype not in safetensors_io.FLOATS:
                limits = np.iinfo(kind)
                fits = integers.min() >= limits.min and integers.max() <= limits.max
                return integers.astype(kind) if fits else None
        with np.errstate(over="ignore"):
            array = np.array(flat, kind)
            return array if np.isfinite(array.astype(np.float32 if array.itemsize < 4 else kind)).all() else None
    except OverflowError:
        return None


def _first_error(text: bytes, number: int, where: str, fields: Sequence[Field]) -> RunError:
    """The error of the first line of ``text`` that is no record; ``number``: line number of the first line."""
    for n, line in enumerate(text.split(b"\n"), number):
        if line.strip(_SPACE.encode()):
            try:
                record = _parse(line, f"{where}:{n}")
                for field in fields:
                    _check(record, field, f"{where}:{n}")
            except RunError as error:
                return error
    raise AssertionError("lines that are refused together pass one by one")


def _parse(line: bytes, where: str) -> dict[str, Any]:
    if line.startswith(BOM):
        raise RunError(DATA_LINE, "a byte order mark (U+FEFF) stands before the line", where, "remove it")
    try:
        text = line.decode("utf-8").strip(_SPACE)
        record, end = _strict_decode(text)
    except RecursionError:
        raise RunError(DATA_LINE, "the JSON nests too deeply", where) from None
    except UnicodeDecodeError as error:
        raise RunError(DATA_LINE, f"not UTF-8 at byte {error.start}", where) from None
    except json.JSONDecodeError as error:
        raise RunError(DATA_LINE, f"not JSON: {error.msg} at character {error.pos}", where) from None
    if end != len(text):
        raise RunError(DATA_LINE, f"not JSON: there is more after the value, at character {end}", where)
    if not isinstance(record, dict):
        raise RunError(DATA_LINE, "it is not a JSON object", where)
    return record


def _check(record: dict[str, Any], field: Field, where: str) -> None:
    """RunError unless the field of one record has its shape, and each number fits the dtype."""
    if field.name not in record:
        have = f"it has {shown(', '.join(sorted(record)[:10]), 100) or 'none'}"
        raise RunError(DATA_FIELD, f"there is no field {field.name}", where, have)
    if isinstance(record, _DuplicateKeys) and field.name in record.duplicates:
        raise RunError(DATA_LINE, f"the key {field.name} is given twice", where)
    flat: list[Any] = []
    if not _flatten(record[field.name], field.shape, flat):
        what = "is not a number"
        if field.shape:
            what = f"does not have the shape [{' '.join(map(str, field.shape))}] of numbers"
        raise RunError(DATA_FIELD, f"{field.name} {what}", where)
    for number in flat:
        _check_number(number, field, where)


def _flatten(value: Any, shape: tuple[int, ...], out: list[Any]) -> bool:
    """Append the numbers of ``value`` to ``out``; whether it had ``shape``."""
    if not shape:
        out.append(value)
        return type(value) in (int, float, bool, _Unrepresentable)
    return type(value) is list and len(value) == shape[0] and all(_flatten(v, shape[1:], out) for v in value)


def _check_number(number: Any, field: Field, where: str) -> None:
    text = shown(number.text if type(number) is _Unrepresentable else number)
    if type(number) is _Unrepresentable or number in (float("inf"), float("-inf")):
        short = "is not finite" if type(number) is float or number.text[-1].isalpha() else "does not fit 64 bits"
        raise RunError(DATA_LINE, f"{field.name} holds {text}, which {short}", where)
    if type(number) not in _kinds(field):
        raise RunError(DATA_FIELD, f"{field.name} holds {text}, which is not {field.dtype}", where)
    if _numbers([number], field) is None:
        raise RunError(DATA_RANGE, f"{field.name} holds {text}, which does not fit {field.dtype}", where)
