"""Kernels that look where they store into memory of their own: on the stack, what is written past its end is seen
nowhere else."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import tvm
from tvm import s_tir, tirx
from tvm.ir import StringImm

from lowering.codegen import objects
from schedules.tir.rewrite import collect, rewrite

OUTSIDE = "stores outside of a buffer of its own"


@contextmanager
def checked() -> Iterator[None]:
    """While TVM compiles: a store outside of a kernel's own buffer, as large as TVM's passes left it, is an error."""
    last = s_tir.transform.RewriteUnsafeSelect  # of the passes after which no buffer and no index changes

    def with_checks() -> Any:
        return tvm.ir.transform.Sequential([last(), tvm.ir.transform.module_pass(_module, opt_level=0)])

    asserts = mock.patch.dict(objects.CONFIG, {"tirx.disable_assert": False})
    with asserts, mock.patch.object(s_tir.transform, "RewriteUnsafeSelect", with_checks):
        yield


def _module(module: tvm.IRModule, _: Any) -> tvm.IRModule:
    module = module.clone()
    for gv, func in module.functions_items():
        if isinstance(func, tirx.PrimFunc):
            module.update_func(gv, func.with_body(_checked(func.body)))
    return module


def _checked(body: Any) -> Any:
    own = [alloc.buffer for alloc in collect(body, tirx.AllocBuffer)]

    def store(node: Any) -> Any:
        if not any(node.buffer.same_as(buffer) for buffer in own):
            return node
        (index,), (extent,) = node.indices, node.buffer.shape
        inside = [tirx.And(place >= 0, place < extent) for place in _places(index)]
        error = StringImm("RuntimeError")
        return tirx.SeqStmt([tirx.AssertStmt(functools.reduce(tirx.And, inside), error, [StringImm(OUTSIDE)]), node])

    return rewrite(body, [(tirx.BufferStore, store)])


def _places(index: Any) -> list[Any]:
    """Those among which all are that a store writes."""
    if isinstance(index, tirx.Ramp):
        return [index.base, index.base + index.stride * (index.lanes - 1)]
    if index.ty.is_scalar():
        return [index]
    lanes = int(str(index.ty.dtype).rpartition("x")[2])
    return [tirx.Shuffle([index], [tirx.IntImm("int32", lane)]) for lane in range(lanes)]
