"""Attention that reads heads as parts of rows and writes them so has the bits of attention of heads by themselves."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from lowering.kernels.registry import KERNELS
from lowering.kernels.strided_views import Viewed
from sexpgpu.ops.affine_index import Affine
from sexpgpu.ops.strided_views import View
from sexpgpu.ops.types import TensorType
from tests.cuda_on_cpu import emulator

from ..tensor_programs import V3, program, runs_here
from ..tensor_programs import build as build_for_cpu
from .cpu_and_cuda import GPU, bits, scheduled
from .half_precision import DTYPES

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")]

BATCH, LENGTH, HEADS, WIDE = 2, 21, 3, 16
TURN = (0, 2, 1, 3)
OWN = (BATCH, HEADS, LENGTH, WIDE)


def part(n: int, of: int) -> View:
    """Heads [batch, head, place, width] that are part ``n`` of a row's ``of``."""
    head, place, inner = Affine.axis(1).plus(n * HEADS), Affine.axis(2), Affine.axis(3)
    return View(None, OWN, (BATCH, LENGTH, of * HEADS, WIDE), (Affine.axis(0), place, head, inner))


def programs(gradient: bool, dtype: str) -> tuple[Any, Any]:
    """On tensors of their own, and on one [batch, place, parts, width] that is given once for each of them."""
    name, count = ("attend-grad", 4) if gradient else ("attend", 3)
    out = TensorType(OWN, "f32" if dtype == "float32" else "bf16")
    told: Any = {"causal": True} if gradient else {"causal": True, "out": out}
    plain = program(partial(KERNELS[name], **told), *((OWN, dtype),) * count)
    views = [part(n, count) for n in range(count)]
    order = {"orders": (TURN,) * 3} if gradient else {"order": TURN}

    def strided(*tensors: Any) -> Any:
        return KERNELS[name](*map(Viewed, tensors, views), **told, **order)

    return plain, program(strided, *((views[0].lies, dtype),) * count)


@pytest.mark.parametrize(("dtype", "rule"), [("float32", "attention"), ("bfloat16", "tensor-core")])
@pytest.mark.parametrize("gradient", [False, True], ids=["result", "gradients"])
def test_the_bits_of_heads_by_themselves(gradient: bool, dtype: str, rule: str) -> None:
    plain, strided = programs(gradient, dtype)
    parts = len(plain.params) - (3 if gradient else 1)
    shape = (BATCH, LENGTH, parts, HEADS, WIDE)
    rows = np.random.default_rng(0).standard_normal(shape).astype(DTYPES.get(dtype, dtype))
    given = [np.ascontiguousarray(rows[:, :, n].transpose(TURN)) for n in range(parts)]
    joined = [rows.reshape(BATCH, LENGTH, parts * HEADS, WIDE)] * parts
    want = emulator.compile(scheduled(plain, rule), GPU).every_order(*given)[parts:]
    got = emulator.compile(scheduled(strided, rule), GPU).every_order(*joined)[parts:]
    on_the_cpu = build_for_cpu(strided).run(*joined) if dtype == "float32" else want
    for g, w, c in zip(got, want, on_the_cpu, strict=True):
        np.testing.assert_array_equal(bits(g), bits(w.transpose(TURN)))
        np.testing.assert_array_equal(bits(g), bits(c if dtype == "float32" else c.transpose(TURN)))
