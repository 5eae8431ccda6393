"""Buffer reuse: storage of values that nobody reads any more goes to the next ones of the same shape and dtype.

``is_last_read`` decides it for the stages of a row group (a result may overwrite an operand in place);
``share_storage`` does it for the nests of a program, by live ranges, first fit in order of first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from .access import reads_of, same_indices
from .builder import Load, Stmt, load, shape_of, store
from .context import NestContext
from .rewrite import collect, rewrite
from .row_group import RowGroup
from .stages import Program, loads, stored, substitute


def is_last_read(ctx: NestContext, group: RowGroup, position: int, buffer: Any) -> bool:
    """May the stage at ``position`` of the group overwrite ``buffer``? It must be the last reader, and read only the
    element that it writes."""
    stage, later = group.stages[position], group.stages[position + 1 :]
    source = next(s for s in group.stages if buffer in s.writes)
    if [a.extent for a in source.space] != [a.extent for a in stage.space]:
        return False
    axis_map = {a.var: b.var for a, b in zip(source.space, stage.space, strict=True)}
    expected = [substitute(index, axis_map) for index in source.indices]
    own_reads = [r for r in reads_of(ctx, stage) if r.buffer.same_as(buffer)]
    # Every read must be of the element that the stage writes, before it writes; and a region of memory has a single
    # dtype.
    if (
        not own_reads
        or any(not same_indices(r.indices, expected) for r in own_reads)
        or str(buffer.dtype) != str(stage.buffer.dtype)
    ):
        return False
    sources = [r.buffer for s in later for r in reads_of(ctx, s)] + [x.source for s in later for x in s.reads]
    return not any(source.same_as(buffer) for source in sources)


def share_storage(program: Program, nests: Sequence[Stmt]) -> tuple[list[Stmt], list[Any]]:
    """The nests, and the intermediate buffers that they still need. A buffer whose live range begins after that of
    another of its type ended gets its storage."""
    storage_of: dict[Any, Any] = {}
    last_use: dict[Any, int] = {}  # storage -> the last nest that uses it, for any buffer
    for buffer, (first, last) in _live_ranges(program, nests).items():
        # Strictly before: a nest that reads the old value while it writes the new would mix them.
        reusable = (b for b, end in last_use.items() if end < first and _type(b) == _type(buffer))
        storage_of[buffer] = next(reusable, buffer)
        last_use[storage_of[buffer]] = last
    replaced = {b: storage for b, storage in storage_of.items() if b is not storage}
    return [_replace_buffers(nest, replaced) for nest in nests], list(last_use)


def _type(buffer: Any) -> tuple[Any, str]:
    return shape_of(buffer), str(buffer.dtype)


def _live_ranges(program: Program, nests: Sequence[Stmt]) -> dict[Any, tuple[int, int]]:
    """Intermediate buffer, if no nest allocates it -> the numbers of the first and the last nest that use it."""
    # A buffer that a nest allocates itself lives inside it, often once a thread: it has no storage to share.
    allocated = {node.buffer for nest in nests for node in collect(nest, (tirx.AllocBuffer, tirx.DeclBuffer))}
    ranges: dict[Any, tuple[int, int]] = {}
    for number, nest in enumerate(nests):
        for buffer in dict.fromkeys((*stored(nest), *(x.source for x in loads(nest)))):
            if buffer not in allocated and program.owns(buffer):
                ranges[buffer] = (ranges.get(buffer, (number, number))[0], number)
    return ranges


def _replace_buffers(stmt: Stmt, storage_of: dict[Any, Any]) -> Stmt:
    def read(node: Any) -> Any:
        return load(storage_of[node.source], *node.indices) if node.source in storage_of else node

    def write(node: Any) -> Any:
        return store(storage_of[node.buffer], node.value, *node.indices) if node.buffer in storage_of else node

    return rewrite(stmt, [(Load, read), (tirx.BufferStore, write)]) if storage_of else stmt
