"""Operators made into programs once each: the module is that of TVM's own pass."""

from __future__ import annotations

import pytest
from lowering_runs import tvm

from lowering import emit
from lowering.passes.legalize import legalize
from sexpgpu.language.diagnostics import Report
from sexpgpu.language.runfile import load
from sexpgpu.phases.trace_run import trace_run
from tests.conftest import EXAMPLES

pytestmark = pytest.mark.build
R, T = tvm.relax, tvm.relax.TensorType


def module(build):
    """One function of x, y: f32[4 3] and the values that ``build(x, y)`` lists."""
    x, y = R.Var("x", T((4, 3), "float32")), R.Var("y", T((4, 3), "float32"))
    builder = R.BlockBuilder()
    with builder.function("f", [x, y]):
        with builder.dataflow():
            made = builder.emit_output(R.Tuple([builder.emit(value) for value in build(x, y)]))
        builder.emit_func_output(made)
    return builder.get()


CALLS = {
    "one argument twice": lambda x, y: [R.op.add(x, y), R.op.add(x, x), R.op.add(y, y), R.op.add(y, x)],
    "constants": lambda x, y: [R.op.add(x, R.const(c, "float32")) for c in (0.0, -0.0, 1.0, 0.0, float("inf"))],
    "a constant first": lambda x, y: [R.op.subtract(R.const(1, "float32"), x), R.op.subtract(x, R.const(1, "float32"))],
    "attributes": lambda x, y: [R.op.sum(x, [0]), R.op.sum(x, [1]), R.op.sum(y, [1]), R.op.sum(y, [1], True)],
    "shapes": lambda x, y: [R.op.reshape(x, (12,)), R.op.reshape(x, (3, 4)), R.op.reshape(y, (3, 4))],
    "tuples": lambda x, y: [R.op.concat([x, y], 0), R.op.concat([y, x], 0), R.op.concat([x, x], 1)],
}


@pytest.mark.parametrize("name", CALLS)
def test_the_module_is_that_of_tvm(name):
    given = module(CALLS[name])
    assert legalize(given).script() == R.transform.LegalizeOps()(given).script()


@pytest.mark.parametrize("name", ["tiny-generate", "characters"])
def test_the_module_of_an_example_is_that_of_tvm(name):
    report = Report()
    plan = trace_run(load(str(EXAMPLES / name / "run.sx"), report), report)
    given = emit.emit([p.graph for p in plan.phases])
    assert legalize(given).script() == R.transform.LegalizeOps()(given).script()


def test_equal_calls_are_written_once(monkeypatch):
    written = []
    real = R.BlockBuilder.call_te
    monkeypatch.setattr(R.BlockBuilder, "call_te", lambda *a, **k: written.append(1) or real(*a, **k))
    legalize(module(lambda x, y: [R.op.add(x, y), R.op.add(y, x), R.op.add(x, y), R.op.exp(x), R.op.exp(y)]))
    assert len(written) == 2
