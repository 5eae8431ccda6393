"""Attention as one kernel, and its gradient, have the bits of attention as several."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
from lowering_runs import T, compiled, inputs, run_functions

from sexpgpu.graph.autodiff import gradients
from sexpgpu.graph.core import Builder, Graph, Value
from sexpgpu.ops import nn

pytest.importorskip("tvm", reason="needs the extra `build`")

import schedules
from lowering.math import elementary
from tests.schedules.tensor_programs import V3, numbers, runs_here

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")]

HEADS, LENGTH, WIDE = 4, 190, 8


def in_parts(b: Builder, q: Value, k: Value, v: Value, mask: Value | None = None, causal: bool = False) -> Value:
    """Attention as a product, a softmax and a product."""
    seen = mask
    if causal:
        row, column = (b("iota", shape=(LENGTH, LENGTH), axis=axis, dtype="i32") for axis in (0, 1))
        seen = b("<=", column, row)
    scores = b("*", b("matmul", q, k, tb=True), b.const(1 / math.sqrt(WIDE), "f32"))
    scores = b("where", seen, scores, b.const(nn.MASKED_SCORE, "f32")) if seen else scores
    weights = b("softmax", scores, axis=-1)
    return b("matmul", b("where", mask, weights, b.const(0.0, "f32")) if mask else weights, v)


def attended(name: str, made: Callable[..., Value], causal: bool, masked: bool) -> Graph:
    """What ``made`` makes of q, k and v, and the gradients of the sum of it times w."""
    b = Builder()
    shape = (2, HEADS, LENGTH, WIDE)
    q, k, v, w = inputs(b, **{n: T("f32", *shape) for n in "qkvw"})
    mask = inputs(b, mask=T("bool", 2, 1, 1, LENGTH)) if masked else []
    y = made(b, q, k, v, *mask, causal=causal)
    loss = b("sum", b("*", y, w), axes=(0, 1, 2, 3), keepdims=False)
    found = gradients(b, loss, [q, k, v])
    return Graph(name, (q, k, v, w, *mask), tuple(zip("yabc", (y, *found), strict=True)))


@pytest.mark.parametrize(("causal", "masked"), [(True, False), (False, True)])
def test_one_kernel_or_several(causal: bool, masked: bool) -> None:
    one = attended("one", nn.attention, causal, masked)
    several = attended("several", in_parts, causal, masked)
    aimed = attrs.evolve(schedules.TARGETS[V3], functions=elementary.STEPS)
    made = compiled(one, several, scheduler=lambda func, _: schedules.first(func, aimed))
    assert any(kernel.kernel.startswith("attend") for kernel in made.kernels)
    given: list[Any] = [numbers(2, HEADS, LENGTH, WIDE, seed=s) for s in range(4)]
    given += [np.random.default_rng(5).random((2, 1, 1, LENGTH)) < 0.7] if masked else []
    results = run_functions(made, {"one": given, "several": given})
    for a, b in zip(results["one"], results["several"], strict=True):
        assert a.tobytes() == b.tobytes()
