"""The schedule rules of a GPU in order, the most particular first.

Most of them build the same plan and differ in name alone: the name, which reports and records show, says what kinds of
nests the plan has. The others take programs that no plan reads.
"""

from __future__ import annotations

import functools

from ..tir.multi_tensor import MultiTensorRule
from ..tir.plan_rule import PlanRule, memoized
from .cumsum import Scan
from .fallback import ByHand, Fallback
from .multi_tensor import multi_tensor_launches
from .plan import build, function, make_plan
from .scatter_add import ScatterAddAlongColumns, SortedScatterAdd

_rule = functools.partial(PlanRule, memoized(lambda func, target: make_plan(func, target)), build)

ELEMENTWISE = _rule("elementwise", lambda kinds: kinds == {"map"})
HEADS = _rule("heads", lambda kinds: "heads" in kinds and kinds <= {"heads", "rows"})
MATMUL = _rule("matmul", lambda kinds: kinds == {"matmul"})
DRAWS = _rule("draws", lambda kinds: kinds == {"draws"})
ROWS = _rule("rows", lambda kinds: kinds <= {"rows", "map"})
COLUMNS = _rule("columns", lambda kinds: kinds <= {"columns", "map"})
MATRIX_UNITS = _rule("matrix-units", lambda kinds: "mma" in kinds)
MIXED = _rule("mixed", lambda kinds: True)
# Rules for loop programs come behind the plan's, which answer None for them; the last rule takes any program.
RULES = (
    MultiTensorRule(multi_tensor_launches, function),
    ELEMENTWISE,
    HEADS,
    MATMUL,
    MATRIX_UNITS,
    DRAWS,
    ROWS,
    COLUMNS,
    MIXED,
    Scan(),
    SortedScatterAdd(),
    ScatterAddAlongColumns(),
    ByHand(),
    Fallback(),
)
