"""What several tests need: a run file from parts, and its plan."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import strategies as st

from sexpgpu.language.diagnostics import Report
from sexpgpu.language.runfile import load
from sexpgpu.phases.plan import Plan
from sexpgpu.phases.trace_run import trace_run

# All but surrogates, which is Hypothesis's own default; that it finds out by encoding each, for two seconds.
CHARACTERS = st.characters(exclude_categories=("Cs",))
PARTS = {
    "model": "(defmodel m (x) (linear x :out 2))",
    "loader": '(defloader d :source "d.npz" :batch 4 :fields (list :x [3] :f32 :y [] :i32))',
    "generate": "",
    "prepare": "(defprepare (batch ctx) (list :x (field batch :x) :y (field batch :y)))",
    "objective": "(defobjective (inputs ctx) (mean (cross-entropy (model (getf inputs :x)) (getf inputs :y))))",
    "optimizer": "(defoptimizer (sgd :lr 0.1))",
    "passes": "",
    "run": "(defrun r :model m :loader d :seed 1 :steps 2)",
}


def run_text(**parts: str) -> str:
    """A whole run file: PARTS, with some replaced."""
    return "\n".join(text for text in {**PARTS, **parts}.values() if text) + "\n"


def plan_text(text: str, diagnostics: tuple[str, ...] = ()) -> tuple[Plan | None, Report]:
    """The plan of a run file's text, or None and the faults."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.sx"
        path.write_text(text)
        report = Report()
        run = load(str(path), report)
        return (trace_run(run, report, diagnostics) if run else None), report


def plan_of(**parts: str) -> Plan:
    """The plan of PARTS with some replaced, which must have no fault."""
    plan, report = plan_text(run_text(**parts))
    assert plan, "\n".join(map(str, report.errors))
    return plan


def faults(**parts: str) -> list[str]:
    """``CODE line:column`` of every fault of PARTS with some replaced, in the order they were found."""
    _, report = plan_text(run_text(**parts))
    return [f"{e.code.name} {':'.join(map(str, e.span.line_column())) if e.span else '-'}" for e in report.errors]
