"""The functions of the language that name what a step reads and reports: fields, parameters, metrics, diagnostics."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from ..graph.core import Value
from ..language import codes
from ..language.diagnostics import UserError
from ..ops.spec import attr
from ..ops.types import TensorType
from . import mixed_precision
from .builtin_args import builtin, need, need_int, need_key, need_tensor
from .builtin_table import Tracer
from .operator_call import as_tensor, convert
from .parameter_inits import init_tracer, initial
from .parameters import Parameter, digest, same_init
from .special_forms import parameter_name
from .step_mean import clashes
from .step_mean import mean_over_step as step_mean
from .values import CTX_KEYS, POISON, Call, Indices, Key, Lookup, StepMean, describe


@builtin("(indices count)", 1)
def indices(t: Tracer, call: Call) -> Any:
    """A loader's source of ``count`` record numbers, for a run that makes its own data."""
    return Indices(need(call, 0, need_int(call, 0) >= 1, "a count of 1 or more"))


@builtin("(field batch :name)", 2)
def field(t: Tracer, call: Call) -> Any:
    """A field of the batch: [batch ...]."""
    batch = call.args[0]
    if not isinstance(batch, Lookup) or batch.title == "ctx":
        raise UserError(codes.CALL_VALUE, call.spans[0], f"field reads a batch, not {describe(batch)}")
    return batch.read(need_key(call, 1), call.spans[1])


@builtin("(param :name shape :init init)", 4)
def param(t: Tracer, call: Call) -> Any:
    """A parameter of the model, f32 of ``shape``. ``init`` is a function of the shape to a tensor, or a tensor."""
    if t.scope is None:
        raise UserError(codes.PARAM_SCOPE, call.span, "param stands outside a model")
    if call.args[2] != Key("init"):
        raise UserError(codes.CALL_KEYWORD, call.spans[2], f"param takes :init, not {describe(call.args[2])}")
    name = t.scope.name(parameter_name(call.args[0], call.spans[0]))
    type = TensorType(convert(attr("shape", "shape"), call.args[1], call.spans[1]), "f32")
    made = Parameter(name, type, call.args[3], "", t.scope.model.is_frozen, call.span)
    known = t.world.parameters.found.get(name)
    if known is None or not same_init(known.init, made.init):
        value = initial(init_tracer(t.world, name), made)
        if value is POISON:
            return POISON
        made = evolve(made, digest=digest(value))
    else:
        made = evolve(made, digest=known.digest)
    kept = t.world.parameters.declare(made)
    master = t.port("param", kept.name, kept.type)
    return mixed_precision.parameter(t.builder, master) if t.in_bf16 else master


@builtin("(mean-over-step x :weights w)", 1, 3)
def mean_over_step(t: Tracer, call: Call) -> Any:
    """The sum of x w over the sum of w, both over all microbatches of the step: what objective returns, or a metric.
    w, 1 unless given, is 0 or more, broadcasts to x and gets no gradient. Where it is 0, x does not count, whatever
    it is. If all weights are 0, so are the mean and its gradients."""
    return step_mean(t.builder, need_tensor(call, 0), call)


@builtin("(metric :name scalar)", 2)
def metric(t: Tracer, call: Call) -> Any:
    """Reports a scalar of ``objective``, or a mean over the step; its value is that."""
    name = need_key(call, 0)
    if t.role == "generate":
        raise UserError(
            codes.GEN_REPORT,
            call.span,
            f"metric :{name} inside the generator ({t.form})",
            hint="return the value in the state and report it from objective",
        )
    if t.role not in ("objective", "pass"):
        raise UserError(codes.CONTRACT_PLACE, call.span, f"metric :{name} outside objective")
    value = call.args[1] if isinstance(call.args[1], StepMean) else scalar(t, call)
    taken = name in t.metrics or name in ("loss", "lr", "grad_norm")
    if taken or clashes(name, t.metrics, isinstance(value, StepMean)):
        raise UserError(
            codes.CONTRACT_METRIC,
            call.span,
            f"the name :{name} is taken",
            *([(t.metrics[name][1], "it is reported here first")] if name in t.metrics else []),
        )
    t.metrics[name] = (value, call.span)
    return value


def scalar(t: Tracer, call: Call) -> Value:
    """The second argument as a tensor without axes: a number becomes one. E-CONTRACT-004 for any other tensor."""
    value = as_tensor(t.builder, call.args[1], None, call.spans[1], f"{call.name} needs a scalar")
    if value.type.rank:
        raise UserError(
            codes.CONTRACT_METRIC,
            call.spans[1],
            f"{call.name} needs a scalar, not {value.type}",
            hint="reduce it with mean or sum",
        )
    return value


@builtin("(diagnostic :name tensor)", 2, passes="all")
def diagnostic(t: Tracer, call: Call) -> Any:
    """Keeps a tensor for ``sexpgpu-run --diagnostic``, if the build selected it; its value is the tensor."""
    if call.args[0] is POISON:
        return POISON
    name, value = need_key(call, 0), call.args[1]
    if value is not POISON:
        need_tensor(call, 1)
    t.diagnostics.setdefault(name, (value, call.span))
    return value


@builtin("(counter :name scalar)", 2)
def counter(t: Tracer, call: Call) -> Any:
    """Adds an integer scalar to a running total that objective and schedules read with ``(getf ctx :name)``."""
    name = need_key(call, 0)
    if t.role != "prepare":
        raise UserError(codes.CONTRACT_COUNTER, call.span, f"counter :{name} outside prepare")
    value = scalar(t, call)
    if value.type.kind not in ("int", "uint"):
        raise UserError(codes.CONTRACT_METRIC, call.spans[1], f"a counter adds an integer scalar, not {value.type}")
    if name in CTX_KEYS:
        raise UserError(codes.CONTRACT_METRIC, call.span, f"the name :{name} is taken: ctx has it")
    if name in t.counters:
        raise UserError(
            codes.CONTRACT_METRIC,
            call.span,
            f"the counter :{name} is declared twice",
            (t.counters[name][1], "it is declared here first"),
        )
    t.counters[name] = (value, call.span)
    return value
