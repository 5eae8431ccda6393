"""Runs a graph in NumPy by the rows' ``ref`` column: the meaning of every phase, and the oracle of the tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..ops import OPS
from ..ops.types import DTYPES, TensorType
from .core import Graph, Value, order

NARROW = ("f32", "bf16", "f16")


def evaluate(outputs: Sequence[Value], feeds: Mapping[str, np.ndarray], wide: bool = False) -> list[np.ndarray]:
    """The arrays of ``outputs``, given each input's array by name.

    Results have the graph's shapes and dtypes. wide: f32, bf16 and f16 values are computed and returned as float64;
    draws and integers stay as they are. Overflow, NaN and division by zero give what IEEE 754 says, silently.
    """
    uses = Counter(a for v in order(outputs) for a in v.args)
    uses.update(outputs)
    live: dict[Value, np.ndarray] = {}
    with np.errstate(all="ignore"):
        for v in order(outputs):
            live[v] = settle(compute(v, live, feeds, wide), v, wide)
            for a in v.args:
                uses[a] -= 1
                if not uses[a]:
                    del live[a]
    return [live[v] for v in outputs]


def run(graph: Graph, inputs: Sequence[np.ndarray], wide: bool = False) -> list[np.ndarray]:
    """The arrays of the graph's outputs, given one array an input, both in the graph's order."""
    feeds = {v.name: x for v, x in zip(graph.inputs, inputs, strict=True)}
    return evaluate([v for _, v in graph.outputs], feeds, wide)


def compute(v: Value, live: Mapping[Value, np.ndarray], feeds: Mapping[str, np.ndarray], wide: bool) -> Any:
    """What the row's ``ref`` makes of ``v``, or the array that is fed for an input; ``settle`` gives it its dtype."""
    if not v.op:
        return feeds[v.name]
    attrs = widened(v.attrs) if wide else v.attrs
    return OPS[v.op].ref(np, *(live[a] for a in v.args), **attrs)


def widened(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """A row that is told a dtype (``cast``, ``full``) makes float64 where it would make a narrower float."""
    return {k: "f64" if k == "dtype" and d in NARROW else d for k, d in attrs.items()}


def settle(x: Any, v: Value, wide: bool) -> np.ndarray:
    """``x`` as an array of the value's dtype; a wrong shape is our bug."""
    x = np.asarray(x)
    assert x.shape == v.type.shape, f"{v.op or v.name} gave {x.shape}, not {v.type}"
    return np.asarray(x, dtype=numpy_dtype(v.type, wide))


def numpy_dtype(t: TensorType, wide: bool = False) -> np.dtype:
    """The dtype of ``t``'s arrays; bf16 is ml_dtypes' and is looked for only where it is used."""
    if wide and t.dtype in NARROW:
        return np.dtype("float64")
    if t.dtype == "bf16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(DTYPES[t.dtype].numpy)
