"""What the examples' kernels ask of a GPU, by the audit: no launch that counts is written for a CPU's memory."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm")

from tvm import DataType, s_tir

import schedules
from lowering import emit, pipeline
from schedules.gpu.audit.launch_audit import MIB, audit
from schedules.tir.builder import shape_of
from schedules.tir.rewrite import collect
from sexpgpu.language.diagnostics import Report
from sexpgpu.language.runfile import load
from sexpgpu.phases.trace_run import trace_run

pytestmark = pytest.mark.build

EXAMPLES = Path(__file__).parents[3] / "examples"
TARGET = schedules.TARGETS["nvidia-h100"]


def lowered(example: str) -> pipeline.Lowered:
    report = Report()
    run = load(str(EXAMPLES / example / "run.sx"), report)
    plan = trace_run(run, report) if run else None
    assert plan and not report.errors
    pairs = {p.function: p.in_place for p in plan.phases if p.in_place}
    return pipeline.lower(emit.emit([p.graph for p in plan.phases]), pairs)


def tensors(func: Any) -> int:
    """Bytes of a program's tensors: no launch moves more, but for partial results."""
    made = [b for block in collect(func.body, s_tir.SBlock) for b in block.alloc_buffers]
    return sum(math.prod(shape_of(b)) * DataType(str(b.dtype)).itemsize for b in (*func.params, *made))


@pytest.mark.parametrize("example", ["tiny-generate", "characters", "route-planner"])
def test_launches_that_move_much_are_without_fault(example: str) -> None:
    wrong, large = {}, 0
    programs: dict[str, Any] = dict(lowered(example).programs)
    for name, func in programs.items():
        if tensors(func) <= MIB:
            continue
        large += 1
        done = schedules.first(func.with_attr("global_symbol", name), TARGET)
        assert done.func is not None and not done.failures, (name, done.failures)
        faults = [fault for launch in audit(done.func) for fault in launch.faults]
        if faults:
            wrong[name] = faults
    assert not wrong
    assert large or example == "tiny-generate"
