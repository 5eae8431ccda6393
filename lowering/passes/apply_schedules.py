"""Every tensor program is offered to the scheduler; what it answered is kept for the report."""

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
    launches: on a GPU: what each launch asks of it, as the audit says
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
    """The module with each program as the scheduler made it, and name -> (rule, failures)."""
    module, told = module.clone(), {}
    for gv, func in sorted(module.functions_items(), key=lambda item: item[0].name_hint):
        if isinstance(func, tirx.PrimFunc):
            better, rule, failures = _ask(func, target, scheduler)
            told[gv.name_hint] = (rule, failures)
            if better is not None:
                module.update_func(gv, _like(better, func))
    return module, told


def _ask(func: tirx.PrimFunc, target: tvm.target.Target, scheduler: Scheduler) -> tuple[Any, str, tuple[str, ...]]:
    """A scheduler that raises counts as one that has no rule: a slow kernel is better than no build."""
    try:
        answer = scheduler(func, target)
    except Exception as fault:  # noqa: BLE001  (whatever a rule does wrong)
        return None, "", (f"{type(fault).__name__}: {' '.join(str(fault).split())[-200:]}",)
    return answer.func, answer.rule if answer.func is not None else "", tuple(answer.failures)


def _like(better: Any, func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``better`` under the name of ``func`` and with its word on aliasing, whatever the schedule made of these."""
    for key in ("global_symbol", "tirx.noalias"):
        if func.attrs and key in func.attrs:
            better = better.with_attr(key, func.attrs[key])
        elif better.attrs and key in better.attrs:
            better = better.without_attr(key)
    return better
