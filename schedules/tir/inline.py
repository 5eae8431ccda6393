"""Producer inlining: which elementwise stages are never stored, and how a value is written out at one element.

A stage that is cheap, or used once, is computed where it is read. A nest binds each such value once per element, by
``Bind`` statements before the store: substituted into each of two uses, expressions would double with every stage.
Inlining changes no bit: the same operations are done on the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Var
from tvm.sym import Analyzer

from .bfloat16 import Bfloat16Lowering, bits16, exact, from_bits16, is_bf16, widen
from .builder import Call, Expr, Load, Stmt, is_int
from .contraction import half_load
from .rewrite import collect, rewrite
from .stages import Program, Stage, loads, variables

Provided = Callable[[Sequence[Expr]], Expr]
Expansion = Callable[[Any], tuple[Sequence[tuple[Any, Expr]], Expr]]  # a call -> (variable, step) pairs, its value

# A division or a function, in additions; chosen, not measured. If it is too large, long chains of additions are
# recomputed at each read; if too small, cheap values go through memory. No bit depends on it.
COSTLY = 8
_FREE = {"prim.if_then_else", "tirx.reinterpret"}
_IF = tirx.if_then_else(tirx.Var("c", "bool"), 1, 0).op


def _is_boolean(expr: Expr) -> bool:
    """A truth value or its cast. No variable is bound to it: TVM's analyzer has no range for a vector of them."""
    return str(expr.ty.dtype) == "bool" or (isinstance(expr, tirx.Cast) and str(expr.value.ty.dtype) == "bool")


def cost(expr: Expr) -> int:
    """Rough cost of an evaluation in additions, without the inlined stages that it reads."""
    cheap = collect(expr, (tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min))
    costly = [node for node in collect(expr, (Call, tirx.Div)) if not _is_free(node)]
    return len(cheap) + COSTLY * len(costly)


def _is_free(node: Any) -> bool:
    return isinstance(node, Call) and node.op.name in _FREE


class InlinedStages:
    """The elementwise stages of a program that are computed where they are read: buffer -> stage.

    ``real``: buffers that are stored in any case. ``functions``: calls that the target wants expanded."""

    def __init__(
        self,
        program: Program,
        contractions: Sequence[Stage],
        functions: Mapping[str, Expansion] | None = None,
        real: Collection[Any] = (),
    ) -> None:
        self.functions = functions or {}
        self.stages: dict[Any, Stage] = {}
        self._costs: dict[Any, int] = {}
        for stage in program.stages:
            is_own = program.owns(stage.buffer) and stage.buffer not in real
            is_candidate = stage.is_elementwise and not stage.materialized and not _has_let_steps(stage)
            if not is_own or not is_candidate or not is_plain_store(stage):
                continue
            if self._should_inline(program, stage, contractions):
                self._costs[stage.buffer] = self.cost(stage)
                self.stages[stage.buffer] = stage

    def cost(self, stage: Stage) -> int:
        """Rough cost of an evaluation of the stage's value in additions, inlined stages included."""
        # A serial body: a guess by its loads, chosen, since its statements may be of any kind.
        if stage.value is None:
            return 4 * max(1, len(loads(stage.serial[1]) if stage.serial else ()))
        return cost(stage.value) + sum(self._costs.get(x.source, 0) for x in loads(stage.value))

    def _should_inline(self, program: Program, stage: Stage, contractions: Sequence[Stage]) -> bool:
        """Is recomputing the stage wherever it is read cheaper than storing and loading it?"""
        users = [s for s in program.stages if any(x.source.same_as(stage.buffer) for x in s.reads)]
        # A serial body reads memory, and a buffer that two stages write has no single value.
        if any(u.serial for u in users) or any(stage.buffer in u.writes for u in program.stages if u is not stage):
            return False
        # A product evaluates its operand once for each tile that reads it: a single product may, two would repeat all
        # of it. An operand widened from half precision is widened once, before the product (cpu/widen_operands.py).
        products = sum(u in contractions for u in users)
        if products > 1 or (products and half_load(stage.value) is not None):
            return False
        # What takes a division or a function is worked out once for each point; only what is cheaper may be repeated.
        is_repeated = len(users) > 1 or products or any(_is_recomputed(stage, u) for u in users)
        return self.cost(stage) < COSTLY or not is_repeated


