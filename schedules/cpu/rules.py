"""The rules of a CPU target in order. The first looks for many tensors alike, the next six make the plan of nests
and take it if it is of their kind."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attrs

from .fallback import ByHand, Fallback
from .pieces import Pieces
from .plan import Plan, build, make_plan
from .stages import NotStaged


@functools.lru_cache(maxsize=1)
def _plan(func: Any, target: Any) -> Plan | None:
    """None for a program that cannot be planned. The rules ask one after the other for the same one."""
    try:
        return make_plan(func, target)
    except NotStaged:
        return None


@attrs.frozen
class PlanRule:
    """``takes``: is a plan with nests of these kinds this rule's?"""

    name: str
    takes: Callable[[set[str]], bool]

    def apply(self, func: Any, target: Any) -> Any:
        plan = _plan(func, target)
        return build(plan) if plan is not None and self.takes(set(plan.kinds)) else None


HEADS = PlanRule("heads", lambda kinds: "heads" in kinds)
MATMUL = PlanRule("matmul", lambda kinds: "matmul" in kinds)
ELEMENTWISE = PlanRule("elementwise", lambda kinds: kinds == {"map"})
ROWS = PlanRule("rows", lambda kinds: kinds <= {"rows", "map"})
COLUMNS = PlanRule("columns", lambda kinds: kinds <= {"columns", "map"})
DRAWS = PlanRule("draws", lambda kinds: "draws" in kinds)
MIXED = PlanRule("mixed", lambda kinds: True)
RULES = (Pieces(), HEADS, MATMUL, ELEMENTWISE, ROWS, COLUMNS, DRAWS, MIXED, ByHand(), Fallback())
