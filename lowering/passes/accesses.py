"""What a tensor program reads and writes, from the read and write regions of its blocks.

Only for programs before scheduling, where a block's regions are those of its computation.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from tvm import ir, tirx
from tvm.ir import Var
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
    return [(access.source, tuple(access.region)) for access in accesses]


def outputs(func: tirx.PrimFunc) -> list[int]:
    """The numbers of the parameters that any block writes."""
    written = [region[0] for block in blocks(func) for region in regions(block.writes)]
    return [n for n, param in enumerate(func.params) if _among(param, written)]


def may_alias(func: tirx.PrimFunc, read: int, write: int) -> bool:
    """Whether parameter ``write`` may be given the memory of parameter ``read``.

    True only if every element of a program output that depends on ``read`` is made from that very element of ``read``
    and from no other element of it, and ``read`` is not looked at after ``write`` was begun. The blocks one after the
    other are then right, and so is any order of the elements in which all loads of an element, for all outputs, come
    before its stores. A program with one output is that in any order, vector width and split among threads.
    """
    source, target = func.params[read], func.params[write]
    tainted, begun = {source}, False
    for block, touches, (wrote, *more) in _accesses(func):
        touched = [r for r in touches if r[0] in tainted]
        if touched and (more or not _elementwise(block, touched, wrote)):
            return False
        if begun and any(r[0].same_as(source) for r in touched):
            return False
        begun = begun or wrote[0].same_as(target)
        if touched and not wrote[0].same_as(target):
            tainted.add(wrote[0])
    return True


@functools.lru_cache(maxsize=1)
def _accesses(func: tirx.PrimFunc) -> list[tuple[SBlock, list[Region], list[Region]]]:
    """The blocks with what they read and write; asked for one program many times in turn."""
    return [(block, regions(block.reads), regions(block.writes)) for block in blocks(func)]


def _among(buffer: Var, buffers: list[Var]) -> bool:
    return any(buffer.same_as(b) for b in buffers)


def _elementwise(block: SBlock, touched: list[Region], wrote: Region) -> bool:
    """Whether ``block`` reduces nothing and touches exactly the one element that it writes."""
    if any(v.iter_type != IterVar.DataPar for v in block.iter_vars):
        return False
    return all(_same_element(region, wrote) for region in touched)


def _same_element(a: Region, b: Region) -> bool:
    return len(a[1]) == len(b[1]) and all(map(_same_index, a[1], b[1]))


def _same_index(a: ir.Range, b: ir.Range) -> bool:
    one = all(isinstance(r.extent, tirx.IntImm) and int(r.extent) == 1 for r in (a, b))
    return one and structural_equal(a.min, b.min)
