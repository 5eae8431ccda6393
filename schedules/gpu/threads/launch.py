"""Launches: a grid of thread blocks, their shared memory, registers and barriers.

All GPU schedules are made of these. Block and thread indices are one-dimensional (``blockIdx.x``, ``threadIdx.x``);
neighbouring threads get neighbouring points, so that their loads and stores coalesce.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx

from ...tir.builder import Call, Expr, Load, Stmt, i64, loop
from ...tir.let_buffers import bind_in_buffers
from ...tir.rewrite import collect, rewrite

WARP = 32  # threads of a warp, on every NVIDIA GPU
# The next two are chosen, not measured on a GPU. They change speed, never bits.
# Threads of a block by default: 8 warps. Larger blocks wait longer at barriers, smaller blocks share less.
THREADS = 256
# Iterations of a loop that are unrolled together: as many loads of a thread are in flight. More of them take registers.
UNROLL = 8


def launch(blocks: int, threads: int, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
    """``body(block, thread)`` on ``threads`` threads of each of ``blocks`` blocks."""
    return _bound(blocks, "blockIdx.x", lambda b: _bound(threads, "threadIdx.x", lambda t: _as_pragma(body(b, t))))


def _as_pragma(body: Stmt) -> Stmt:
    """``body`` with its unrolled loops left as loops under ``#pragma unroll``.

    TVM would write every iteration into the CUDA text; the CUDA compiler unrolls as well, from a short text.
    """
    return tirx.AttrStmt(i64(0), "pragma_unroll_explicit", tirx.IntImm("bool", 0), bind_in_buffers(body))


def launch_per_point(points: int, body: Callable[[Expr], Stmt], threads: int = THREADS) -> Stmt:
    """``body(point)`` for every point below ``points``, a thread each; neighbours are in neighbouring threads."""
    threads = min(threads, -(-points // WARP) * WARP)
    blocks = -(-points // threads)

    def guarded(block: Expr, thread: Expr) -> Stmt:
        point = block * threads + thread
        stmt = bind_in_buffers(body(point))
        return stmt if blocks * threads == points else tirx.IfThenElse(point < i64(points), stmt, None)

    return launch(blocks, threads, guarded)


def threads_per_block(points: int) -> int:
    """Threads of a block where each thread has long work.

    Few points are cut into blocks of a warp, so that they spread over all multiprocessors; from 2^16 points on
    (chosen, not measured) there are enough blocks of THREADS.
    """
    return THREADS if points >= 2**16 else WARP


def barrier() -> Stmt:
    """``__syncthreads``: what a thread of the block wrote to shared memory before, all its threads see after."""
    return tirx.Evaluate(tirx.op.tvm_storage_sync("shared"))


def shared(extents: list[int], dtype: str, name: str) -> Any:
    """A buffer in the block's shared memory; ``tirx.AllocBuffer`` allocates it, inside the launch."""
    return tirx.decl_buffer([i64(e) for e in extents], dtype, name, scope="shared")


def registers(extents: list[int], dtype: str, name: str) -> Any:
    """A buffer in the thread's registers; ``tirx.AllocBuffer`` allocates it, inside the launch."""
    return tirx.decl_buffer([i64(e) for e in extents], dtype, name, scope="local")


def unrolled(extent: int, body: Callable[[Expr], Stmt], name: str = "u") -> Stmt:
    """A fully unrolled loop, so that its variable can index registers (which have no addresses)."""
    return loop(extent, body, tirx.ForKind.UNROLLED, name)


def _bound(extent: int, tag: str, body: Callable[[Expr], Stmt]) -> Stmt:
    var = tirx.Var(tag.replace(".", "_"), "int64")
    axis = tirx.IterVar(tvm.ir.Range(i64(0), i64(extent)), var, tirx.IterVar.ThreadIndex, tag)
    inner = bind_in_buffers(body(var))
    return tirx.For(var, i64(0), i64(extent), tirx.ForKind.THREAD_BINDING, inner, thread_binding=axis)


def for_device(stmt: Stmt) -> Stmt:
    """A launch in terms of CUDA: buffers without a scope become registers, vectorized and parallel loops become serial
    ones, and LLVM's fused multiply-add becomes C's. Buffers of bool and bfloat16 are the caller's care
    (``bfloat16.as_bits``)."""
    allocated = [node.buffer for node in collect(stmt, tirx.AllocBuffer)]
    unscoped = [b for b in allocated if b.scope() in ("", "global")]
    # A buffer without a scope counts as global memory, which a thread would share with all others.
    local = {b: registers([int(e) for e in b.shape], str(b.dtype), b.name) for b in unscoped}
    return rewrite(stmt, [*_replace_buffers(local), (tirx.For, _serial), (Call, fused_as_c)])


def _replace_buffers(new: dict[Any, Any]) -> list[tuple[Any, Any]]:
    def read(node: Any) -> Any:
        return tirx.BufferLoad(new[node.source], list(node.indices)) if node.source in new else node

    def write(node: Any) -> Any:
        return tirx.BufferStore(new[node.buffer], node.value, list(node.indices)) if node.buffer in new else node

    def allocate(node: Any) -> Any:
        return tirx.AllocBuffer(new[node.buffer]) if node.buffer in new else node

    return [(Load, read), (tirx.BufferStore, write), (tirx.AllocBuffer, allocate)]


def _serial(node: Any) -> Any:
    """A vectorized or parallel loop of a CPU's schedule as a serial loop."""
    if node.kind not in (tirx.ForKind.VECTORIZED, tirx.ForKind.PARALLEL):
        return node
    return tirx.For(node.loop_var, node.min, node.extent, tirx.ForKind.SERIAL, node.body)


def fused_as_c(node: Any) -> Any:
    """LLVM's fused multiply-add as C's ``fma``; other calls as they are."""
    if node.op.name != "tirx.call_llvm_pure_intrin":
        return node
    # Named, since NVRTC runs with -fmad=false: it fuses nothing by itself (``cuda/cubin.py``).
    dtype = str(node.ty.dtype)
    return tirx.call_pure_extern(dtype, {"float32": "fmaf", "float64": "fma"}[dtype], *node.args[-3:])
