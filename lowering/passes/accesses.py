"""What a tensor program reads and writes, from the read and write regions of its blocks.

Only for programs before scheduling, where a block's regions are those of its computation.
"""

from __future__ import annotations

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

    True only if every element of ``write`` is made from that very element of ``read`` and from no other element of
    it, the only program output that depends on ``read`` is ``write``, and ``read`` is not looked at after ``write``
    was begun. Any order of the elements, any vector width and any split among threads is then safe.
    """
    source, target = func.params[read], func.params[write]
    results = [func.params[n] for n in outputs(func)]
    tainted, begun = [source], False
    for block in blocks(func):
        wrote, *more = regions(block.writes)
        touched = [r for r in regions(block.reads) if _among(r[0], tainted)]
        if touched and (more or not _elementwise(block, touched, wrote)):
            return False
        if begun and any(r[0].same_as(source) for r in touched):
            return False
        begun = begun or wrote[0].same_as(target)
        if touched and not wrote[0].same_as(target):
            if _among(wrote[0], results):
                return False
            tainted.append(wrote[0])
    return True


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
