"""A program of many tensors, read as members: what belongs to one tensor, written over one axis.

Members of the same form (the update of one parameter and that of the next) are equal but for their buffers and their
length, and share their code.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import attrs
import tvm_ffi
from tvm import tirx

from .builder import Expr, Load, i64, is_int, load, shape_of
from .rewrite import rewrite
from .stages import Axis, Program, Stage, loads, variables

HALVES = ("bfloat16", "float16")  # whose partial sums would have to be kept in another type
PLACE = Axis(tirx.Var("f", "int64"), 0)  # the axis of every form; a member's length is known where it runs


@attrs.frozen(eq=False)
class Form:
    """``stages`` over PLACE; ``buffers``: stand-ins for a member's own, ``wide`` those with an element a place."""

    stages: tuple[Stage, ...]
    buffers: tuple[Any, ...]
    wide: tuple[bool, ...]


@attrs.frozen(eq=False)
class Member:
    """``buffers``: the program's, in the order of its form's."""

    form: Form
    buffers: tuple[Any, ...]
    length: int


@attrs.frozen(eq=False)
class Members:
    """A program as members, each on its own, and then stages of one element (``after``)."""

    members: tuple[Member, ...]
    after: tuple[Stage, ...]


def read_members(program: Program) -> Members | None:
    """None for a program that is not one of members."""
    after = tuple(s for s in program.stages if s.is_map and s.points == 1)
    rest = [s for s in program.stages if s not in after]
    own = {s.buffer for s in program.stages if s in after or s.reduction}  # ready when all members are done
    if any(x.source in own for s in rest for x in s.reads):
        return None
    if any(size(x.source) > 1 for s in after for x in s.reads):
        return None
    parts = _components(program, rest)
    forms: dict[Any, Form] = {}
    members = [_member(part, forms) for part in parts]
    return Members(tuple(m for m in members if m), after) if members and all(members) else None


def size(buffer: Any) -> int:
    """The number of elements."""
    return prod(shape_of(buffer))


def _components(program: Program, stages: Sequence[Stage]) -> list[list[Stage]]:
    """``stages`` by the tensors they have in common, directly or through others; one memory is one tensor."""
    root: dict[Any, Any] = {}

    def find(b: Any) -> Any:
        while root.setdefault(b, b) is not b:
            b = root[b]
        return b

    def join(buffers: Sequence[Any]) -> None:
        for b in buffers[1:]:
            root[find(b)] = find(buffers[0])

    touched = {s: [b for b in (*s.writes, *(x.source for x in s.reads)) if size(b) > 1] for s in stages}
    for pair in program.pairs:
        join(pair)
    for buffers in touched.values():
        join(buffers)
    parts: dict[Any, list[Stage]] = {}
    for s in stages:
        parts.setdefault(find(touched[s][0]) if touched[s] else s, []).append(s)
    return list(parts.values())


def _member(stages: Sequence[Stage], forms: dict[Any, Form]) -> Member | None:
    """The stages as a member; its form is taken from ``forms`` or put there."""
    length = {s.points * s.depth for s in stages}
    if len(length) != 1 or any(s.serial is not None for s in stages):
        return None
    names: dict[Any, Any] = {}
    placed = [_placed(s, names) for s in stages]
    if None in placed:
        return None
    made = Form(tuple(s for s in placed if s), tuple(names.values()), tuple(size(b) > 1 for b in names))
    key = [x for s in made.stages for x in (s.buffer, s.value, s.reduction.init if s.reduction else i64(0))]
    kinds = (tuple(s.reduction.kind if s.reduction else "" for s in made.stages), made.wide)
    form = forms.setdefault((tvm_ffi.StructuralKey(key), kinds), made)
    return Member(form, tuple(names), length.pop())


_STAND_INS: dict[tuple[int, str], Any] = {}


def _stand_in(names: dict[Any, Any], buffer: Any) -> Any:
    """The same one for the n-th buffer of every member, so that equal members are equal expressions."""
    if buffer not in names:
        key = (len(names), str(buffer.dtype))
        names[buffer] = _STAND_INS.setdefault(key, tirx.decl_buffer([i64(1)], key[1], f"b{key[0]}"))
    return names[buffer]


def _placed(stage: Stage, names: dict[Any, Any]) -> Stage | None:
    """The stage over PLACE, None if an access is neither of the element at its place nor of a single element."""
    axes = [a.var for a in (stage.reduce if stage.reduction else stage.space)]
    accesses = loads(stage.value)
    good = (
        stage.points == 1 and str(stage.buffer.dtype) not in HALVES if stage.reduction else _walks(stage.indices, axes)
    )
    good = good and all(size(x.source) == 1 or _walks(x.indices, axes) for x in accesses)
    if not good or any(x.source.same_as(stage.buffer) for x in accesses):
        return None

    def read(node: Any) -> Expr:
        return load(_stand_in(names, node.source), PLACE.var if size(node.source) > 1 else i64(0))

    value, buffer = rewrite(stage.value, [(Load, read)]), _stand_in(names, stage.buffer)
    if variables(value) & set(axes):
        return None
    if stage.reduction:
        return Stage(stage.name, (), (PLACE,), buffer, (i64(0),), value, stage.reduction)
    return Stage(stage.name, (PLACE,), (), buffer, (PLACE.var,), value)


def _walks(indices: Sequence[Expr], axes: Sequence[Any]) -> bool:
    """Is an access at the element where the axes stand, in the order of memory?"""
    places = [index for index in indices if not is_int(index, 0)]
    return len(places) == len(axes) and all(p.same_as(a) for p, a in zip(places, axes, strict=True))
