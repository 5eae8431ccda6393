"""Horizontal fusion, the reading part: a program over many tensors as members, one a tensor, over a flat element axis.

An optimizer updates every parameter by the same stages. Members whose stages are equal but for buffers and length share
a form: the stages over ELEMENT_AXIS with stand-in buffers. ``multi_tensor.py`` makes a loop of all members, as
multi-tensor apply does in Apex and PyTorch's foreach optimizers.
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

# Their partial sums would need another dtype than their results, float32: sums of these are left to other rules.
HALF_TYPES = ("bfloat16", "float16")
# The axis of every form. Its extent, a member's length, is known at run time only.
ELEMENT_AXIS = Axis(tirx.Var("f", "int64"), 0)


@attrs.frozen(eq=False)
class Form:
    """``stages`` over ELEMENT_AXIS. ``buffers``: stand-ins for those of a member; ``is_tensor``: has it an element for
    each index (else it is a scalar)?"""

    stages: tuple[Stage, ...]
    buffers: tuple[Any, ...]
    is_tensor: tuple[bool, ...]


@attrs.frozen(eq=False)
class Member:
    """``buffers``: those of the program, in the order of the form's stand-ins."""

    form: Form
    buffers: tuple[Any, ...]
    length: int


@attrs.frozen(eq=False)
class Members:
    """A program as independent members, and scalar stages that follow on all of them (``after``)."""

    members: tuple[Member, ...]
    after: tuple[Stage, ...]


def read_members(program: Program) -> Members | None:
    """The program as members, None if it has another form."""
    after = tuple(s for s in program.stages if s.is_elementwise and s.points == 1)
    rest = [s for s in program.stages if s not in after]
    # These are complete only when all members are done, so no member may read them.
    results = {s.buffer for s in program.stages if s in after or s.reduction}
    if any(x.source in results for s in rest for x in s.reads):
        return None
    if any(size(x.source) > 1 for s in after for x in s.reads):
        return None
    components = _components(program, rest)
    forms: dict[Any, Form] = {}
    members = [_member(part, forms) for part in components]
    return Members(tuple(m for m in members if m), after) if members and all(members) else None


def size(buffer: Any) -> int:
    """The number of elements."""
    return prod(shape_of(buffer))


def _components(program: Program, stages: Sequence[Stage]) -> list[list[Stage]]:
    """The connected components of ``stages``, by union-find: a tensor that two stages use connects them.

    The two parameters of a donated pair count as the same tensor."""
    root: dict[Any, Any] = {}

    def find_root(b: Any) -> Any:
        while root.setdefault(b, b) is not b:
            b = root[b]
        return b

    def union(buffers: Sequence[Any]) -> None:
        for b in buffers[1:]:
            root[find_root(b)] = find_root(buffers[0])

    # Scalars connect nothing: all parameters read the same learning rate and are updated independently.
    touched = {s: [b for b in (*s.writes, *(x.source for x in s.reads)) if size(b) > 1] for s in stages}
    for pair in program.pairs:
        union(pair)
    for buffers in touched.values():
        union(buffers)
    components: dict[Any, list[Stage]] = {}
    for s in stages:
        components.setdefault(find_root(touched[s][0]) if touched[s] else s, []).append(s)
    return list(components.values())


def _member(stages: Sequence[Stage], forms: dict[Any, Form]) -> Member | None:
    """The stages as a member; an equal form in ``forms`` is shared, a new one is added. None if they are not over a
    flat axis."""
    length = {s.points * s.depth for s in stages}
    # Stages of different lengths cannot share a loop over elements.
    if len(length) != 1 or any(s.serial is not None for s in stages):
        return None
    stand_ins: dict[Any, Any] = {}
    flattened = [_over_elements(s, stand_ins) for s in stages]
    if None in flattened:
        return None
    form = Form(tuple(s for s in flattened if s), tuple(stand_ins.values()), tuple(size(b) > 1 for b in stand_ins))
    key = [x for s in form.stages for x in (s.buffer, s.value, s.reduction.init if s.reduction else i64(0))]
    kinds = (tuple(s.reduction.kind if s.reduction else "" for s in form.stages), form.is_tensor)
    shared = forms.setdefault((tvm_ffi.StructuralKey(key), kinds), form)
    return Member(shared, tuple(stand_ins), length.pop())


# By number and dtype: the stages of two members compare equal only if their stand-ins are the same buffers.
_STAND_INS: dict[tuple[int, str], Any] = {}


def _stand_in(stand_ins: dict[Any, Any], buffer: Any) -> Any:
    """The stand-in for ``buffer``: the same for the n-th of every member, so that equal members compare equal."""
    if buffer not in stand_ins:
        key = (len(stand_ins), str(buffer.dtype))
        stand_ins[buffer] = _STAND_INS.setdefault(key, tirx.decl_buffer([i64(1)], key[1], f"b{key[0]}"))
    return stand_ins[buffer]


def _over_elements(stage: Stage, stand_ins: dict[Any, Any]) -> Stage | None:
    """The stage over ELEMENT_AXIS, None if an access is neither of its own element nor of a scalar."""
    axes = [a.var for a in (stage.reduce if stage.reduction else stage.space)]
    accesses = loads(stage.value)
    is_valid = (
        stage.points == 1 and str(stage.buffer.dtype) not in HALF_TYPES
        if stage.reduction
        else _is_row_major(stage.indices, axes)
    )
    is_valid = is_valid and all(size(x.source) == 1 or _is_row_major(x.indices, axes) for x in accesses)
    if not is_valid or any(x.source.same_as(stage.buffer) for x in accesses):
        return None

    def read(node: Any) -> Expr:
        return load(_stand_in(stand_ins, node.source), ELEMENT_AXIS.var if size(node.source) > 1 else i64(0))

    value, buffer = rewrite(stage.value, [(Load, read)]), _stand_in(stand_ins, stage.buffer)
    if variables(value) & set(axes):
        return None
    if stage.reduction:
        return Stage(stage.name, (), (ELEMENT_AXIS,), buffer, (i64(0),), value, stage.reduction)
    return Stage(stage.name, (ELEMENT_AXIS,), (), buffer, (ELEMENT_AXIS.var,), value)


def _is_row_major(indices: Sequence[Expr], axes: Sequence[Any]) -> bool:
    """Are the indices the axes in order, so that element number and row-major offset are the same?"""
    positions = [index for index in indices if not is_int(index, 0)]
    return len(positions) == len(axes) and all(
        position.same_as(axis) for position, axis in zip(positions, axes, strict=True)
    )
