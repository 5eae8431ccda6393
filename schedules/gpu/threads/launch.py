"""What every nest of a GPU is made of: one launch of a grid of blocks of threads, with memory of a block's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx

from ...tir.builder import Call, Expr, Load, Stmt, i64, loop
from ...tir.let_buffers import bind_in_buffers
from ...tir.rewrite import collect, rewrite

WARP = 32  # threads that run in step
THREADS = 256  # threads of a block where nothing asks for another number
UNROLL = 8  # turns of a loop that are written out


def launch(blocks: int, threads: int, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
    """``body(block, thread)`` on ``threads`` threads of each of ``blocks`` blocks."""
    return _bound(blocks, "blockIdx.x", lambda b: _bound(threads, "threadIdx.x", lambda t: _as_pragma(body(b, t))))


def _as_pragma(body: Stmt) -> Stmt:
    """``body`` with its unrolled loops left as loops, for the compiler of kernels to write out."""
    return tirx.AttrStmt(i64(0), "pragma_unroll_explicit", tirx.IntImm("bool", 0), bind_in_buffers(body))


def over(points: int, body: Callable[[Expr], Stmt], threads: int = THREADS) -> Stmt:
    """``body(point)`` for every point below ``points``, a thread each; neighbours are in neighbouring threads."""
    threads = min(threads, -(-points // WARP) * WARP)
    blocks = -(-points // threads)

    def one(block: Expr, thread: Expr) -> Stmt:
        flat = block * threads + thread
        done = bind_in_buffers(body(flat))
        return done if blocks * threads == points else tirx.IfThenElse(flat < i64(points), done, None)

    return launch(blocks, threads, one)


def spread(points: int) -> int:
    """Threads of a block where each is long at work: a warp where there are few, so that all processors have some."""
    return THREADS if points >= 2**16 else WARP


def barrier() -> Stmt:
    """All threads of a block wait for each other; what one wrote to shared memory before, all see after."""
    return tirx.Evaluate(tirx.op.tvm_storage_sync("shared"))


def shared(extents: list[int], dtype: str, name: str) -> Any:
    """A buffer of the block's; ``tirx.AllocBuffer`` makes it, inside the launch."""
    return tirx.decl_buffer([i64(e) for e in extents], dtype, name, scope="shared")


def registers(extents: list[int], dtype: str, name: str) -> Any:
    """A buffer of the thread's; ``tirx.AllocBuffer`` makes it, inside the launch."""
    return tirx.decl_buffer([i64(e) for e in extents], dtype, name, scope="local")


def unrolled(extent: int, body: Callable[[Expr], Stmt], name: str = "u") -> Stmt:
    """A loop whose turns are written out by the compiler, so that registers can be named by its variable."""
    return loop(extent, body, tirx.ForKind.UNROLLED, name)


def _bound(extent: int, tag: str, body: Callable[[Expr], Stmt]) -> Stmt:
    var = tirx.Var(tag.replace(".", "_"), "int64")
    axis = tirx.IterVar(tvm.ir.Range(i64(0), i64(extent)), var, tirx.IterVar.ThreadIndex, tag)
    inner = bind_in_buffers(body(var))
    return tirx.For(var, i64(0), i64(extent), tirx.ForKind.THREAD_BINDING, inner, thread_binding=axis)


def for_device(stmt: Stmt) -> Stmt:
    """A launch in words that CUDA has: buffers without a scope are the thread's own, lanes are turns of a loop, a
    fused product is C's. Buffers of bool and bfloat16 are the caller's care (``halves.as_bits``)."""
    made = [node.buffer for node in collect(stmt, tirx.AllocBuffer)]
    own = {b: registers([int(e) for e in b.shape], str(b.dtype), b.name) for b in made if b.scope() in ("", "global")}
    return rewrite(stmt, [*_renamed(own), (tirx.For, _serial), (Call, fused_as_c)])


def _renamed(new: dict[Any, Any]) -> list[tuple[Any, Any]]:
    def read(node: Any) -> Any:
        return tirx.BufferLoad(new[node.source], list(node.indices)) if node.source in new else node

    def write(node: Any) -> Any:
        return tirx.BufferStore(new[node.buffer], node.value, list(node.indices)) if node.buffer in new else node

    def make(node: Any) -> Any:
        return tirx.AllocBuffer(new[node.buffer]) if node.buffer in new else node

    return [(Load, read), (tirx.BufferStore, write), (tirx.AllocBuffer, make)]


def _serial(node: Any) -> Any:
    """Lanes and the threads of a CPU as turns of a loop."""
    if node.kind not in (tirx.ForKind.VECTORIZED, tirx.ForKind.PARALLEL):
        return node
    return tirx.For(node.loop_var, node.min, node.extent, tirx.ForKind.SERIAL, node.body)


def fused_as_c(node: Any) -> Any:
    """LLVM's fused multiply-add as C's; other calls as they are."""
    if node.op.name != "tirx.call_llvm_pure_intrin":
        return node
    dtype = str(node.ty.dtype)
    return tirx.call_pure_extern(dtype, {"float32": "fmaf", "float64": "fma"}[dtype], *node.args[-3:])
