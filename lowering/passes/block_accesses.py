"""What a tensor program reads and writes, from the read and write regions of its blocks.

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

Region = tuple[Var, tuple[ir.Range, ...]]  # a buffer, and what of it, axis by axis


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
    """The numbers of the parameters that any block writes."""
    params, accesses = _accesses(func)
    written = {buffer for _, writes in accesses for buffer in writes}
    return [n for n, param in enumerate(params) if param in written]


def is_copy(func: tirx.PrimFunc) -> bool:
    """Whether the program does nothing but store each element of its first parameter as that of its second."""
    found = blocks(func)
    if len(func.params) != 2 or len(found) != 1:
        return False
    stored = getattr(found[0].body, "value", None)
    return isinstance(stored, TensorLoad) and stored.source.same_as(func.params[0]) and may_alias(func, 0, 1)


def may_alias(func: tirx.PrimFunc, read: int, write: int) -> bool:
    """Whether parameter ``write`` may be given the memory of parameter ``read``.

    True only if every element of a program output that depends on ``read`` is made from that very element of ``read``
    and from no other element of it, and ``read`` is not looked at after ``write`` was begun. The blocks one after the
    other are then right, and so is any order of the elements in which all loads of an element, for all outputs, come
    before its stores. A program with one output is that in any order, vector width and split among threads.
    """
    params, accesses = _accesses(func)
    source, target = params[read], params[write]
    tainted, begun = {source}, False
    for reads, writes in accesses:
        touched = [(buffer, own) for buffer, own in reads if buffer in tainted]
        if not all(own for _, own in touched) or (begun and any(buffer == source for buffer, _ in touched)):
            return False
        begun = begun or target in writes
        if touched and target not in writes:
            tainted |= writes
    return True


Accesses = list[tuple[list[tuple[int, bool]], set[int]]]


@functools.lru_cache(maxsize=16)
def _accesses(func: tirx.PrimFunc) -> tuple[list[int], Accesses]:
    """The parameters as numbers of buffers, and of each block in order: what it reads, and whether each element it
    writes is made from that element alone; what it writes. Asked for one program many times."""
    numbers: dict[Var, int] = {}
    number = lambda buffer: numbers.setdefault(buffer, len(numbers))  # noqa: E731
    params = [number(param) for param in func.params]
    found: Accesses = []
    for block in blocks(func):
        reads, writes = regions(block.reads), regions(block.writes)
        alone = len(writes) == 1 and all(v.iter_type == IterVar.DataPar for v in block.iter_vars)
        touched = [(number(r[0]), alone and _same_element(r, writes[0])) for r in reads]
        found.append((touched, {number(w[0]) for w in writes}))
    return params, found


def _same_element(a: Region, b: Region) -> bool:
    return len(a[1]) == len(b[1]) and all(map(_same_index, a[1], b[1]))


def _same_index(a: ir.Range, b: ir.Range) -> bool:
    one = all(isinstance(r.extent, tirx.IntImm) and int(r.extent) == 1 for r in (a, b))
    return one and structural_equal(a.min, b.min)
