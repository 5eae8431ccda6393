"""The rules of a GPU in order. Those of the plan differ in name alone, which says what nests a plan has."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attrs

from ..cpu.stages import NotStaged
from .fallback import ByHand, Fallback
from .members import Pieces
from .places import SumsAlong, SumsAtPlaces
from .plan import Plan, build, make_plan
from .scan import Scan


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


ELEMENTWISE = PlanRule("elementwise", lambda kinds: kinds == {"map"})
HEADS = PlanRule("heads", lambda kinds: kinds == {"heads"})
MATMUL = PlanRule("matmul", lambda kinds: kinds == {"matmul"})
DRAWS = PlanRule("draws", lambda kinds: kinds == {"draws"})
ROWS = PlanRule("rows", lambda kinds: kinds <= {"rows", "map"})
COLUMNS = PlanRule("columns", lambda kinds: kinds <= {"columns", "map"})
MATRIX_UNITS = PlanRule("matrix-units", lambda kinds: "mma" in kinds)
MIXED = PlanRule("mixed", lambda kinds: True)
RULES = (
    Pieces(), ELEMENTWISE, HEADS, MATMUL, MATRIX_UNITS, DRAWS, ROWS, COLUMNS, MIXED, Scan(), SumsAtPlaces(),
    SumsAlong(), ByHand(), Fallback(),
)  # fmt: skip
