"""A row of a table's product has the bits of the product of that row, however many rows the table has."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from lowering_runs import T, compiled, inputs, run_functions

from sexpgpu.graph.core import Builder, Graph, Value
from sexpgpu.graph.simplify import simplify
from sexpgpu.graph.table_products import looked_up

pytest.importorskip("tvm", reason="needs the extra `build`")

import schedules
from lowering.math import elementary
from tests.schedules.tensor_programs import V3, numbers, runs_here

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")]

READ = 130
SIZES = ((74, 64, 96), (1, 64, 1), (1, 300, 20), (60, 40, 1), (5, 17, 3), (90, 1100, 8))  # rows, depth, columns


def read(name: str, rows: int, depth: int, columns: int, dtype: str) -> Graph:
    """The tanh of a product of looked-up rows with a bias."""
    b = Builder()
    types = {"table": T("f32", rows, depth), "w": T("f32", depth, columns), "bias": T("f32", columns)}
    table, w, bias, ids = ins = inputs(b, **types, ids=T("i32", READ))

    def rounded(x: Value) -> Value:
        return x if dtype == "f32" else b("cast", x, dtype=dtype)

    y = b("+", b("matmul", rounded(b("gather", table, ids)), rounded(w)), rounded(bias))
    return Graph(name, tuple(ins), (("y", b("tanh", y)),))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_of_the_table_or_of_the_rows(dtype: str) -> None:
    before = [simplify(read(f"rows{n}", *size, dtype)) for n, size in enumerate(SIZES)]
    after = [attrs.evolve(simplify(looked_up(g)), name=f"table{n}") for n, g in enumerate(before)]
    of = [next(v.type.shape[0] for v in g.values() if v.op == "matmul") for g in after]
    assert of == [rows for rows, *_ in SIZES]
    aimed = attrs.evolve(schedules.TARGETS[V3], functions=elementary.STEPS)
    made = compiled(*before, *after, scheduler=lambda func, _: schedules.first(func, aimed))
    given = {}
    for old, new, (rows, depth, columns) in zip(before, after, SIZES, strict=True):
        shapes = ((rows, depth), (depth, columns), (columns,))
        ids = np.random.default_rng(9).integers(-1, rows + 1, READ).astype("int32")
        given[old.name] = given[new.name] = [*(numbers(*shape, seed=s) for s, shape in enumerate(shapes)), ids]
    results = run_functions(made, given)
    for old, new in zip(before, after, strict=True):
        assert results[old.name][0].tobytes() == results[new.name][0].tobytes(), new.name
