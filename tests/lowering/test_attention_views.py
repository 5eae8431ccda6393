"""Heads are split before attention and joined after it without a kernel that copies, to the same bits."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from lowering_runs import T, compiled, inputs, reference, run_functions, samples

from sexpgpu.graph.autodiff import gradients
from sexpgpu.graph.core import Builder, Graph
from sexpgpu.ops import nn
from sexpgpu.ops.strided_views import Views

pytest.importorskip("tvm", reason="needs the extra `build`")

import numpy as np

import schedules
from lowering import emit
from lowering.math import elementary
from tests.schedules.tensor_programs import V3, runs_here

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")]

BATCH, LENGTH, HEADS, WIDE = 2, 19, 4, 16
WIDTH = HEADS * WIDE


def block(name: str, lead: tuple[int, ...], joined: bool) -> Graph:
    """x [.., length, width] through a product, attention of heads and a product, and the gradients of the weights.
    ``joined``: q, k and v are columns of one product; else a product each."""
    b = Builder()
    x = b.input("x", T("f32", *lead, LENGTH, WIDTH))
    weights = inputs(b, **{n: T("f32", WIDTH, 3 * WIDTH if joined else WIDTH) for n in ("i" if joined else "qkv")})
    (last,) = inputs(b, o=T("f32", WIDTH, WIDTH))
    made = [b("matmul", x, w, ta=False, tb=False) for w in weights]
    axis, rank = len(lead) + 1, len(lead) + 2
    if joined:
        made = [b("slice", made[0], axis=axis, start=n * WIDTH, stop=(n + 1) * WIDTH) for n in range(3)]
    turn = (*range(rank - 2), rank - 1, rank - 2, rank)
    heads = [b("transpose", b("reshape", y, shape=(*lead, LENGTH, HEADS, WIDE)), perm=turn) for y in made]
    seen = b("transpose", nn.attention(b, *heads, causal=True), perm=turn)
    out = b("matmul", b("reshape", seen, shape=(*lead, LENGTH, WIDTH)), last, ta=False, tb=False)
    loss = b("sum", b("square", out), axes=tuple(range(rank)), keepdims=False)
    found = gradients(b, loss, [*weights, last])
    names = ("y", *(f"d{n}" for n in range(len(found))))
    return Graph(name, (x, *weights, last), tuple(zip(names, (out, *found), strict=True)))


@pytest.mark.parametrize(("joined", "lead"), [(True, (BATCH,)), (False, (3, BATCH))], ids=["one product", "stacked"])
def test_no_copies_around_attention(joined: bool, lead: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    graph = block("block", lead, joined)
    aimed = attrs.evolve(schedules.TARGETS[V3], functions=elementary.STEPS)
    scheduler = lambda func, _: schedules.first(func, aimed)  # noqa: E731
    made, given = compiled(graph, scheduler=scheduler), samples(graph)
    got = run_functions(made, {"block": given})["block"]
    moves = [k.kernel for k in made.kernels if "transpose" in k.kernel or "slice" in k.kernel]
    assert moves == [] and {k.rule for k in made.kernels if k.kernel.startswith("attend")} == {"attention"}
    for y, want in zip(got, reference(graph, given), strict=True):
        np.testing.assert_allclose(y, want, rtol=2e-4, atol=2e-4 * np.abs(want).max())  # sums of hundreds of terms
    none = lambda cls, values, outputs: Views(calls=full(values, outputs).calls)  # noqa: E731
    full = Views.of
    monkeypatch.setattr(emit.Views, "of", classmethod(none))
    copied = compiled(graph, scheduler=scheduler)
    assert any("transpose" in k.kernel for k in copied.kernels)
    for a, c in zip(got, run_functions(copied, {"block": given})["block"], strict=True):
        assert a.tobytes() == c.tobytes()


def test_a_view_is_a_tensor_of_its_shape_to_a_program() -> None:
    """The gradients' axes are each in their own order, and the types say so."""
    emitted = emit.emit([block("block", (BATCH,), False)])
    programs: dict[str, Any] = {gv.name_hint: f for gv, f in emitted.functions_items()}
    shapes = [tuple(map(int, p.shape)) for p in programs["attend_grad"].params]
    assert shapes == [(BATCH, LENGTH, HEADS, WIDE)] * 7
