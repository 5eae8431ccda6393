"""Values that never reach memory: which buffers are virtual, and how a value is written out at one point.

A point of a nest binds each virtual value it needs once (``Bind`` statements before the store), so that a value read
by two later stages is neither computed twice nor written as a tree that doubles with every stage.
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
Expansion = Callable[[Any], tuple[Sequence[tuple[Any, Expr]], Expr]]  # a call's steps, each named, and its value

COSTLY = 8  # a division or a function counts this much beside an addition
_FREE = {"prim.if_then_else", "tirx.reinterpret"}
_IF = tirx.if_then_else(tirx.Var("c", "bool"), 1, 0).op


def _is_boolean(expr: Expr) -> bool:
    """Truth values and casts of them: TVM's analyzer cannot compute the range of a vector of those."""
    return str(expr.ty.dtype) == "bool" or (isinstance(expr, tirx.Cast) and str(expr.value.ty.dtype) == "bool")


def cost(expr: Expr) -> int:
    """Rough work of one evaluation in additions, virtual reads not followed."""
    cheap = collect(expr, (tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min))
    costly = [node for node in collect(expr, (Call, tirx.Div)) if not _is_free(node)]
    return len(cheap) + COSTLY * len(costly)


def _is_free(node: Any) -> bool:
    return isinstance(node, Call) and node.op.name in _FREE


class InlinedStages:
    """The map stages of a program whose buffer is never made, by buffer; ``real``: buffers that are."""

    def __init__(
        self, program: Program, contractions: Sequence[Stage], functions: Mapping[str, Expansion] | None = None,
        real: Collection[Any] = (),
    ) -> None:  # fmt: skip
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
        """Work of one evaluation of the stage's value, virtual reads included."""
        if stage.value is None:
            return 4 * max(1, len(loads(stage.serial[1]) if stage.serial else ()))
        return cost(stage.value) + sum(self._costs.get(x.source, 0) for x in loads(stage.value))

    def _should_inline(self, program: Program, stage: Stage, contractions: Sequence[Stage]) -> bool:
        users = [s for s in program.stages if any(x.source.same_as(stage.buffer) for x in s.reads)]
        # A serial body reads memory, and a buffer that two stages write has no one value.
        if any(u.serial for u in users) or any(stage.buffer in u.writes for u in program.stages if u is not stage):
            return False
        # A product evaluates its operand once for each tile that reads it: one product may, two would repeat all of it.
        # An operand widened from half precision is widened once, before the product (cpu/widen_operands.py).
        products = sum(u in contractions for u in users)
        if products > 1 or (products and half_load(stage.value) is not None):
            return False
        # What takes a division or a function is worked out once for each point; only what is cheaper may be repeated.
        is_repeated = len(users) > 1 or products or any(_is_recomputed(stage, u) for u in users)
        return self.cost(stage) < COSTLY or not is_repeated


def _has_let_steps(stage: Stage) -> bool:
    """Is the value one of many steps (a random draw)? It is a nest of its own."""
    return isinstance(stage.value, tirx.Let)


def is_plain_store(stage: Stage) -> bool:
    """Every axis stands alone at one place of the index, every other place is 0."""
    positions = [index for index in stage.indices if not is_int(index, 0)]
    axes = {axis.var for axis in stage.space}
    return len(positions) == len(axes) and set(positions) == axes


def _is_recomputed(stage: Stage, user: Stage) -> bool:
    """Would ``user`` evaluate a vector of ``stage`` over and over? A value constant along its last axis is hoisted."""
    innermost = (user.reduce or user.space)[-1:]
    reads = [x for x in loads(user.value) if x.source.same_as(stage.buffer)]
    varies = any(axis.var in variables(list(x.indices)) for axis in innermost for x in reads)
    return varies and user.points * user.depth >= 4 * stage.points


