"""The rules of a GPU in order. Those of the plan differ in name alone, which says what nests a plan has."""

from __future__ import annotations

import functools

from ..tir.multi_tensor import MultiTensorRule
from ..tir.plan_rule import PlanRule, memoized
from .cumsum import Scan
from .fallback import ByHand, Fallback
from .multi_tensor import nests
from .plan import build, function, make_plan
from .scatter_add import SumsAlong, SumsAtPlaces

_rule = functools.partial(PlanRule, memoized(lambda func, target: make_plan(func, target)), build)

ELEMENTWISE = _rule("elementwise", lambda kinds: kinds == {"map"})
HEADS = _rule("heads", lambda kinds: "heads" in kinds and kinds <= {"heads", "rows"})
MATMUL = _rule("matmul", lambda kinds: kinds == {"matmul"})
DRAWS = _rule("draws", lambda kinds: kinds == {"draws"})
ROWS = _rule("rows", lambda kinds: kinds <= {"rows", "map"})
COLUMNS = _rule("columns", lambda kinds: kinds <= {"columns", "map"})
MATRIX_UNITS = _rule("matrix-units", lambda kinds: "mma" in kinds)
MIXED = _rule("mixed", lambda kinds: True)
RULES = (
    MultiTensorRule(nests, function), ELEMENTWISE, HEADS, MATMUL, MATRIX_UNITS, DRAWS, ROWS, COLUMNS, MIXED, Scan(),
    SumsAtPlaces(), SumsAlong(), ByHand(), Fallback(),
)  # fmt: skip
