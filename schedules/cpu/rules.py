"""The rules of a CPU target in order. Each makes the plan of nests and takes it if it is of its kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from .plan import Plan, build, make_plan
from .stages import NotStaged


@attrs.frozen
class PlanRule:
    name: str
    takes: Callable[[tuple[str, ...]], bool]

    def apply(self, func: Any, target: Any) -> Any:
        try:
            plan: Plan = make_plan(func, target)
        except NotStaged:
            return None
        return build(plan) if self.takes(plan.kinds) else None


MATMUL = PlanRule("matmul", lambda kinds: "matmul" in kinds)
ELEMENTWISE = PlanRule("elementwise", lambda kinds: set(kinds) == {"map"})
ROWS = PlanRule("rows", lambda kinds: set(kinds) <= {"rows", "map"})
COLUMNS = PlanRule("columns", lambda kinds: set(kinds) <= {"columns", "map"})
MIXED = PlanRule("mixed", lambda kinds: True)
RULES = (MATMUL, ELEMENTWISE, ROWS, COLUMNS, MIXED)
