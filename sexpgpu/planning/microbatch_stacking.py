"""Stacking of microbatches: a phase's graph made into one for k of them, and whether a run may use it.

Each copy has its own batch, state and records; parameters, the seed, the trip and the step's numbers are shared. What
the copies leave is what the microbatches leave one after the other: gradients and counters are added in their order.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve

from ..graph.core import Builder, Graph, GraphFull, Value
from ..graph.simplify import simplify
from ..graph.verify import verify
from ..language import codes
from ..language.diagnostics import UserError
from ..ops import OPS
from ..ops.batching import Lane, Stacker, one_by_one, pointwise
from ..ops.types import ShapeFault, TensorType
from ..phases.plan import Phase, Plan, Port, Stacking
from ..phases.trace_run import pairs
from ..trace.values import CTX_MOVING
from .cost_model import Rates, calls, step_seconds
from .fusion_model import kernels
from .memory_plan import estimate

OWN = ("field", "generated", "state")  # kinds of inputs that each copy has its own of
CARRIED = ("gradient", "counter")  # kinds that a call takes, adds to and hands on


def stackable(phase: Phase) -> bool:
    """Is it a phase of a microbatch?"""
    return phase.name == "train" or phase.name.startswith("generate.")


def is_own(port: Port) -> bool:
    """Does each copy have its own tensor at this port?"""
    return port.kind in OWN or (port.kind == "ctx" and port.name in CTX_MOVING)


def leading(k: int, t: TensorType) -> TensorType:
    """``t`` with an axis of ``k`` in front."""
    return TensorType((k, *t.shape), t.dtype)


def stack_phase(phase: Phase, k: int) -> Phase:
    """``phase`` for k microbatches in one call, under the name ``NAME*k``.

    Inputs and outputs that are each copy's own, metrics among them, have the shape [k, *shape]; a diagnostic is the
    last copy's. Raises ShapeFault where a tensor would have too many axes, GraphFull.
    """
    copies = Copies(phase, k)
    outputs = [copies.output(p, v) for p, (_, v) in zip(phase.outputs, phase.graph.outputs, strict=True)]
    names = [name for name, _ in phase.graph.outputs]
    graph = Graph(f"{phase.function}_{k}", copies.inputs, tuple(zip(names, outputs, strict=True)))
    verified: set[Value] = set()
    verify(graph, f"stacking {phase.name}", verified)
    graph = simplify(graph)
    verify(graph, f"simplifying {phase.name} stacked", verified)
    inputs = tuple(Port(p.kind, p.name, v.type) for p, v in zip(phase.inputs, graph.inputs, strict=True))
    made = tuple(Port(p.kind, p.name, v.type) for p, (_, v) in zip(phase.outputs, graph.outputs, strict=True))
    return Phase(f"{phase.name}*{k}", graph, inputs, made, pairs(graph, inputs, made), k)


class Copies:
    """The values of one phase as k copies, so far."""

    def __init__(self, phase: Phase, k: int) -> None:
        self.builder = Builder()
        self.stacker = Stacker(self.builder, k)
        self.k = k
        self.lanes: dict[Value, Lane] = {}
        self.totals: dict[Value, Value] = {}  # a carried output -> what was carried into it
        self.inputs = tuple(self.input(p, v) for p, v in zip(phase.inputs, phase.graph.inputs, strict=True))
        self.carried(phase)
        for v in phase.graph.values():
            if v not in self.lanes:
                self.builder.span, self.builder.region = v.span, v.region
                self.lanes[v] = self.running(v) if v in self.totals else self.apply(v)
        self.builder.region = 0

    def input(self, port: Port, v: Value) -> Value:
        new = evolve(v, type=leading(self.k, v.type)) if is_own(port) else v
        self.lanes[v] = Lane(new, v.type, not is_own(port))
        return new

    def carried(self, phase: Phase) -> None:
        """Outputs that are an input of their own name with something added; training.py makes them so."""
        given = {(p.kind, p.name): v for p, v in zip(phase.inputs, phase.graph.inputs, strict=True)}
        for port, (_, v) in zip(phase.outputs, phase.graph.outputs, strict=True):
            total = given.get((port.kind, port.name))
            if port.kind in CARRIED and total is not None:
                assert v.op == "+" and v.args[0] is total, f"{port.kind} {port.name} is not added to its input"
                self.totals[v] = total

    def apply(self, v: Value) -> Lane:
        xs = tuple(self.lanes[a] for a in v.args)
        if all(x.shared for x in xs):
            value = v if all(x.value is a for x, a in zip(xs, v.args, strict=True)) else self.again(v, xs)
            return Lane(value, v.type, True)
        row = OPS[v.op]
        rule = row.stack or (pointwise if row.elementwise else one_by_one)
        made = rule(self.stacker, v.op, xs, dict(v.attrs))
        assert made.type in (v.type, leading(self.k, v.type)), f"{v.op} stacked is {made.type}, of {v.type}"
        return Lane(made, v.type, made.type == v.type)

    def again(self, v: Value, xs: tuple[Lane, ...]) -> Value:
        return evolve(v, args=tuple(x.value for x in xs))

    def running(self, v: Value) -> Lane:
        """The carried total after each copy. Only counters are read again, and integers may be added in any order."""
        if v.type.kind == "float":
            return Lane(v, v.type, False)  # a gradient: read by nothing, made by ``output``
        sums = self.builder("cumsum", self.stacker.copies(self.lanes[v.args[1]]), axis=0)
        return Lane(self.builder("+", self.totals[v], sums), v.type, False)

    def output(self, port: Port, v: Value) -> Value:
        if port.kind == "gradient" and v in self.totals:
            total, more = self.totals[v], self.lanes[v.args[1]]
            for c in range(self.k):
                total = self.builder("+", total, self.stacker.part(more, c))
            return total
        if port.kind in ("counter", "diagnostic"):
            return self.stacker.part(self.lanes[v], self.k - 1)
        return self.stacker.copies(self.lanes[v])


# -- a run ----------------------------------------------------------------------------------------------------------


def refusal(plan: Plan) -> UserError | None:
    """Why no degree but 1 is possible, if so: the generator reads what moves from microbatch to microbatch. A read
    that nothing comes of is no input of its phase, and does not count."""
    for phase in plan.phases:
        if not phase.name.startswith("generate."):
            continue
        for port, v in zip(phase.inputs, phase.graph.inputs, strict=True):
            if port.kind == "ctx" and port.name in CTX_MOVING:
                what = f"{phase.name} reads :{port.name}, which differs between the microbatches of a stacked call"
                hint = "a draw salted by :step alone stacks"
                return UserError(codes.STACK_READ, v.span, what, hint=hint)
    return None


MOST = 16  # microbatches a call that auto may choose: memory grows with them, and few launches are left to save
UNDECIDED = "auto is decided for a target: see explain --target, or --cost"


def stacked(plan: Plan, degree: int | None, rates: Iterable[Rates] = (), limit: int | None = None) -> Plan:
    """``plan`` with ``degree`` microbatches a call; with None, as many as cost least at ``rates``, those of the targets
    added up, within ``limit`` bytes of memory, and 1 where it must be."""
    if plan.settings.microbatches == 1 and degree is None:
        return plan
    fault, rates = refusal(plan), tuple(rates)
    chosen = plan if degree is None else stack_plan(plan, degree)
    offers = [plan] if fault else [p for d in degrees(plan.settings.microbatches) if (p := possible(plan, d))]
    reason = ""
    if degree is None and (fault or not rates):
        reason = fault.message if fault else UNDECIDED
    elif degree is None:
        fit = [p for p in offers if p.stacking.degree == 1 or is_within(p, limit)]
        chosen = min(fit, key=lambda p: sum(step_seconds(p.phases, p.settings, each, p.trips) for each in rates))
    return evolve(chosen, stacking=Stacking(chosen.stacking.degree, reason, tuple(map(offer, offers))))


def is_within(plan: Plan, limit: int | None) -> bool:
    """Does the estimated memory stay within ``limit`` bytes? None: there is no limit."""
    return limit is None or estimate(plan).total <= limit


def offer(plan: Plan) -> tuple[int, int, int]:
    """The degree of ``plan``, and the calls and kernels of its step."""
    count = {p.function: calls(p, plan.phases, plan.settings, plan.trips) for p in plan.phases}
    launched = sum(n * len(kernels(p.graph, p.in_place)) for p in plan.phases if (n := count[p.function]))
    return plan.stacking.degree, sum(count.values()), launched


def degrees(microbatches: int) -> list[int]:
    """What auto looks at: the powers of two and all of a step's microbatches, the smallest first."""
    powers = [2**n for n in range(MOST.bit_length())]
    return sorted(d for d in {*powers, microbatches} if d <= min(microbatches, MOST))