def _has_let_steps(stage: Stage) -> bool:
    """Is the value a chain of Let steps (random words)? Such a stage has a nest of its own (``philox.py``)."""
    return isinstance(stage.value, tirx.Let)


def is_plain_store(stage: Stage) -> bool:
    """Is each axis alone in a dimension of the stored buffer, and every other index 0?"""
    positions = [index for index in stage.indices if not is_int(index, 0)]
    axes = {axis.var for axis in stage.space}
    return len(positions) == len(axes) and set(positions) == axes


def _is_recomputed(stage: Stage, user: Stage) -> bool:
    """Would ``user`` evaluate each vector of ``stage`` four times or more? A value that is constant along the innermost
    loop is hoisted out of it, and does not count."""
    innermost = (user.reduce or user.space)[-1:]
    reads = [x for x in loads(user.value) if x.source.same_as(stage.buffer)]
    varies = any(axis.var in variables(list(x.indices)) for axis in innermost for x in reads)
    # Four times is chosen, not measured: below, a store and the loads cost about as much as the repetition.
    return varies and user.points * user.depth >= 4 * stage.points


class ScalarWriter:
    """Writes the values of stages at an element of a nest, and collects the statements that must precede them.

    ``provided``: buffer -> function of indices, for values that the nest holds in registers (an accumulator, a row).
    ``binds``: the statements. ``conditions``: those that the ranges in ``analyzer`` do not decide.
    """

    def __init__(
        self, inlined: InlinedStages, provided: dict[Any, Provided] | None = None, analyzer: Any = None
    ) -> None:
        self.inlined = inlined
        self.provided = provided or {}
        self.analyzer = analyzer or Analyzer()
        self.binds: list[Stmt] = []
        self.conditions: list[Expr] = []  # of nested branches too
        self._memo: dict[tuple[Any, Any], Expr] = {}

    def write(self, expr: Expr, coords: dict[Any, Expr]) -> Expr:
        """``expr`` with axis variables replaced by ``coords``, inlined stages written out and provided values used."""
        # Branches are cut out first: rewritten together with the rest, their loads would be bound before the condition.
        lifted: dict[Any, Expr] = {}
        expr = _lift_conditions(expr, lifted)
        choices = {var: self._condition(call, coords) for var, call in lifted.items()}
        lowering = Bfloat16Lowering(self.bind)
        callbacks = [
            (Var, lambda v: choices.get(v, coords.get(v, v))),
            (Load, self._read),
            (tirx.LT, _lower_less_than),
            (Call, lambda call: self._expand(lowering.call(call))),
            *lowering.callbacks(),
        ]
        return rewrite(expr, callbacks)

    def indices(self, indices: Sequence[Expr], coords: dict[Any, Expr]) -> list[Expr]:
        return [self._simplify(self.write(index, coords)) for index in indices]

    def bind(self, expr: Expr, name: str = "x") -> Expr:
        """A variable bound to ``expr``; a variable or a constant is itself."""
        if isinstance(expr, Var | tirx.IntImm | tirx.FloatImm) or _is_boolean(expr):
            return expr
        if is_bf16(expr):
            return exact(self.bind(widen(expr), name))
        return self._bind_to_variable(expr, name)

    def _expand(self, call: Any) -> Expr:
        """A call that the target wants expanded. Its steps get variables: as a whole it would grow too fast."""
        function = self.inlined.functions.get(call.op.name)
        if function is None or str(call.ty.dtype) != "float32":
            return call
        steps, value = function(call)
        self.binds += [tirx.Bind(var, step) for var, step in steps]
        return value

    def _bind_to_variable(self, expr: Expr, name: str = "x") -> Expr:
        var = tirx.Var(name, str(expr.ty.dtype))
        self.binds.append(tirx.Bind(var, expr))
        return var

    def _simplify(self, expr: Expr) -> Expr:
        return self.analyzer.simplify(expr)

    def _read(self, read: Any) -> Expr:
        indices = [self._simplify(index) for index in read.indices]
        # Two stages that read the same element share its variable; simplified indices make equal elements equal keys.
        key = (read.source, tvm_ffi.StructuralKey(indices))
        if key in self._memo:
            return self._memo[key]
        if read.source in self.provided:
            value = self.provided[read.source](indices)
        elif read.source in self.inlined.stages:
            value = self.bind(self._evaluate(self.inlined.stages[read.source], indices))
        else:
            return tirx.BufferLoad(read.source, indices)
        self._memo[key] = value
        return value

    def _evaluate(self, stage: Stage, indices: Sequence[Expr]) -> Expr:
        """The value of an inlined stage at the indices at which its buffer is read."""
        return self.write(stage.value, dict(zip(stage.indices, indices, strict=True)))

    def _condition(self, call: Any, coords: dict[Any, Expr]) -> Expr:
        """An if_then_else, each branch computed inside it only: outside, its loads may be out of bounds."""
        condition = self._simplify(self.write(call.args[0], coords))
        if is_int(condition):
            return self.write(call.args[1 if int(condition.value) else 2], coords)
        self.conditions.append(condition)
        chosen = tirx.if_then_else(condition, *(self._branch(branch, coords) for branch in call.args[1:]))
        return from_bits16(chosen) if is_bf16(call) else chosen

    def _branch(self, branch: Expr, coords: dict[Any, Expr]) -> Expr:
        """The value of a branch as a single expression: its steps are nested Lets, evaluated only if it is taken."""
        inner = ScalarWriter(self.inlined, self.provided, self.analyzer)
        inner.conditions = self.conditions
        value = inner.write(branch, coords)
        value = bits16(value) if is_bf16(value) else value
        for let in reversed(inner.binds):
            value = tirx.Let(let.var, let.value, value)
        return value


