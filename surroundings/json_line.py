"""Lines of strict JSON, for programs that read what a command says."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any


def line(value: Any) -> str:
    """``value`` on one line of strict JSON: every line that is printed or logged is made here. What JSON has no number
    for is the string nan, inf or -inf, and what UTF-8 has no bytes for, as in a path, an escape."""
    with contextlib.suppress(ValueError):  # a number that JSON does not have
        text = json.dumps(value, allow_nan=False)
        if "\\ud" not in text:
            return text
    return json.dumps(_sayable(value), allow_nan=False)


def number(value: float) -> Any:
    """``value`` for JSON: exact; what JSON has no number for is the string nan, inf or -inf."""
    return value if math.isfinite(value) else repr(float(value))


def _sayable(value: Any) -> Any:
    if isinstance(value, float):
        return number(value)
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_sayable(key): _sayable(item) for key, item in value.items()}
    return [_sayable(item) for item in value] if isinstance(value, list | tuple) else value