def possible(plan: Plan, degree: int) -> Plan | None:
    """The plan stacked; None where a graph would be too large."""
    try:
        return stack_plan(plan, degree)
    except UserError:
        return None


def stack_plan(plan: Plan, degree: int) -> Plan:
    """``plan`` with ``degree`` microbatches a call. E-STACK-001 where the degree does not fit, E-STACK-002
    where the generator cannot."""
    microbatches = plan.settings.microbatches
    if degree > microbatches:
        what = f"--stack is {degree}, and a step has {microbatches} microbatch{'es' if microbatches > 1 else ''}"
        raise UserError(codes.STACK_DEGREE, None, what, hint=f"at most {microbatches}, or auto")
    if degree == 1:
        return plan
    if fault := refusal(plan):
        raise fault
    try:
        copies = {p.name: stack_phase(p, degree) for p in plan.phases if stackable(p)}
    except (ShapeFault, GraphFull) as limit:
        raise UserError(codes.STACK_DEGREE, None, f"--stack {degree} is too much: {limit}") from None
    single = single_phases(plan, degree)
    phases = [q for p in plan.phases for q in both(p, copies.get(p.name), single)]
    return evolve(plan, phases=tuple(phases), stacking=Stacking(degree))


def both(phase: Phase, stacked: Phase | None, single: set[str]) -> list[Phase]:
    """The phase where it runs unstacked, and its stacked form where it has one."""
    if stacked is None:
        return [phase]
    return [phase, stacked] if phase.name in single else [stacked]


def single_phases(plan: Plan, degree: int) -> set[str]:
    """Names of the phases of a microbatch that still run for one alone: a rest, and a pass's generator."""
    rest = plan.settings.microbatches % degree
    passes = any(plan.evaluates.values())
    return {p.name for p in plan.phases if stackable(p) and (rest or (passes and p.name != "train"))}
