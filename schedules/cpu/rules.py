"""The rules of a CPU target in order. The first five make the plan of nests and take it if it is of their kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from .fallback import ByHand, Fallback
from .plan import build, make_plan
from .stages import NotStaged


@attrs.frozen
class PlanRule:
    """``takes``: is a plan with nests of these kinds this rule's?"""

    name: str
    takes: Callable[[set[str]], bool]

    def apply(self, func: Any, target: Any) -> Any:
        try:
            plan = make_plan(func, target)
        except NotStaged:
            return None
        return build(plan) if self.takes(set(plan.kinds)) else None


MATMUL = PlanRule("matmul", lambda kinds: "matmul" in kinds)
ELEMENTWISE = PlanRule("elementwise", lambda kinds: kinds == {"map"})
ROWS = PlanRule("rows", lambda kinds: kinds <= {"rows", "map"})
COLUMNS = PlanRule("columns", lambda kinds: kinds <= {"columns", "map"})
MIXED = PlanRule("mixed", lambda kinds: True)
RULES = (MATMUL, ELEMENTWISE, ROWS, COLUMNS, MIXED, ByHand(), Fallback())
