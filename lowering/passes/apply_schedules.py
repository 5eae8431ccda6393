"""Schedules every tensor program, and records which rule took it for the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
from attrs import frozen
from tvm import tirx

# (program, target) -> an object with .func (a program or None), .rule (its name) and .failures (texts)
Scheduler = Callable[[tirx.PrimFunc, tvm.target.Target], Any]


@frozen
class Kernel:
    """One compiled tensor program.

    kernel:   its name
    rule:     the schedule rule that was used, "" for none
    failures: what went wrong in rules that were tried
    calls:    function symbol -> how many times one call of it runs this kernel
    workspace: bytes it allocates for itself on the heap
    launches: on a GPU: the audit's figures of each launch
    """

    kernel: str
    rule: str
    failures: tuple[str, ...]
    calls: Mapping[str, int]
    workspace: int
    launches: tuple[Mapping[str, Any], ...] = ()


def schedule(
    module: tvm.IRModule, target: tvm.target.Target, scheduler: Scheduler
) -> tuple[tvm.IRModule, dict[str, tuple[str, tuple[str, ...]]]]:
    """The module with its programs scheduled, and name -> (rule, failures). A program that no rule took stays as it
    is."""
    module, outcomes = module.clone(), {}
    for gv, func in sorted(module.functions_items(), key=lambda item: item[0].name_hint):
        if isinstance(func, tirx.PrimFunc):
            scheduled, rule, failures = _run_scheduler(func, target, scheduler)
            outcomes[gv.name_hint] = (rule, failures)
            if scheduled is not None:
                module.update_func(gv, _with_attributes_of(scheduled, func))
    return module, outcomes


def _run_scheduler(
    func: tirx.PrimFunc, target: tvm.target.Target, scheduler: Scheduler
) -> tuple[Any, str, tuple[str, ...]]:
    """The scheduled program or None, the rule, the failures. A scheduler that raises counts as one without a rule: a
    slow kernel is better than no build."""
    try:
        answer = scheduler(func, target)
    except Exception as error:  # noqa: BLE001  (whatever a rule does wrong)
        return None, "", (f"{type(error).__name__}: {' '.join(str(error).split())[-200:]}",)
    return answer.func, answer.rule if answer.func is not None else "", tuple(answer.failures)


def _with_attributes_of(scheduled: Any, func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``scheduled`` with the symbol and the noalias attribute of ``func``: a schedule may have dropped or added
    them."""
    for key in ("global_symbol", "tirx.noalias"):
        if func.attrs and key in func.attrs:
            scheduled = scheduled.with_attr(key, func.attrs[key])
        elif scheduled.attrs and key in scheduled.attrs:
            scheduled = scheduled.without_attr(key)
    return scheduled
