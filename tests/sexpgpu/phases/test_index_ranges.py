"""Ranges of fields: what each row moves is asked for where it came from, and what is computed or chosen is not."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from sexpgpu.graph.core import Builder, Graph, Value
from sexpgpu.graph.interpreter import run
from sexpgpu.language.diagnostics import Report
from sexpgpu.language.runfile import load
from sexpgpu.ops import OPS
from sexpgpu.ops.element_boxes import Box, whole
from sexpgpu.ops.spec import cases
from sexpgpu.ops.types import TensorType
from sexpgpu.phases.plan import Bounds
from sexpgpu.phases.trace_run import trace_run

MOVING = [
    (row, case)
    for row, case in cases()
    if (row.group == "shape" or row.name in ("update-slice", "write-window", "read-window", "stop-gradient"))
    and row.name != "cast"
]


def origins(value: Value, box: Box) -> list[tuple[Value, Box]]:
    column = OPS[value.op].origins if value.op else None
    return list(column(value, box)) if column else []


def collect_reads(value: Value, box, found: dict[Value, set]) -> None:
    """The places of every input that are asked for, through all operators between."""
    if not value.op:
        found.setdefault(value, set()).update(itertools.product(*(range(a, b) for a, b in box)))
    for origin, part in origins(value, box):
        collect_reads(origin, part, found)


def boxes(value: Value) -> list:
    """All of it, and a few boxes within."""
    rng = np.random.default_rng(0)
    out = [whole(value)]
    for _ in range(6 * bool(value.type.shape)):
        starts = [int(rng.integers(n)) for n in value.type.shape]
        out.append(tuple((a, int(rng.integers(a, n)) + 1) for a, n in zip(starts, value.type.shape, strict=True)))
    return out


@pytest.mark.parametrize(("row", "case"), MOVING, ids=lambda x: x.name if hasattr(x, "name") else "")
def test_what_stands_in_a_box_is_asked_for_where_it_came_from(row, case) -> None:
    """Each number of the moved inputs is another, so that the result tells where each of its elements came from. A
    window whose start is an input may be anywhere, and the whole of its axis is asked for."""
    types, attrs = case
    attrs = {**attrs, "value": 0} if "value" in attrs else attrs
    b, count = Builder(), 1
    inputs, feeds = [], []
    joins = [a.joins for a in row.args if a.kind.startswith("tensor")]
    for i, (dtype, shape, *limits) in enumerate(types):
        if not joins[min(i, len(joins) - 1)]:
            inputs.append(b.const(limits[0], dtype))
            continue
        inputs.append(b.input(f"x{i}", TensorType(tuple(shape), "i32")))
        size = int(np.prod(shape, dtype=int))
        feeds.append((inputs[-1], np.arange(count, count + size, dtype=np.int32).reshape(shape)))
        count += size
    made = b(row.name, *inputs, **attrs)
    for value in made if isinstance(made, tuple | list) else (made,):
        graph = Graph("g", tuple(v for v, _ in feeds), (("y", value),))
        (result,) = run(graph, [array for _, array in feeds])
        for box in boxes(value):
            found: dict[Value, set] = {}
            collect_reads(value, box, found)
            seen = set(np.ravel(result[tuple(slice(*side) for side in box)]).tolist())
            for one, array in feeds:
                want = {at for at in np.ndindex(array.shape) if int(array[at]) in seen}
                assert found.get(one, set()) == want, (row.name, attrs, box)


RUN = """
(defmodel m (ids) (reshape (embedding ids :e 5 1) [4]))
(defloader rows :source "rows.npz" :batch 4 :fields (list :ids [6] :i32 :label [] :i32))
(defprepare (batch ctx) (let* ((ids (field batch :ids)) (label (field batch :label))) (list :ids IDS :label LABEL)))
(defobjective (inputs ctx)
  (let* ((e (model (slice (reshape (getf inputs :ids) [-1]) :to 4))))
    (mean (cross-entropy (stack e (neg e) :axis 1) (getf inputs :label)))))
(defoptimizer (sgd :lr 0.1))
(defrun bounds :model m :loader rows :steps 1)
"""
WHOLE, LABELS, NONE = Bounds(0, 5), Bounds(0, 2), Bounds()


@pytest.mark.parametrize(
    ("ids", "label", "want"),
    [
        ("(slice ids :axis 1 :to 3)", "label", (Bounds(parts=((0, 5, (0,), (3,)),)), LABELS)),
        ("(transpose ids)", "(where (< label 0) 0 label)", (Bounds(parts=((0, 5, (0,), (1,)),)), NONE)),
        ("(roll (transpose ids) 2 :axis 0)", "(concat (slice label :from 1) (slice label :to 1))",
         (Bounds(parts=((0, 5, (4,), (5,)),)), LABELS)),
        ("(sum (reshape ids [4 2 3]) :axes [1 2])", "(* label 2)", (NONE, NONE)),
        ("(slice ids :axis 1 :from 5)", "(clip label 0 1)", (Bounds(parts=((0, 5, (5,), (6,)),)), NONE)),
        ("(update-slice (slice ids :axis 1 :to 1) (full [2 1] 1 :dtype :i32) [0 0])", "(flip label [0])",
         (Bounds(parts=((0, 5, (0,), (1,)),)), LABELS)),
        ("(pad (slice ids :axis 1 :from 1 :to 2) [[0 0] [0 0]])", "(roll label 3)",
         (Bounds(parts=((0, 5, (1,), (2,)),)), LABELS)),
        ("(slice (transpose (concat ids ids :axis 0)) :axis 1 :to 1)", "(mod label 2)",
         (Bounds(parts=((0, 5, (0,), (4,)),)), NONE)),
        ("(gather ids label)", "label", (NONE, Bounds(0, 2))),
        ("(slice ids :axis 1 :from (- 6 1))", "(cast (cast label :i64) :i32)",
         (Bounds(parts=((0, 5, (5,), (6,)),)), LABELS)),
    ],
)  # fmt: skip
def test_bounds_of_a_run(tmp_path: Path, ids: str, label: str, want) -> None:
    path, report = tmp_path / "run.sx", Report()
    path.write_text(RUN.replace("IDS", ids).replace("LABEL", label))
    run_file = load(str(path), report)
    plan = trace_run(run_file, report) if run_file else None
    assert plan, [e.line() for e in report.errors]
    assert tuple(plan.bounds.get(("rows", name), Bounds()) for name in ("ids", "label")) == want
