"""Rows of the operator table as kernels of a GPU, their CUDA text run on the CPU: the bits of the CPU's own kernels.

Of each row the first case and every third after it, in one module a group. What runs on matrix units is near them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from row_cases import Built, all_cases, build

from sexpgpu.graph.core import Graph
from sexpgpu.ops import OPS

pytest.importorskip("tvm", reason="needs the extra `build`")
pytest.importorskip("ziglang", reason="needs the extra `build`")

import tvm

import schedules
from lowering import emit, pipeline
from lowering.codegen import objects
from lowering.link import shared_library
from lowering.math import elementary
from tests.cuda_on_cpu import emulator
from tests.schedules.gpu.cpu_and_cuda import GPU, bits
from tests.schedules.tensor_programs import V3, runs_here

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")]

EVERY = 3
GROUPS = sorted({row.group for row in OPS.values()})
UNITS = {"attention-6": 2}  # cases that matrix units take, and which of their inputs is summed
X86 = tvm.target.Target(dict(schedules.TARGETS[V3].tvm))
CUDA = emulator.tvm_target(GPU).with_host(X86)


def chosen(group: str) -> list[tuple[str, Built]]:
    found = [(name, int(name.rpartition("-")[2]), row, case) for name, row, case in all_cases() if row.group == group]
    return [(name, build(row, case)) for name, n, row, case in found if n % EVERY == 0]


def machine(lowered: Any, target: Any, name: str) -> Any:
    """A virtual machine with the code for ``target``, its kernels scheduled as those of the target ``name``."""
    aimed = attrs.evolve(schedules.TARGETS[name], functions=elementary.STEPS)
    parts = [objects.compile_part(p, target, lambda f, _: schedules.first(f, aimed)) for p in objects.parts(lowered)]
    made = objects.join(lowered, target, parts)
    assert not any(kernel.failures for kernel in made.kernels)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "phases.so"
        path.write_bytes(shared_library.library(made, "x86_64"))
        module = tvm.runtime.load_module(str(path))
    cpu: Any = tvm.cpu()
    return tvm.relax.VirtualMachine(module, cpu)


@pytest.mark.parametrize("group", GROUPS)
def test_rows_have_the_bits_of_the_cpu(group: str) -> None:
    cases = chosen(group)
    graphs = [_graph(f"case_{i}", made) for i, (_, made) in enumerate(cases)]
    lowered = pipeline.lower(emit.emit(graphs), {}, None)
    cpu = machine(lowered, X86, V3)
    with emulator.in_place_of_cuda("hashed"):
        gpu = machine(lowered, CUDA, GPU)
    for i, (name, made) in enumerate(cases):
        given = [tvm.runtime.tensor(x) for x in (*made.arrays(), made.feeds["seed"])]
        for want, got in zip(cpu[f"case_{i}"](*given), gpu[f"case_{i}"](*given), strict=True):
            if name in UNITS:
                near(got.numpy(), want.numpy(), made.arrays()[UNITS[name]], name)
            else:
                np.testing.assert_array_equal(bits(got.numpy()), bits(want.numpy()), err_msg=name)


def near(got: np.ndarray, want: np.ndarray, values: np.ndarray, name: str) -> None:
    """Weights, of which a row's sum is 1, lose less than 2^-15 each, and as much where they are added
    (tests/schedules/gpu/test_attention_tensor_core.py). A result is rounded to bfloat16, neighbours at most 2^-7
    apart."""
    found, wanted = got.astype(np.float64), want.astype(np.float64)
    room = 2.0**-7 * np.abs(wanted) + 2.0**-14 * np.abs(values.astype(np.float64)).max()
    assert (np.abs(found - wanted) <= room).all(), name
    assert not np.array_equal(bits(got), bits(want)), f"{name}: the bits of the CPU, so it does not belong in UNITS"


def _graph(name: str, made: Built) -> Graph:
    given = (*made.inputs, made.builder.seed)
    return Graph(name, given, tuple((f"y{i}", y) for i, y in enumerate(made.outputs)))
