"""The rules of a CPU target in order. The first looks for many tensors alike, the next six make the plan of nests
and take it if it is of their kind."""

from __future__ import annotations

import functools

from ..tir.multi_tensor import MultiTensorRule
from ..tir.plan_rule import PlanRule, memoized
from .fallback import ByHand, Fallback
from .multi_tensor import nests
from .plan import build, function, make_plan

_rule = functools.partial(PlanRule, memoized(lambda func, target: make_plan(func, target)), build)

HEADS = _rule("heads", lambda kinds: "heads" in kinds)
MATMUL = _rule("matmul", lambda kinds: "matmul" in kinds)
ELEMENTWISE = _rule("elementwise", lambda kinds: kinds == {"map"})
ROWS = _rule("rows", lambda kinds: kinds <= {"rows", "map"})
COLUMNS = _rule("columns", lambda kinds: kinds <= {"columns", "map"})
DRAWS = _rule("draws", lambda kinds: "draws" in kinds)
MIXED = _rule("mixed", lambda kinds: True)
RULES = (
    MultiTensorRule(nests, function),
    HEADS,
    MATMUL,
    ELEMENTWISE,
    ROWS,
    COLUMNS,
    DRAWS,
    MIXED,
    ByHand(),
    Fallback(),
)
