"""What a tensor program reads and writes: alias analysis on the regions of its blocks.

Only for programs before scheduling, where a block's regions are those of its computation.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from tvm import ir, tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import IterVar
from tvm_ffi import structural_equal

Region = tuple[Var, tuple[ir.Range, ...]]  # a buffer and a range of each axis


def blocks(func: tirx.PrimFunc) -> list[SBlock]:
    """The innermost blocks, in program order."""
    return list(_leaves(func.body))


def _leaves(stmt: tirx.Stmt) -> Iterator[SBlock]:
    if isinstance(stmt, SBlockRealize):
        inner = list(_leaves(stmt.block.body))
        yield from inner or [stmt.block]
    elif isinstance(stmt, tirx.SeqStmt):
        for part in stmt.seq:
            yield from _leaves(part)
    elif isinstance(stmt, tirx.For):
        yield from _leaves(stmt.body)
    elif isinstance(stmt, tirx.IfThenElse):
        yield from _leaves(stmt.then_case)
        if stmt.else_case is not None:
            yield from _leaves(stmt.else_case)


def regions(accesses: list) -> list[Region]:
    """(buffer, ranges) of each access, in order."""
    return [(access.source, tuple(access.region)) for access in accesses]


def outputs(func: tirx.PrimFunc) -> list[int]:
    """The positions of the parameters that any block writes."""
    params, accesses = _accesses(func)
    written = {buffer for _, writes in accesses for buffer in writes}
    return [n for n, param in enumerate(params) if param in written]


def is_copy(func: tirx.PrimFunc) -> bool:
    """Whether the program only copies its first parameter to its second, element by element."""
    inner_blocks = blocks(func)
    if len(func.params) != 2 or len(inner_blocks) != 1:
        return False
    stored = getattr(inner_blocks[0].body, "value", None)
    return isinstance(stored, TensorLoad) and stored.source.same_as(func.params[0]) and may_alias(func, 0, 1)


def may_alias(func: tirx.PrimFunc, read: int, write: int) -> bool:
    """Whether parameter ``write`` may share the memory of parameter ``read``.

    True only if (1) each element of an output that depends on ``read`` depends on the same element of ``read`` and on
    no other, and (2) no block reads ``read`` after a block has begun to write ``write``. The blocks in program order
    are then correct, and so is any order in which all loads of an element, for all outputs, come before its stores. A
    program with one output satisfies that in any order, with any vector width and any split among threads.
    """
    params, accesses = _accesses(func)
    read_buffer, written_buffer = params[read], params[write]
    tainted, write_begun = {read_buffer}, False
    for reads, writes in accesses:
        tainted_reads = [(buffer, same_element) for buffer, same_element in reads if buffer in tainted]
        if not all(same_element for _, same_element in tainted_reads) or (
            write_begun and any(buffer == read_buffer for buffer, _ in tainted_reads)
        ):
            return False
        write_begun = write_begun or written_buffer in writes
        if tainted_reads and written_buffer not in writes:
            tainted |= writes
    return True


# of each block: (buffer read, whether element by element), and the buffers written
Accesses = list[tuple[list[tuple[int, bool]], set[int]]]


@functools.lru_cache(maxsize=16)
def _accesses(func: tirx.PrimFunc) -> tuple[list[int], Accesses]:
    """The parameters as numbers of buffers. For each block in order: (buffer read, whether each element written depends
    on that element of it alone), and the buffers written. Cached: it is asked many times for one program."""
    numbers: dict[Var, int] = {}

    def number(buffer: Var) -> int:
        return numbers.setdefault(buffer, len(numbers))

    params = [number(param) for param in func.params]
    block_accesses: Accesses = []
    for block in blocks(func):
        reads, writes = regions(block.reads), regions(block.writes)
        elementwise = len(writes) == 1 and all(v.iter_type == IterVar.DataPar for v in block.iter_vars)
        block_reads = [(number(r[0]), elementwise and _same_element(r, writes[0])) for r in reads]
        block_accesses.append((block_reads, {number(w[0]) for w in writes}))
    return params, block_accesses


def _same_element(a: Region, b: Region) -> bool:
    return len(a[1]) == len(b[1]) and all(map(_same_index, a[1], b[1]))


def _same_index(a: ir.Range, b: ir.Range) -> bool:
    single_points = all(isinstance(r.extent, tirx.IntImm) and int(r.extent) == 1 for r in (a, b))
    return single_points and structural_equal(a.min, b.min)
