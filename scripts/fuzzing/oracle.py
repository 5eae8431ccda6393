"""What a program must compute, and how far a right answer may be from it.

The bound is found by Monte Carlo arithmetic (Parker, 1997): the graph is run in float64 once as it is, and RUNS times
with each operator's operands and result off by a random part of what rounding to their dtype may cost there. What those
runs differ by, times ROOM, is what the compiled program may differ by. So a bound knows of cancellation and of badly
conditioned operators, follows each element, and is 0 where nothing is rounded: sums and products of small whole
numbers, and everything that is moved or chosen. An element on which the runs disagree in kind (finite or not, another
integer) hangs on a rounding, and is left out; the script counts those that are ``sure``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import frozen

from sexpgpu.graph.core import Graph, Value
from sexpgpu.graph.interpreter import compute, numpy_dtype, settle

from .programs import words

RUNS, ROOM = 8, 8.0
UNIT = {"f32": 2.0**-24, "bf16": 2.0**-9, "f16": 2.0**-11, "f64": 2.0**-53}  # half a unit in the last place, relative
WHOLE = {"f32": 2.0**24, "bf16": 2.0**8, "f16": 2.0**11, "f64": 2.0**53}  # up to here integers are exact
LARGEST = {"f32": 3.4028235e38, "bf16": 3.3895314e38, "f16": 65504.0, "f64": math.inf}
SMALLEST = 2.0**-126  # below, exp and sigmoid are 0
FUNCTION = 4.0  # units that an operator may be off: the worst function is off by 2.9 (docs/lowering.md)
# Operators that move or choose elements, and those whose result is a number of their dtype anyway.
EXACT = frozenset(
    words("""
reshape transpose broadcast concat slice pad flip gather take-along where min max neg abs sign floor ceil round mod
stop-gradient barrier write-window read-window reduce-max reduce-min
""")
)
GIVEN = ("full", "constant", "iota")  # numbers that are rounded when the program is written
LINEAR = ("sum", "matmul", "cumsum", "scatter-add", "scatter-rows", "scatter-along")
WHOLES = ("+", "-", "*", "cast", *LINEAR)  # of small integers they are integers
ROWS = frozenset(
    words("""
softmax log-softmax normalize rms-normalize attend softmax-grad log-softmax-grad normalize-grad rms-normalize-grad
attend-grad-q attend-grad-k attend-grad-v prod
""")
)


@frozen(eq=False)
class Expected:
    """``value`` in float64, or as it is; it holds where ``sure``, up to ``bound``."""

    value: np.ndarray
    bound: np.ndarray
    sure: np.ndarray

    def wrong(self, got: np.ndarray) -> np.ndarray:
        """Where ``got`` is not what it must be."""
        if self.value.dtype.kind != "f":
            return self.sure & (got != self.value)
        got = got.astype("float64")
        finite = np.isfinite(self.value)
        with np.errstate(all="ignore"):
            far = ~(np.abs(got - self.value) <= self.bound)
        other = (got != self.value) & ~(np.isnan(got) & np.isnan(self.value))
        return self.sure & np.where(finite, far, other)


def expected(graph: Graph, feeds: Mapping[str, np.ndarray]) -> list[Expected]:
    """Of each of the graph's outputs."""
    exact = _run(graph, feeds, None)
    runs = [_run(graph, feeds, np.random.default_rng(n)) for n in range(RUNS)]
    return [_joined(y, [run[n] for run in runs]) for n, y in enumerate(exact)]


def _joined(exact: np.ndarray, runs: list[np.ndarray]) -> Expected:
    if exact.dtype.kind != "f":
        return Expected(exact, np.zeros(exact.shape), np.all([run == exact for run in runs], axis=0))
    finite = np.isfinite(exact)
    with np.errstate(all="ignore"):
        off = np.max([np.abs(run - exact) for run in runs], axis=0)
        alike = [np.where(finite, np.isfinite(run), (run == exact) | (np.isnan(run) & np.isnan(exact))) for run in runs]
    return Expected(exact, ROOM * np.nan_to_num(off) + SMALLEST, np.all(alike, axis=0))


def _run(graph: Graph, feeds: Mapping[str, np.ndarray], rng: np.random.Generator | None) -> list[np.ndarray]:
    live: dict[Value, np.ndarray] = {}
    with np.errstate(all="ignore"):
        for v in graph.values():
            live[v] = _value(v, live, feeds, rng)
    return [live[y] for _, y in graph.outputs]


