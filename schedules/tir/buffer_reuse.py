"""What may take the place of what was made before and is not needed any more: of a stage's, in a group of them; of a
nest's, in a program."""

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


def is_last_read(ctx: NestContext, found: RowGroup, place: int, buffer: Any) -> bool:
    """Is the stage at ``place`` the last that reads ``buffer``, and reads it where it writes its own?"""
    stage, later = found.stages[place], found.stages[place + 1 :]
    source = next(s for s in found.stages if buffer in s.writes)
    if [a.extent for a in source.space] != [a.extent for a in stage.space]:
        return False
    names = {a.var: b.var for a, b in zip(source.space, stage.space, strict=True)}
    here = [substitute(index, names) for index in source.indices]
    mine = [r for r in reads_of(ctx, stage) if r.buffer.same_as(buffer)]
    if not mine or any(not same_indices(r.indices, here) for r in mine) or str(buffer.dtype) != str(stage.buffer.dtype):
        return False
    sources = [r.buffer for s in later for r in reads_of(ctx, s)] + [x.source for s in later for x in s.reads]
    return not any(source.same_as(buffer) for source in sources)


def share_storage(program: Program, nests: Sequence[Stmt]) -> tuple[list[Stmt], list[Any]]:
    """The nests, and the program's own buffers that they need. One that is first written after another of its type was
    last read takes its place."""
    places: dict[Any, Any] = {}
    taken: dict[Any, int] = {}  # a buffer that is made -> the last nest that needs it, or what is in its place
    for buffer, (first, last) in _lives(program, nests).items():
        same = (b for b, end in taken.items() if end < first and _type(b) == _type(buffer))
        places[buffer] = next(same, buffer)
        taken[places[buffer]] = last
    moved = {b: place for b, place in places.items() if b is not place}
    return [_moved(nest, moved) for nest in nests], list(taken)


def _type(buffer: Any) -> tuple[Any, str]:
    return shape_of(buffer), str(buffer.dtype)


def _lives(program: Program, nests: Sequence[Stmt]) -> dict[Any, tuple[int, int]]:
    """Each buffer of the program's own that no nest makes, with the first and the last nest that it is in."""
    made = {node.buffer for nest in nests for node in collect(nest, (tirx.AllocBuffer, tirx.DeclBuffer))}
    found: dict[Any, tuple[int, int]] = {}
    for n, nest in enumerate(nests):
        for buffer in dict.fromkeys((*stored(nest), *(x.source for x in loads(nest)))):
            if buffer not in made and program.owns(buffer):
                found[buffer] = (found.get(buffer, (n, n))[0], n)
    return found


def _moved(stmt: Stmt, new: dict[Any, Any]) -> Stmt:
    def read(node: Any) -> Any:
        return load(new[node.source], *node.indices) if node.source in new else node

    def write(node: Any) -> Any:
        return store(new[node.buffer], node.value, *node.indices) if node.buffer in new else node

    return rewrite(stmt, [(Load, read), (tirx.BufferStore, write)]) if new else stmt
