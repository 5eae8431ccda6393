"""``sexpgpu explain`` with a target: what the cost model expects of it, or what a build for it would report."""

from __future__ import annotations

from collections.abc import Mapping

from ..build.compile import compile_plan
from ..build.driver import report_text, run_memory
from ..build.options import CompileOptions
from ..build.targets import find_targets, rates_of
from ..phases.plan import Plan
from ..planning.cost_model import Rates
from ..reports.output import line


def explain_cost(plan: Plan, rates: Mapping[str, Rates], json: bool) -> str:
    """``sexpgpu explain --cost``: the cost model's figures at the ``rates`` of each target."""
    from ..reports.cost import cost_data, cost_text

    return line(cost_data(plan, rates)) + "\n" if json else cost_text(plan, rates)


def explain_lowered(plan: Plan, options: CompileOptions, json: bool) -> str:
    """``sexpgpu explain --target``: what a build for these targets would report."""
    from ..build.report import lowering_data

    targets = find_targets(options.target)
    made = compile_plan(plan, targets, options)
    memory = run_memory(plan, made)
    if json:
        return line(lowering_data(plan, made, rates_of(targets), memory)) + "\n"
    return report_text(plan, made, targets, memory)
