"""Every row of the operator table, on every case it names: generated from the table, so that a new row is tested
by being in it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from row_cases import Built, all_cases, build, grad_cases, params

from sexpgpu.graph.autodiff import gradients
from sexpgpu.graph.core import Value
from sexpgpu.graph.interpreter import evaluate, numpy_dtype
from sexpgpu.ops import OPS, Op
from sexpgpu.ops.types import TensorType, TypeFault

# Draws have no reference of their own: what they are is their expansion onto `philox`, which has one.
WITHOUT_REF = {row.name for row in OPS.values() if row.group == "draws" and row.expand}
ROWS = [pytest.param(row, id=row.name) for row in OPS.values()]
STEP = 1e-5  # central differences in float64: the error is about STEP**2 and 1e-16 / STEP, both near 1e-10
SAMPLE = 24  # elements of one input that are varied; all of an input that has no more


@pytest.mark.parametrize("row", ROWS)
def test_a_row_is_documented_complete_and_has_cases(row: Op) -> None:
    assert row.doc.endswith((".", "?")) and row.group
    assert row.cases, "a row without a case is not tested"
    if row.expand:
        assert row.type is None and row.relax is None and row.vjp is None
    else:
        assert row.type and row.relax
    names = [a.name for a in row.args]
    assert len(set(names)) == len(names)


def raw(built: Built) -> list[Any]:
    """What the row's ``ref`` gives, before anything makes it fit."""
    with np.errstate(all="ignore"):
        out = built.row.ref(np, *built.arrays(), **built.attrs)
    return list(out) if isinstance(out, tuple) else [out]


@pytest.mark.parametrize("row, case", params(c for c in all_cases() if c[1].name not in WITHOUT_REF))
def test_the_type_rule_says_what_the_reference_makes(row: Op, case: Any) -> None:
    built = build(row, case)
    for value, got in zip(built.outputs, raw(built), strict=True):
        assert np.shape(got) == value.type.shape
        assert np.asarray(got).dtype == numpy_dtype(value.type)


@pytest.mark.parametrize(
    "row, case", params(c for c in all_cases() if c[1].expand and c[1].name not in WITHOUT_REF)
)
def test_an_expansion_means_what_the_reference_says(row: Op, case: Any) -> None:
    built = build(row, case)
    wide = {name: x.astype("float64") if x.dtype.kind in "fV" else x for name, x in built.feeds.items()}
    got = evaluate(built.outputs, wide, wide=True)
    attrs = {k: "f64" if k == "dtype" and v in ("f32", "bf16", "f16") else v for k, v in built.attrs.items()}
    with np.errstate(all="ignore"):
        want = row.ref(np, *(wide[x.name] for x in built.inputs), **attrs)
    for g, w in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        # both in float64, in other orders of the same few operations
        np.testing.assert_allclose(g.astype("float64"), np.asarray(w).astype("float64"), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("row, case", params(grad_cases()))
def test_the_gradient_is_that_of_central_differences(row: Op, case: Any) -> None:
    built = build(row, case)
    b = built.builder
    outputs = [y for y in built.outputs if y.type.kind == "float"]
    weights = [b.input(f"w{i}", TensorType(y.type.shape, "f64")) for i, y in enumerate(outputs)]
    loss = total(b, outputs, weights)
    wrt = [x for x in built.inputs if x.type.kind == "float"]
    rng = np.random.default_rng(1)
    feeds = {n: x.astype("float64") if x.dtype.kind in "fV" else x for n, x in built.feeds.items()}
    feeds |= {w.name: rng.uniform(0.5, 1.5, w.type.shape) for w in weights}
    found = evaluate(gradients(b, loss, wrt), feeds, wide=True)
    for x, got in zip(wrt, found, strict=True):
        assert got.shape == x.type.shape
        for place, want in differences(loss, feeds, x, rng):
            assert got[place] == pytest.approx(want, rel=1e-6, abs=1e-7), f"{x.name}{list(place)}"


def total(b: Any, outputs: list[Value], weights: list[Value]) -> Value:
    """A scalar in f64 that every element of every output moves differently."""
    parts = [b("*", b("cast", y, dtype="f64"), w) for y, w in zip(outputs, weights, strict=True)]
    sums = [b("sum", p, axes=tuple(range(p.type.rank)), keepdims=False) if p.type.rank else p for p in parts]
    loss = sums[0]
    for s in sums[1:]:
        loss = b("+", loss, s)
    return loss


def differences(loss: Value, feeds: dict[str, np.ndarray], x: Value, rng: np.random.Generator) -> Any:
    """(place, d loss / d element) for every element, or for SAMPLE of them."""
    chosen = rng.permutation(x.type.size)[:SAMPLE]
    for flat in sorted(chosen):
        place = np.unravel_index(flat, x.type.shape)
        ends = []
        for step in (STEP, -STEP):
            moved = feeds[x.name].copy()
            moved[place] += step
            ends.append(float(evaluate([loss], {**feeds, x.name: moved}, wide=True)[0]))
        yield place, (ends[0] - ends[1]) / (2 * STEP)


NUMBERS = (-7, -2, -1, 0, 1, 2, 3, 5, 70, -2.5, -0.75, 0.25, 0.5, 1.5, 2.5)


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in OPS.values() if row.number])
def test_trace_time_numbers_mean_what_tensors_mean(row: Op) -> None:
    assert row.number
    attrs = dict(row.cases[0][1])
    arity = len(row.cases[0][0])
    compared = 0
    for xs in itertools.product(NUMBERS, repeat=arity):
        try:
            got = row.number(*xs, *attrs.values())
        except (ValueError, ArithmeticError, TypeError):
            continue  # the user is told; a tensor would hold NaN, an infinity or the stated 0
        want, whole = reference(row, xs, attrs)
        assert got == pytest.approx(want, rel=1e-12, abs=1e-15), xs
        assert not whole or isinstance(got, int), f"{xs}: of integers, an integer"
        compared += 1
    assert compared >= len(NUMBERS) // 3


def reference(row: Op, xs: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Any, bool]:
    """The value on scalar tensors, in i64 where all are integers and the row takes those, else in f64; and whether it
    is an integer."""
    dtype = "i64" if all(isinstance(x, int) for x in xs) and takes(row, xs, attrs) else "f64"
    arrays = [np.asarray(x, "int64" if dtype == "i64" else "float64") for x in xs]
    normal = row.normal(tuple(TensorType((), dtype) for _ in xs), attrs) if row.normal else attrs
    with np.errstate(all="ignore"):
        out = np.asarray(row.ref(np, *arrays, **normal))
    return out.item(), out.dtype.kind == "i"


def takes(row: Op, xs: tuple[Any, ...], attrs: dict[str, Any]) -> bool:
    types = tuple(TensorType((), "i64") for _ in xs)
    try:
        normal = row.normal(types, attrs) if row.normal else attrs
        return row.type is None or bool(row.type(*types, **normal))
    except TypeFault:
        return False
