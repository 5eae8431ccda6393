"""The kernels that the cost model expects, beside those that the lowering makes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lowering import emit, pipeline
from sexpgpu.language.diagnostics import Report
from sexpgpu.language.runfile import load
from sexpgpu.phases.trace_run import trace_run
from sexpgpu.planning.fusion_model import kernels

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["tiny-generate/run.sx", "route-planner/small.sx", "characters/run.sx"])
def test_the_graphs_tell_the_kernels_of_a_call(name: str) -> None:
    """Within a tenth and three: a softmax that the lowering joins, a move that it does not, are the model's to miss."""
    report = Report()
    run = load(str(EXAMPLES / name), report)
    plan = run and trace_run(run, report)
    assert plan and not report
    pairs = {p.function: p.in_place for p in plan.phases if p.in_place}
    lowered = pipeline.lower(emit.emit([p.graph for p in plan.phases]), pairs)
    true = Counter[str]()
    for of in lowered.calls.values():
        true.update(of)
    # The model takes the optimizer for one kernel a kind; the lowering deals each out among calls of two programs.
    true["update"] = len({name.rstrip("0123456789") for name, of in lowered.calls.items() if "update" in of})
    for phase in plan.phases:
        expected = len(kernels(phase.graph, phase.in_place))
        assert abs(expected - true[phase.function]) <= 3 + true[phase.function] / 10, (phase.name, expected, true)
    assert len(kernels(plan.phase("update").graph, plan.phase("update").in_place)) == true["update"] == 2
