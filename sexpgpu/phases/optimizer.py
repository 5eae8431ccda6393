"""The update graph (the optimizer, once a step) and the init graph (parameters and optimizer state from the seed)."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from ..graph.core import Builder, Value
from ..language import codes  # noqa: F401 (builtins fills BUILTINS, before anything is traced)
from ..language.diagnostics import UserError
from ..language.source import Span
from ..ops.types import TensorType
from ..trace.evaluator import Tracer
from ..trace.parameter_inits import init_tracer, initial
from ..trace.random_draws import UNDRAWN
from ..trace.step_mean import SCALAR, STEP_WEIGHT, weighed
from ..trace.values import Function, Key, Reported, describe, is_number, is_poison, plist, sound
from ..trace.world import World
from .run_settings import Settings
from .training import TrainGraph, check_plist, ctx, known_counters, undrawn

LARGEST = (2 - 2**-23) * 2.0**127  # the largest f32
KEYS = ("state", "update", "clip-norm", "rate", "groups")
UNDRAWN_OPTIMIZER, UNDRAWN_STATE = UNDRAWN + "the optimizer", UNDRAWN + "the optimizer's :state"
UNDRAWN_INIT = UNDRAWN + "the :init of "  # before the name of a parameter


@frozen
class OptimizerEntry:
    """One tensor of optimizer state, ``PARAMETER/key``."""

    parameter: str
    key: str
    type: TensorType

    @property
    def name(self) -> str:
        return f"{self.parameter}/{self.key}"


@frozen(eq=False)
class UpdateGraph(TrainGraph):
    """``entries``: every tensor of optimizer state, by parameter, in the order of the outputs."""

    entries: tuple[OptimizerEntry, ...] = ()


def trace_update(world: World, settings: Settings, trained: tuple[str, ...], is_weighed: bool = False) -> UpdateGraph:
    """``trained``: the parameters that have a gradient; ``is_weighed``: it is to be divided by the step's weight.

    param, optimizer and gradient ports to the next param and optimizer, with grad_norm and, if stated, lr.

    Gradients are scaled by 1/microbatches or 1/weight, then by min(1, clip / norm). A norm that is not finite, or a
    draw from no distribution, leaves everything as it was: the runner sees it in grad_norm or in the count of such
    draws, and stops with the state of the last finished step.
    """
    t = Tracer(world, "update", "update")
    top = world.run.optimizer
    if top is None or not top.body:
        raise Reported
    span = top.body[0].span
    whole = check_optimizer(t.evaluate(top.body[0], None), span)
    for group in map(plist, whole.get("groups") or ()):
        if group and not world.report and not fnmatch.filter(trained, group["match"]):
            what = f"no trained parameter has a name that matches the group {group['match']}"
            hint = f"there is {', '.join(trained[:3])} ..."
            raise UserError(codes.CONTRACT_OPTIMIZER, span, what, hint=hint)
    context = ctx(t, known_counters(t, world))
    metrics = [("metric", "lr", rate(t, whole["rate"], context, span))] if whole.get("rate") is not None else []
    grads, norm = scaled_gradients(t, settings, trained, is_weighed, whole, span)
    moved: list[tuple[str, str, Value, Value]] = []  # of each output also what it was
    entries: list[OptimizerEntry] = []
    tried: set[tuple[int, int, TensorType]] = set()
    for name in trained:
        before, own = len(world.report.errors), group_of(whole, name)
        alike = (id(own["state"]), id(own["update"]), world.parameters.found[name].type)
        if world.report and alike in tried:
            continue  # no plan comes of it, and one parameter after another would have no other faults
        tried.add(alike)
        state, following = update_one(t, own, name, grads[name], context, span)
        if following is None or len(world.report.errors) > before:
            raise Reported  # once for all parameters
        entries += [OptimizerEntry(name, k, v.type) for k, v in state.items()]
        old = {("param", name): t.inputs["param", name], **{("optimizer", f"{name}/{k}"): v for k, v in state.items()}}
        moved += [(kind, n, following[kind, n], v) for (kind, n), v in old.items()]
    odd = undrawn(t, UNDRAWN_OPTIMIZER)
    is_sound = t.builder("<", norm, t.builder.const(float("inf"), "f32"))
    for _, _, count in odd:
        is_sound = t.builder("and", is_sound, t.builder("=", count, t.builder.const(0.0, "f32")))
    outputs = [(kind, n, t.builder("where", is_sound, new, old)) for kind, n, new, old in moved]
    return UpdateGraph(t, (("metric", "grad_norm", norm), *metrics, *odd, *outputs), trained, entries=tuple(entries))


def check_optimizer(value: Any, span: Span) -> dict[str, Any]:
    """An optimizer value as a dict: a plist of :state and :update, functions, and optional keys."""
    made = plist(sound(value)) or {}
    if not isinstance(made.get("state"), Function) or not isinstance(made.get("update"), Function):
        raise UserError(
            codes.CONTRACT_OPTIMIZER,
            span,
            f"an optimizer is a plist with the functions :state and :update, not {describe(value)}",
        )
    for key in made:
        if key not in KEYS:
            raise UserError(
                codes.CONTRACT_OPTIMIZER,
                span,
                f"an optimizer has no :{key}",
                hint="its keys are " + " ".join(f":{k}" for k in KEYS),
            )
    clip = made.get("clip-norm")
    if clip is not None and not (is_number(clip) and clip > 0):
        raise UserError(codes.CONTRACT_OPTIMIZER, span, f":clip-norm must be a number above 0, not {describe(clip)}")
    check_groups(made.get("groups"), span)
    return made


def check_groups(groups: Any, span: Span) -> None:
    """E-CONTRACT-003 unless a list of plists of :match and :optimizer, without :clip-norm and :groups of their own."""
    for group in groups if isinstance(groups, tuple) else () if groups is None else (groups,):
        entry = plist(group) or {}
        if not isinstance(entry.get("match"), str) or entry.keys() != {"match", "optimizer"}:
            raise UserError(
                codes.CONTRACT_OPTIMIZER, span, ':groups is a list of plists, each of :match "pattern" and :optimizer'
            )
        own = check_optimizer(entry["optimizer"], span)
        for key in ("clip-norm", "groups"):
            if own.get(key) is not None:
                what = f"the optimizer of the group {entry['match']} has :{key}, which is for the whole run"
                raise UserError(codes.CONTRACT_OPTIMIZER, span, what)


def group_of(whole: dict[str, Any], name: str) -> dict[str, Any]:
    """The optimizer of the first group whose :match pattern fits the parameter's name, or the whole run's."""
    for group in map(plist, whole.get("groups") or ()):
        if group and fnmatch.fnmatchcase(name, group["match"]):
            return plist(group["optimizer"]) or {}
    return whole


def scaled_gradients(
    t: Tracer, settings: Settings, trained: tuple[str, ...], is_weighed: bool, whole: dict[str, Any], span: Span
) -> tuple[dict[str, Value], Value]:
    """Mean gradients over the microbatches, clipped; and their norm before clipping (``norm_of``)."""
    b, types = t.builder, {n: t.world.parameters.found[n].type for n in trained}
    b.span = span
    grads = {n: t.port("gradient", n, types[n]) for n in trained}
    if is_weighed:
        grads = weighed(b, grads, t.port("gradient", STEP_WEIGHT, SCALAR))
    elif settings.microbatches > 1:
        grads = {n: b("*", g, b.const(1.0 / settings.microbatches, "f32")) for n, g in grads.items()}
    norm = norm_of(b, [*grads.values()])
    clip = whole.get("clip-norm")
    if clip is not None:
        one, limit = b.const(1.0, "f64"), b.const(float(clip), "f64")
        scale = b("where", b(">", norm, limit), b("/", limit, norm), one)
        grads = {n: b("*", g, b("cast", scale, dtype="f32")) for n, g in grads.items()}
    return grads, reported(b, norm)


def norm_of(b: Builder, tensors: Sequence[Value]) -> Value:
    """The norm of all f32 ``tensors`` together, an f64 scalar: f64 holds the square of every f32."""
    total = b.const(0.0, "f64")
    for x in tensors:
        wide = b("cast", x, dtype="f64")
        total = b("+", total, b("sum", b("*", wide, wide), axes=tuple(range(x.type.rank)), keepdims=False))
    return b("sqrt", total)


def reported(b: Builder, norm: Value) -> Value:
    """The f64 ``norm`` as f32: that of finite numbers stays finite, if it must be as the largest f32."""
    largest = b.const(LARGEST, "f64")
    held = b("where", b("<", norm, b.const(float("inf"), "f64")), b("min", norm, largest), norm)
    return b("cast", held, dtype="f32")


def update_one(t: Tracer, own: dict[str, Any], name: str, grad: Value, context: Any, span: Span):
    """The state ports of one parameter, and its next values by (kind, name)."""
    type = t.world.parameters.found[name].type
    param = t.port("param", name, type)
    state = {k: t.port("optimizer", f"{name}/{k}", v.type) for k, v in first_state(t.world, own, param, span).items()}
    given = tuple(x for k, v in state.items() for x in (Key(k), v))
    value = t.call(own["update"], param, grad, given, context, span=span)
    entries = check_plist(value, codes.CONTRACT_OPTIMIZER, ":update", span)
    if is_poison(value):
        return state, None
    want = {"param": type, **{k: v.type for k, v in state.items()}}
    got = {k: v.type for k, v in entries.items()}
    if got != want:
        shown = ", ".join(f":{k} {v}" for k, v in got.items())
        raise UserError(
            codes.CONTRACT_OPTIMIZER,
            span,
            f":update of {name} returns {shown}; it must return " + ", ".join(f":{k} {v}" for k, v in want.items()),
        )
    following = {
        ("param" if k == "param" else "optimizer", name if k == "param" else f"{name}/{k}"): v
        for k, v in entries.items()
    }
    return state, following


def first_state(
    world: World, own: dict[str, Any], param: Value, span: Span, tracer: Tracer | None = None
) -> dict[str, Value]:
    """What ``:state`` gives for a parameter, traced alone (for its types) or into ``tracer``."""
    t = tracer or Tracer(world, "optimizer.state", "init")
    return check_plist(sound(t.call(own["state"], param, span=span)), codes.CONTRACT_OPTIMIZER, ":state", span)


def rate(t: Tracer, value: Any, context: Any, span: Span) -> Value:
    """The learning rate as an f32 scalar, from a number or a function of ctx; E-CONTRACT-008 for anything else."""
    made = sound(t.call(value, context, span=span)) if isinstance(value, Function) else value
    if is_number(made):
        return t.builder.const(float(made), "f32")
    if not isinstance(made, Value) or made.type != TensorType((), "f32"):
        raise UserError(
            codes.CONTRACT_RATE, span, f"the learning rate is {describe(made)}, not a number or a scalar f32"
        )
    return made


def trace_init(world: World, entries: tuple[OptimizerEntry, ...]) -> TrainGraph:
    """seed -> every parameter and every optimizer entry, and how many draws had no distribution."""
    t = Tracer(world, "init", "init")
    values: dict[str, Value] = {}
    outputs: list[tuple[str, str, Value]] = []
    odd: list[tuple[str, str, Value]] = []
    for name in sorted(world.parameters.found):
        own = init_tracer(world, name, t.inputs)
        values[name] = initial(own, world.parameters.found[name])
        outputs.append(("param", name, values[name]))
        odd += undrawn(own, UNDRAWN_INIT + name)
    assert world.run.optimizer
    form = world.run.optimizer.body[0]
    whole = check_optimizer(t.evaluate(form, None), form.span)
    for name in dict.fromkeys(e.parameter for e in entries):
        state = first_state(world, group_of(whole, name), values[name], form.span, t)
        outputs += [("optimizer", f"{name}/{k}", v) for k, v in state.items()]
    return TrainGraph(t, (*outputs, *odd, *undrawn(t, UNDRAWN_STATE)))
