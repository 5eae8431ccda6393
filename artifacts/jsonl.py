"""Records from lines of JSON, one object a line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import IO, Any

import numpy as np

from . import canonical, tensors
from .errors import DATA_FIELD, DATA_LINE, DATA_RANGE, RunError
from .manifest import Field

MAX_LINE, MAX_DEPTH = 16 * 2**20, 64
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_OTHER = re.compile(rb"[^\[\]{}]+")


def read_lines(file: IO[bytes], where: str, fields: Sequence[Field]) -> dict[str, np.ndarray]:
    """field -> array [lines, ...]. A blank line is not a record; line numbers in messages count from 1."""
    columns: dict[str, list[np.ndarray]] = {field.name: [] for field in fields}
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise RunError(DATA_LINE, f"the line is longer than {MAX_LINE} bytes", f"{where}:{number}")
        if line.strip():
            record = _parse(line, f"{where}:{number}")
            for field in fields:
                columns[field.name].append(_value(record, field, f"{where}:{number}"))
    return {field.name: _stack(columns[field.name], field) for field in fields}


def _stack(values: list[np.ndarray], field: Field) -> np.ndarray:
    return np.stack(values) if values else np.empty((0, *field.shape), tensors.dtype(field.dtype))


def _parse(line: bytes, where: str) -> dict[str, Any]:
    if _depth(line) > MAX_DEPTH:
        raise RunError(DATA_LINE, f"it nests deeper than {MAX_DEPTH}", where)
    try:
        record = canonical.loads(line, floats=True)
    except canonical.Malformed as error:
        raise RunError(DATA_LINE, str(error), where) from None
    if not isinstance(record, dict):
        raise RunError(DATA_LINE, "it is not a JSON object", where)
    return record


def _depth(line: bytes) -> int:
    """The deepest nesting of brackets outside strings."""
    deepest = depth = 0
    for byte in _OTHER.sub(b"", _STRING.sub(b"", line)):
        depth += 1 if byte in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _value(record: dict[str, Any], field: Field, where: str) -> np.ndarray:
    """The field of one record, its shape and every number checked against the dtype."""
    if field.name not in record:
        raise RunError(
            DATA_FIELD, f"there is no field {field.name}", where, f"it has {', '.join(sorted(record)[:10]) or 'none'}"
        )
    flat: list[Any] = []
    if not _flatten(record[field.name], field.shape, flat):
        want = " ".join(map(str, field.shape))
        raise RunError(DATA_FIELD, f"{field.name} does not have the shape [{want}] of numbers", where)
    for number in flat:
        _check_number(number, field, where)
    return np.array(flat, tensors.dtype(field.dtype)).reshape(field.shape)


def _flatten(value: Any, shape: tuple[int, ...], out: list[Any]) -> bool:
    """Append the numbers of ``value`` to ``out``; whether it had ``shape``."""
    if not shape:
        out.append(value)
        return type(value) in (int, float, bool)
    return type(value) is list and len(value) == shape[0] and all(_flatten(v, shape[1:], out) for v in value)


def _check_number(number: Any, field: Field, where: str) -> None:
    kind = "bool" if field.dtype == "bool" else "float" if field.dtype in tensors.FLOATS else "integer"
    good = {"bool": (bool,), "integer": (int,), "float": (int, float)}[kind]
    if type(number) not in good:
        raise RunError(DATA_FIELD, f"{field.name} holds {number!r}, which is not {field.dtype}", where)
    if kind == "integer":
        limits = np.iinfo(tensors.dtype(field.dtype))
        if not limits.min <= number <= limits.max:
            raise RunError(DATA_RANGE, f"{field.name} holds {number}, which does not fit {field.dtype}", where)
    if kind == "float" and not _fits(number, field.dtype):
        raise RunError(DATA_RANGE, f"{field.name} holds {number}, which does not fit {field.dtype}", where)


def _fits(number: float, dtype: str) -> bool:
    """Whether ``number`` is finite in ``dtype``."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.array(number, np.float64).astype(tensors.dtype(dtype)).astype(np.float64)))
