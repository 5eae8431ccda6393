"""The first value of a parameter, of what its ``:init`` says."""

from __future__ import annotations

from typing import Any

from ..graph.core import Value, order
from ..language import codes
from ..language.diagnostics import UserError
from .evaluator import Tracer
from .parameters import Parameter
from .values import POISON, Function, describe, is_number
from .world import World

DRAWING = "make it a function of the shape: (lambda (shape) (random-normal shape))"


def init_tracer(world: World, name: str, inputs: dict[tuple[str, str], Value] | None = None) -> Tracer:
    """What traces the first value of the parameter ``name``: its draws are keyed by that, so no edit elsewhere moves
    them. ``inputs``: of the graph it is a part of; None: traced alone."""
    return Tracer(world, f"param/{name}", "init", {} if inputs is None else inputs)


def initial(own: Tracer, parameter: Parameter) -> Any:
    """The parameter's first value, traced by ``own``, or POISON. E-PARAM-003 where it is no f32 tensor of the
    parameter's shape, or needs more than the seed."""
    init, span, shape = parameter.init, parameter.span, parameter.type.shape
    value = own.call(init, shape, span=span) if isinstance(init, Function) else init
    if value is POISON:
        return POISON
    if is_number(value):
        value = own.builder.const(float(value), "f32")
    if isinstance(value, Value) and value.type.rank == 0:
        value = own.builder("broadcast", value, shape=shape)
    if not isinstance(value, Value) or value.type != parameter.type:
        raise UserError(
            codes.PARAM_INIT, span, f"the init of {parameter.name} gives {describe(value)}, not {parameter.type}"
        )
    check_sources(own, parameter, value)
    return value


def check_sources(own: Tracer, parameter: Parameter, value: Value) -> None:
    """E-PARAM-003 where the first ``value`` is made of another input than the seed of its own graph."""
    for source in order([value]):
        if source.op or source is own.inputs["seed", ""]:
            continue
        kind, _, name = source.name.partition(":")
        if kind == "seed":  # of the graph that calls the model: init has no such draw
            what, hint = "is a tensor that was drawn before", DRAWING
        else:
            what, hint = f"reads {kind} {name}".strip(), "there is the shape, and the run's seed, and nothing else yet"
        raise UserError(codes.PARAM_INIT, parameter.span, f"the init of {parameter.name} {what}", hint=hint)