def _value(v: Value, live: dict[Value, np.ndarray], feeds: Mapping[str, np.ndarray], rng: Any) -> np.ndarray:
    """One value, its roundings by ``rng``."""
    within: Any = 0.0
    if rng is not None and v.op in ROWS:
        live = {**live, **_moved(v, live, rng)}
        within = FUNCTION * _within(v, live)
    y = settle(compute(v, live, feeds, True), v, True)
    if v.type.kind != "float" or not v.op:
        return y
    if v.op in GIVEN:
        return y.astype(numpy_dtype(v.type)).astype("float64")
    y = y + within
    y = np.where(np.abs(y) > LARGEST[v.type.dtype], np.copysign(np.inf, y), y)
    if rng is None or v.op in EXACT:
        return y
    y = np.where((np.abs(y) < SMALLEST) & (rng.random(y.shape) < 0.5), 0.0, y)
    return _shaken(rng, y, _rounding(v, [live[a] for a in v.args], y))


def _moved(v: Value, live: dict[Value, np.ndarray], rng: Any) -> dict[Value, np.ndarray]:
    """The operands of an operator on rows, as far off as its sums may be."""
    terms = math.sqrt(max(a.type.size for a in v.args) / _results(v))
    amount = (FUNCTION + terms) * UNIT["f32"]
    return {a: _shaken(rng, live[a], amount * np.abs(live[a])) for a in v.args if a.type.kind == "float"}


def _within(v: Value, live: dict[Value, np.ndarray]) -> np.ndarray:
    """What float32 makes of an operator on rows, less what it is: its own roundings, of which there are many."""
    narrow = {a: np.asarray(live[a], "float32") if a.type.kind == "float" else live[a] for a in v.args}
    wide = {a: x.astype("float64") if a.type.kind == "float" else x for a, x in narrow.items()}
    off = np.asarray(compute(v, narrow, {}, False), "float64") - compute(v, wide, {}, True)
    return np.nan_to_num(off, nan=0.0, posinf=0.0, neginf=0.0)


def _results(v: Value) -> int:
    """Rows of an operator on rows."""
    over = v.attrs.get("axes", (v.attrs["axis"],) if "axis" in v.attrs else (-1,))
    return max(1, v.args[0].type.size // math.prod(v.args[0].type.shape[a] for a in over))


def _shaken(rng: Any, x: np.ndarray, amount: np.ndarray) -> np.ndarray:
    """``x`` off by half of ``amount`` or more, and at most by it, either way."""
    part = rng.uniform(0.5, 1.0, x.shape) * rng.choice((-1.0, 1.0), x.shape)
    return np.asarray(np.where(np.isfinite(x) & (amount > 0), x + part * amount, x))


def _rounding(v: Value, args: list[np.ndarray], y: np.ndarray) -> np.ndarray:
    """How far rounding may take each element of ``y``, at least about."""
    sizes, terms = np.abs(y), 1.0
    if v.op in LINEAR:
        plain = [np.abs(x) if a.type.kind == "float" else x for a, x in zip(v.args, args, strict=True)]
        sizes = settle(compute(v, dict(zip(v.args, plain, strict=True)), {}, True), v, True)
        terms = _terms(v)
    small = sizes.max(initial=0.0) <= WHOLE[v.type.dtype]
    if v.op in WHOLES and small and all(np.array_equal(x, np.rint(x)) for x in args if x.dtype.kind == "f"):
        return np.zeros(y.shape)
    inner = UNIT["f64" if v.type.dtype == "f64" else "f32"]
    return FUNCTION * (UNIT[v.type.dtype] * np.abs(y) + inner * min(terms, 4 * math.sqrt(terms)) * sizes)


def _terms(v: Value) -> int:
    """Terms of one sum, one after another: errors of random sign grow as the root."""
    first, second = v.args[0].type, v.args[-1].type
    if v.op == "matmul":
        return first.shape[-2 if v.attrs["ta"] else -1]
    if v.op == "sum":
        return first.size // v.type.size
    if v.op in ("cumsum", "scatter-along"):
        return first.shape[v.attrs["axis"]]
    return v.args[1].type.size if v.op == "scatter-add" else second.size
