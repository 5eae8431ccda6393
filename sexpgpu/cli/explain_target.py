"""``sexpgpu explain`` with a target: what the cost model expects of it, or what a build for it would report."""

from __future__ import annotations

import argparse

from ..build.compile import compile_plan
from ..build.driver import report_text, run_memory
from ..build.targets import find_targets, rates_named, rates_of
from ..phases.plan import Plan
from ..reports.output import as_json, line


def explain_cost(plan: Plan, options: argparse.Namespace) -> str:
    """``sexpgpu explain --cost``: the cost model's figures, by default for all targets of this architecture."""
    from ..reports.cost import cost_data, cost_text

    rates = rates_named("cpu" if options.target is None else options.target, compiles=False)
    return line(cost_data(plan, rates)) + "\n" if as_json(options) else cost_text(plan, rates)


def explain_lowered(plan: Plan, options: argparse.Namespace) -> str:
    """``sexpgpu explain --target``: what a build for these targets would report."""
    from ..build.report import lowering_data

    targets = find_targets(options.target)
    made = compile_plan(plan, targets, options)
    memory = run_memory(plan, made)
    if as_json(options):
        return line(lowering_data(plan, made, rates_of(targets), memory)) + "\n"
    return report_text(plan, made, targets, memory)
