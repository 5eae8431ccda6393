"""Every row of the operator table on copies of its arguments: each copy is what the operator makes of it alone."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from row_cases import Built, all_cases, array, build, compiled, scheduled

from sexpgpu.graph.core import Graph
from sexpgpu.graph.interpreter import run
from sexpgpu.ops import OPS, Op
from sexpgpu.phases.plan import Phase, Port
from sexpgpu.planning.microbatch_stacking import stack_phase

K = 3
GROUPS = sorted({row.group for row in OPS.values()})


def own_inputs(built: Built) -> Iterator[tuple[bool, ...]]:
    """Which arguments each copy has its own of: all; and, of several, each alone."""
    n = len(built.inputs)
    if n:
        yield (True,) * n
    if n > 1:
        yield from (tuple(i == j for i in range(n)) for j in range(n))


def phases(built: Built, own: tuple[bool, ...]) -> tuple[Phase, Phase]:
    """The case as a phase, and the phase stacked; its seed is shared."""
    kinds = ["field" if mine else "param" for mine in own] + ["seed"]
    given = (*built.inputs, built.builder.seed)
    graph = Graph("one", given, tuple((f"state:y{i}", y) for i, y in enumerate(built.outputs)))
    ports = tuple(Port(kind, v.name, v.type) for kind, v in zip(kinds, given, strict=True))
    made = tuple(Port("state", f"y{i}", y.type) for i, y in enumerate(built.outputs))
    one = Phase("generate.init", graph, ports, made, ())
    return one, stack_phase(one, K)


def copies(built: Built, case: Any, own: tuple[bool, ...]) -> list[list[np.ndarray]]:
    """The inputs of each copy, of which those not its own are the same arrays."""
    rng = np.random.default_rng(zlib.crc32(f"{built.row.name} {own}".encode()))
    first = built.arrays()
    others = [[array(rng, spec) if mine else x for spec, mine, x in zip(case[0], own, first, strict=True)] for _ in
              range(K - 1)]  # fmt: skip
    return [[*xs, built.feeds["seed"]] for xs in (first, *others)]


def joined(each: list[list[np.ndarray]], own: tuple[bool, ...]) -> list[np.ndarray]:
    return [np.stack([xs[i] for xs in each]) if mine else each[0][i] for i, mine in enumerate((*own, False))]


def every_case(group: str) -> Iterator[tuple[str, Built, Any, tuple[bool, ...]]]:
    return cases_of((name, row, case) for name, row, case in all_cases() if row.group == group)


def long_cases() -> Iterator[tuple[str, Op, Any]]:
    return ((f"{name} {case}", OPS[name], case) for name, case in LONG)


def cases_of(chosen: Iterator[tuple[str, Op, Any]]) -> Iterator[tuple[str, Built, Any, tuple[bool, ...]]]:
    """Each case with each choice of the arguments that a copy has its own of."""
    for name, row, case in chosen:
        built = build(row, case)
        yield from ((f"{name} {own}", built, case, own) for own in own_inputs(built))


def agrees(got: np.ndarray, want: np.ndarray, bound: tuple[float, float]) -> bool:
    if got.dtype.kind in "iub" or not any(bound):
        return got.tobytes() == np.ascontiguousarray(want).tobytes()
    return np.allclose(got.astype("float64"), want.astype("float64"), *bound, equal_nan=True)


@pytest.mark.parametrize("group", GROUPS)
def test_the_copies_are_those_of_the_interpreter(group: str) -> None:
    faults = []
    for name, built, case, own in every_case(group):
        one, stacked = phases(built, own)
        each = copies(built, case, own)
        got = run(stacked.graph, joined(each, own))
        want = zip(*(run(one.graph, xs) for xs in each), strict=True)
        short = any(y.type.dtype in ("bf16", "f16") for y in built.outputs)
        bound = (2.0**-7, 1e-5) if short else built.row.tolerance  # NumPy adds in an order that follows the whole shape
        faults += [name for g, w in zip(got, want, strict=True) if not agrees(g, np.stack(w), bound)]
    assert not faults, "\n".join(faults)


# Sums and products so long, or of so few or so many results, that their order could follow from the number of copies.
LONG = [
    ("sum", ([("f32", (200, 1000))], {})),
    ("sum", ([("f32", (64, 600))], {})),
    ("sum", ([("f32", (3, 70000))], {"axes": (1,)})),
    ("sum", ([("f32", (8, 40000))], {"axes": (1,)})),
    ("sum", ([("f32", (15, 9000))], {"axes": (1,)})),
    ("sum", ([("f32", (512, 512))], {"axes": (0,)})),
    ("sum", ([("f32", (4000, 40))], {"axes": (0,)})),
    ("sum", ([("f32", (8, 600, 128))], {"axes": (1,)})),
    ("sum", ([("f32", (16, 64, 96))], {"axes": (0, 1)})),
    ("mean", ([("f32", (700, 120))], {})),
    ("softmax", ([("f32", (3, 70000))], {})),
    ("normalize", ([("f32", (8, 40000))], {})),
    ("dot", ([("f32", (50000,)), ("f32", (50000,))], {})),
    ("matmul", ([("f32", (2, 300)), ("f32", (50, 300))], {"tb": True})),
    ("matmul", ([("f32", (1, 64)), ("f32", (64, 40))], {})),
    ("matmul", ([("f32", (3, 64)), ("f32", (64, 5))], {})),
    ("matmul", ([("f32", (200, 3)), ("f32", (200, 70))], {"ta": True})),
    ("matmul", ([("f32", (512, 64)), ("f32", (512, 64))], {"ta": True})),
    ("scatter-rows", ([("f32", (400, 64)), ("i32", (400,), 0, 9)], {"n": 9})),
]


@pytest.mark.build
@pytest.mark.parametrize("group", [*GROUPS, "long"])
def test_compiled_copies_have_the_bits_of_one_alone(group: str) -> None:
    tvm = pytest.importorskip("tvm", reason="needs the extra `build`")
    chosen = list(every_case(group) if group != "long" else cases_of(long_cases()))
    made = [phases(built, own) for _, built, _, own in chosen]
    graphs = [
        Graph(f"f{i}_{j}", p.graph.inputs, p.graph.outputs) for i, both in enumerate(made) for j, p in enumerate(both)
    ]
    machine = compiled(graphs, scheduled)

    def call(name: str, xs: list[np.ndarray]) -> list[np.ndarray]:
        return [y.numpy() for y in machine[name](*map(tvm.runtime.tensor, xs))]

    faults = []
    for i, (name, built, case, own) in enumerate(chosen):
        each = copies(built, case, own)
        want = zip(*(call(f"f{i}_0", xs) for xs in each), strict=True)
        got = call(f"f{i}_1", joined(each, own))
        faults += [name for g, w in zip(got, want, strict=True) if g.tobytes() != np.stack(w).tobytes()]
    assert not faults, "\n".join(faults)


def test_a_row_without_a_rule_is_taken_copy_by_copy() -> None:
    assert OPS["philox"].stack is None
    assert {row.name for row in OPS.values() if row.expand is None and row.stack is None} == {
        "philox", *(r.name for r in OPS.values() if r.group in ("arithmetic", "logic")),
        *(r.name for r in OPS.values() if r.type and not r.args or r.name in ("iota", "full", "constant")),
    } - {r.name for r in OPS.values() if r.expand}  # fmt: skip


def test_shared_values_stay_one() -> None:
    built = build(OPS["matmul"], OPS["matmul"].cases[0])
    _, stacked = phases(built, (True, False))
    assert [v.type.shape for v in stacked.graph.inputs] == [(K, 3, 4), (4, 5), (2,)]
    assert [v.op for v in stacked.graph.values() if v.op] == ["matmul"]
    assert not list(itertools.chain(*(v.attrs for v in stacked.graph.values() if v.op == "slice")))
