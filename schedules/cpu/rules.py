"""The rules of a CPU target, from the most special to the most general.

The first takes programs of many tensors of one form. The next seven share a plan of nests (``plan.py``), and each takes
plans with nests of its kinds. The last two take programs that have no plan.
"""

from __future__ import annotations

import functools

from ..tir.multi_tensor import MultiTensorRule
from ..tir.plan_rule import PlanRule, memoized
from .fallback import ExplicitLoopsRule, FallbackRule
from .multi_tensor import multi_tensor_nests
from .plan import build, make_function, make_plan

# A lambda, not make_plan itself, so that the name is looked up at each call: tests count the calls.
_rule = functools.partial(PlanRule, memoized(lambda func, target: make_plan(func, target)), build)

ATTENTION = _rule("attention", lambda kinds: "attention" in kinds)
MATMUL = _rule("matmul", lambda kinds: "matmul" in kinds)
ELEMENTWISE = _rule("elementwise", lambda kinds: kinds == {"elementwise"})
ROW_REDUCTION = _rule("row-reduction", lambda kinds: kinds <= {"row-reduction", "elementwise"})
COLUMN_REDUCTION = _rule("column-reduction", lambda kinds: kinds <= {"column-reduction", "elementwise"})
PHILOX = _rule("philox", lambda kinds: "philox" in kinds)
MIXED = _rule("mixed", lambda kinds: True)
RULES = (
    MultiTensorRule(multi_tensor_nests, make_function),
    ATTENTION,
    MATMUL,
    ELEMENTWISE,
    ROW_REDUCTION,
    COLUMN_REDUCTION,
    PHILOX,
    MIXED,
    ExplicitLoopsRule(),
    FallbackRule(),
)
