"""A rule that takes the programs whose plan has nests of some kinds: CPU and GPU alike."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attrs

from .stages import NotStaged


@attrs.frozen
class PlanRule:
    """``plan``: (program, target) -> its plan, None for a program that cannot be planned; ``build``: plan -> program;
    ``takes``: is a plan with nests of these kinds this rule's?"""

    plan: Callable[[Any, Any], Any]
    build: Callable[[Any], Any]
    name: str
    takes: Callable[[set[str]], bool]

    def apply(self, func: Any, target: Any) -> Any:
        plan = self.plan(func, target)
        return self.build(plan) if plan is not None and self.takes(set(plan.kinds)) else None


def memoized(make_plan: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """``make_plan`` for rules that ask one after the other for the same plan; None where it raises NotStaged."""

    @functools.lru_cache(maxsize=1)
    def plan(func: Any, target: Any) -> Any:
        try:
            return make_plan(func, target)
        except NotStaged:
            return None

    return plan