def _lift_conditions(expr: Expr, lifted: dict[Any, Expr]) -> Expr:
    """``expr`` with a fresh variable for every outermost if_then_else. ``lifted`` gets variable -> if_then_else."""

    def lift(call: Any) -> Any:
        if not call.op.same_as(_IF):
            return call
        var = tirx.Var("if", str(call.ty.dtype))
        lifted[var] = call
        return var

    # Outermost first: a nested condition belongs to its branch, and is lifted when that is written.
    return rewrite(expr, [(Call, lift)], order="pre")


def _lower_less_than(test: Any) -> Expr:
    """``0 < int64(flag)``, into which TVM legalizes a select's condition, back to ``flag``: 1-bit lanes, not 64-bit."""
    flag = test.b.value if isinstance(test.b, tirx.Cast) else None
    if flag is not None and is_int(test.a, 0) and str(flag.ty.dtype) == "bool":
        return flag
    return test if not is_bf16(test.a) else tirx.LT(widen(test.a), widen(test.b))


_VECTORIZABLE: dict[str, bool] = {}


def can_vectorize(stmt: Stmt, lane: Any) -> bool:
    """Does every call whose arguments depend on ``lane`` have a vector form?"""
    dependent = {lane}
    for let in collect(stmt, (tirx.Bind, tirx.Let), order="pre"):
        if variables(let.value) & dependent:
            dependent.add(let.var)
    return not any(_needs_scalars(call, dependent) for call in collect(stmt, Call))


def _needs_scalars(call: Any, dependent: set[Any]) -> bool:
    args = call.args[:1] if call.op.same_as(_IF) else call.args
    return not _op_vectorizes(call.op) and any(variables(arg) & dependent for arg in args)


def _op_vectorizes(op: Any) -> bool:
    # TVM vectorizes it all the same, though its operator has no such mark.
    if op.name == "tirx.reinterpret":
        return True
    if op.name not in _VECTORIZABLE:
        _VECTORIZABLE[op.name] = bool(op.get_attr("TVectorizable"))
    return _VECTORIZABLE[op.name]
