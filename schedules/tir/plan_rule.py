"""Schedule rules that share one plan: a rule answers for the programs whose plan has nests of certain kinds.

CPU and GPU have a plan function each. The rules differ in name and in the kinds that they take, so that the report
says of a kernel what it is made of. A plan is made once and remembered while the rules are asked in turn.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attrs

from .stages import NotStaged


@attrs.frozen
class PlanRule:
    """``plan``: (function, target) -> its plan, None if it cannot be planned; ``build``: plan -> scheduled function;
    ``takes``: does this rule accept a plan with nests of these kinds?"""

    plan: Callable[[Any, Any], Any]
    build: Callable[[Any], Any]
    name: str
    takes: Callable[[set[str]], bool]

    def apply(self, func: Any, target: Any) -> Any:
        plan = self.plan(func, target)
        return self.build(plan) if plan is not None and self.takes(set(plan.kinds)) else None


def memoized(make_plan: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """``make_plan``, its latest result remembered; None where it raises NotStaged."""

    # A single entry is enough, since all rules are asked for a program before the next program comes.
    @functools.lru_cache(maxsize=1)
    def plan(func: Any, target: Any) -> Any:
        try:
            return make_plan(func, target)
        except NotStaged:
            return None

    return plan