class ScalarWriter:
    """Writes expressions out at one point of a nest, and keeps the statements that must stand before.

    ``known``: buffers whose value at given indices the nest has at hand (an accumulator, a row).
    """

    def __init__(
        self, virtual: InlinedStages, provided: dict[Any, Provided] | None = None, analyzer: Any = None
    ) -> None:
        self.virtual = virtual
        self.provided = provided or {}
        self.analyzer = analyzer or Analyzer()
        self.binds: list[Stmt] = []
        self.conditions: list[Expr] = []  # conditions that were not settled, branches inside branches included
        self._memo: dict[tuple[Any, Any], Expr] = {}

    def write(self, expr: Expr, coords: dict[Any, Expr]) -> Expr:
        """``expr`` with axis variables replaced, virtual buffers written out and known ones looked up."""
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
        """A name for ``expr``, unless it is one already or a constant."""
        if isinstance(expr, Var | tirx.IntImm | tirx.FloatImm) or _is_boolean(expr):
            return expr
        if is_bf16(expr):
            return exact(self.bind(widen(expr), name))
        return self._bind_to_variable(expr, name)

    def _expand(self, call: Any) -> Expr:
        """A function that the target wants written out, its steps named: as one expression it would grow too fast."""
        function = self.virtual.functions.get(call.op.name)
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
        key = (read.source, tvm_ffi.StructuralKey(indices))
        if key in self._memo:
            return self._memo[key]
        if read.source in self.provided:
            value = self.provided[read.source](indices)
        elif read.source in self.virtual.stages:
            value = self.bind(self._evaluate(self.virtual.stages[read.source], indices))
        else:
            return tirx.BufferLoad(read.source, indices)
        self._memo[key] = value
        return value

    def _evaluate(self, stage: Stage, indices: Sequence[Expr]) -> Expr:
        """A virtual stage's value where its buffer is read."""
        return self.write(stage.value, dict(zip(stage.indices, indices, strict=True)))

    def _condition(self, call: Any, coords: dict[Any, Expr]) -> Expr:
        """An if_then_else whose branches are evaluated inside it only: they may read out of bounds elsewhere."""
        condition = self._simplify(self.write(call.args[0], coords))
        if is_int(condition):
            return self.write(call.args[1 if int(condition.value) else 2], coords)
        self.conditions.append(condition)
        chosen = tirx.if_then_else(condition, *(self._branch(branch, coords) for branch in call.args[1:]))
        return from_bits16(chosen) if is_bf16(call) else chosen

    def _branch(self, branch: Expr, at: dict[Any, Expr]) -> Expr:
        inner = ScalarWriter(self.virtual, self.provided, self.analyzer)
        inner.conditions = self.conditions
        value = inner.write(branch, at)
        value = bits16(value) if is_bf16(value) else value
        for let in reversed(inner.binds):
            value = tirx.Let(let.var, let.value, value)
        return value


def _lift_conditions(expr: Expr, lifted: dict[Any, Expr]) -> Expr:
    """``expr`` with a fresh variable for every outermost if_then_else; ``hidden`` says which for which."""

    def lift(call: Any) -> Any:
        if not call.op.same_as(_IF):
            return call
        var = tirx.Var("if", str(call.ty.dtype))
        lifted[var] = call
        return var

    return rewrite(expr, [(Call, lift)], order="pre")


def _lower_less_than(test: Any) -> Expr:
    """``0 < int64(flag)``, as a select is legalised, as ``flag``: lanes of one bit, not of 64."""
    flag = test.b.value if isinstance(test.b, tirx.Cast) else None
    if flag is not None and is_int(test.a, 0) and str(flag.ty.dtype) == "bool":
        return flag
    return test if not is_bf16(test.a) else tirx.LT(widen(test.a), widen(test.b))


_VECTORIZABLE: dict[str, bool] = {}


def can_vectorize(stmt: Stmt, lane: Any) -> bool:
    """Can every call whose arguments depend on ``lane`` be made of vectors?"""
    dependent = {lane}
    for let in collect(stmt, (tirx.Bind, tirx.Let), order="pre"):
        if variables(let.value) & dependent:
            dependent.add(let.var)
    return not any(_needs_scalars(call, dependent) for call in collect(stmt, Call))


def _needs_scalars(call: Any, dependent: set[Any]) -> bool:
    args = call.args[:1] if call.op.same_as(_IF) else call.args
    return not _op_vectorizes(call.op) and any(variables(arg) & dependent for arg in args)


def _op_vectorizes(op: Any) -> bool:
    if op.name == "tirx.reinterpret":
        return True
    if op.name not in _VECTORIZABLE:
        _VECTORIZABLE[op.name] = bool(op.get_attr("TVectorizable"))
    return _VECTORIZABLE[op.name]
