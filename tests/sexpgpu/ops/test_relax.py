"""Every row of the operator table, compiled for this machine's CPU and compared with its reference in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from row_cases import Built, all_cases, build, compiled, plain, scheduled

from sexpgpu.graph.core import Graph
from sexpgpu.graph.interpreter import evaluate
from sexpgpu.ops import OPS

pytestmark = pytest.mark.build

GROUPS = sorted({row.group for row in OPS.values()})
# One unit in the last place of a short float, relative: its result is rounded once on either side, maybe apart.
SHORT = {"bf16": 2.0**-7, "f16": 2.0**-10}


@pytest.mark.parametrize("scheduler", [plain, scheduled])
@pytest.mark.parametrize("group", GROUPS)
def test_the_compiled_rows_agree_with_the_reference(group: str, scheduler: Any) -> None:
    tvm = pytest.importorskip("tvm", reason="needs the extra `build`")
    chosen = [(name, build(row, case)) for name, row, case in all_cases() if row.group == group]
    machine = compiled([graph(f"case_{i}", built) for i, (_, built) in enumerate(chosen)], scheduler)
    faults = []
    for i, (name, built) in enumerate(chosen):
        got = machine[f"case_{i}"](*(tvm.runtime.tensor(x) for x in inputs(built)))
        faults += differing(name, built, [y.numpy() for y in got])
    assert not faults, "\n".join(faults)


def graph(name: str, built: Built) -> Graph:
    given = (*built.inputs, built.builder.seed)
    return Graph(name, given, tuple((f"y{i}", y) for i, y in enumerate(built.outputs)))


def inputs(built: Built) -> list[np.ndarray]:
    return [*built.arrays(), built.feeds["seed"]]


def differing(name: str, built: Built, got: list[np.ndarray]) -> list[str]:
    """One line for each output that is not what the interpreter makes of the same graph."""
    out = []
    for value, g, want in zip(built.outputs, got, evaluate(built.outputs, built.feeds), strict=True):
        assert (g.dtype, g.shape) == (want.dtype, want.shape), name
        if value.type.kind != "float":
            same = np.array_equal(g, want)
        else:
            rtol, atol = built.row.tolerance
            rtol = max(rtol, SHORT.get(value.type.dtype, 0.0))
            same = np.allclose(g.astype("float64"), want.astype("float64"), rtol, atol, equal_nan=True)
        if not same:
            out.append(f"{name} {value.type}: {g.ravel()[:4]} is not {want.ravel()[:4]}")
    return out
