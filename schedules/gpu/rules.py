"""The schedule rules of a GPU in order, the most particular first.

Most of them build the same plan and differ in name alone: the name, which reports and records show, says what kinds of
nests the plan has. The others take programs that no plan reads.
"""

from __future__ import annotations

import functools

from ..tir.multi_tensor import MultiTensorRule
from ..tir.plan_rule import PlanRule, memoized
from .cumsum import Cumsum
from .fallback import ExplicitLoops, Fallback
from .multi_tensor import multi_tensor_launches
from .plan import build, function, make_plan
from .scatter_add import ScatterAddAlongColumns, SortedScatterAdd

_rule = functools.partial(PlanRule, memoized(lambda func, target: make_plan(func, target)), build)

ELEMENTWISE = _rule("elementwise", lambda kinds: kinds == {"elementwise"})
ATTENTION = _rule("attention", lambda kinds: "attention" in kinds and kinds <= {"attention", "row-reduction"})
MATMUL = _rule("matmul", lambda kinds: kinds == {"matmul"})
PHILOX = _rule("philox", lambda kinds: kinds == {"philox"})
ROW_REDUCTION = _rule("row-reduction", lambda kinds: kinds <= {"row-reduction", "elementwise"})
COLUMN_REDUCTION = _rule("column-reduction", lambda kinds: kinds <= {"column-reduction", "elementwise"})
TENSOR_CORE = _rule("tensor-core", lambda kinds: "tensor-core" in kinds)
MIXED = _rule("mixed", lambda kinds: True)
# Rules for loop programs come behind the plan's, which answer None for them; the last rule takes any program.
RULES = (
    MultiTensorRule(multi_tensor_launches, function),
    ELEMENTWISE,
    ATTENTION,
    MATMUL,
    TENSOR_CORE,
    PHILOX,
    ROW_REDUCTION,
    COLUMN_REDUCTION,
    MIXED,
    Cumsum(),
    SortedScatterAdd(),
    ScatterAddAlongColumns(),
    ExplicitLoops(),
    Fallback(),
)
