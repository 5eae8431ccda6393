"""Smaller programs that still fail in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from attrs import evolve

from sexpgpu.language.diagnostics import UserError
from sexpgpu.ops.types import ShapeFault, TypeFault

from .programs import Program


def shrunk(program: Program, fails: Callable[[Program], bool], seconds: float) -> Program:
    """The smallest program on the way down that still ``fails``: steps and results are left out, then extents cut."""
    end = time.monotonic() + seconds
    smaller = True
    while smaller and time.monotonic() < end:
        smaller = False
        for candidate in candidates(program):
            if time.monotonic() > end:
                break
            if valid(candidate) and fails(candidate):
                program, smaller = candidate, True
                break
    return program


def valid(program: Program) -> bool:
    try:
        return bool(program.outputs) and bool(program.graph().inputs)
    except (TypeFault, ShapeFault, UserError, ValueError, KeyError, IndexError):
        return False


def candidates(program: Program) -> Iterator[Program]:
    """Each a little smaller, the smallest first."""
    for n in program.outputs:
        if len(program.outputs) > 1:
            yield needed(evolve(program, outputs=(n,)))
    for name in ("gradients", "in_place", "outputs"):
        given = getattr(program, name)
        if given:
            yield needed(evolve(program, **{name: ()})) if name != "outputs" else program_without_last(program)
        for n in given if len(given) > 1 else ():
            yield needed(evolve(program, **{name: tuple(m for m in given if m != n)}))
    for n in range(len(program.steps)):
        yield from without(program, n)
    for extent in sorted(extents(program), reverse=True):
        for less in (1, 2, extent // 8, extent // 2, extent - 1):
            if 0 < less < extent:
                yield renamed(program, extent, less)


def program_without_last(program: Program) -> Program:
    """The arguments of the last step in its place as results."""
    count = len(program.inputs)
    steps = program.steps[:-1]
    last = count + len(steps)
    if not program.steps:
        return evolve(program, outputs=())
    args = [a for a in program.steps[-1][1] if a >= count] or [last - 1]
    outputs = sorted({*(n for n in program.outputs if n < last), *args})
    return needed(evolve(program, steps=steps, outputs=tuple(n for n in outputs if n < last)))


def without(program: Program, n: int) -> Iterator[Program]:
    """Step ``n`` left out: one of its arguments in its place, or an input."""
    count = len(program.inputs)
    for a in dict.fromkeys(program.steps[n][1]):
        yield needed(replaced(program, n, a))
    try:
        made = evolve(program, outputs=(count + n,), gradients=(), in_place=()).graph().outputs[0][1].type
    except (TypeFault, ShapeFault, UserError, ValueError):
        return
    kind = "normal" if made.kind in ("float", "bool") else "index"
    wider = shifted(program, count)
    yield needed(replaced(evolve(wider, inputs=(*wider.inputs, (made.dtype, made.shape, kind))), n, count))


def shifted(program: Program, count: int) -> Program:
    """Room for one more input: numbers of steps are one more."""
    move = lambda n: n + (n >= count)  # noqa: E731
    steps = tuple((op, tuple(map(move, args)), attrs) for op, args, attrs in program.steps)
    return evolve(program, steps=steps, outputs=tuple(map(move, program.outputs)))


def replaced(program: Program, n: int, by: int) -> Program:
    """Wherever step ``n`` is used, the value ``by``."""
    old = len(program.inputs) + n
    swap = lambda m: by if m == old else m  # noqa: E731
    steps = tuple((op, tuple(map(swap, args)), attrs) for op, args, attrs in program.steps)
    return evolve(program, steps=steps, outputs=tuple(dict.fromkeys(map(swap, program.outputs))))


def needed(program: Program) -> Program:
    """``program`` without the steps and inputs that nothing needs."""
    count = len(program.inputs)
    used = {*program.outputs, *program.gradients}
    for n in range(len(program.steps) - 1, -1, -1):
        if count + n in used:
            used.update(program.steps[n][1])
    number = {old: new for new, old in enumerate(n for n in range(count + len(program.steps)) if n in used)}
    steps = tuple(
        (op, tuple(number[a] for a in args), attrs)
        for n, (op, args, attrs) in enumerate(program.steps)
        if count + n in used
    )
    return evolve(
        program,
        inputs=tuple(x for n, x in enumerate(program.inputs) if n in used),
        steps=steps,
        outputs=tuple(number[n] for n in program.outputs),
        gradients=tuple(number[n] for n in program.gradients),
        in_place=tuple(number[n] for n in program.in_place if n in used),
    )


def extents(program: Program) -> set[int]:
    return {d for _, shape, _ in program.inputs for d in shape if d > 1}


def renamed(program: Program, extent: int, less: int) -> Program:
    """``less`` wherever ``extent`` stands."""

    def swap(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(swap, x))
        return less if type(x) is int and x == extent else x

    inputs = tuple((dtype, swap(shape), kind) for dtype, shape, kind in program.inputs)
    steps = tuple((op, args, {k: swap(v) for k, v in attrs.items()}) for op, args, attrs in program.steps)
    return evolve(program, inputs=inputs, steps=steps)
