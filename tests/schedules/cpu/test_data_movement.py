"""What only moves elements: transposes in tiles; padding, joining and slicing in straight parts. Equal to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tvm import relax, tirx

import schedules
from schedules.tir.builder import Call
from schedules.tir.iteration_domain import _changes
from schedules.tir.rewrite import collect
from tests.schedules.tensor_programs import V3, V4, build, graph, numbers, operator, reference, runs_here, threads

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")]

# A build takes some 0.1 s; shapes on both sides of a tile, a vector and a line.
FEW = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
SIZE = st.sampled_from([1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 40])
DTYPES = {"f32": "float32", "i32": "int32", "f64": "float64", "bool": "bool", "u8": "uint8"}
R = relax.op


def random_values(shape: tuple[int, ...], dtype: str = "f32", seed: int = 0) -> np.ndarray:
    return (numbers(*shape, seed=seed) * (1 if dtype[0] == "f" else 40)).astype(DTYPES[dtype])


def moved(name: str, *arrays: tuple[np.ndarray, str], **attrs: Any) -> None:
    """The operator's kernel gives what its row says."""
    built = build(operator(name, *((dtype, x.shape) for x, dtype in arrays), **attrs))
    given = [x for x, _ in arrays]
    np.testing.assert_array_equal(built.run(*given)[0], reference(name, *given, **attrs))


@FEW
@given(st.lists(SIZE, min_size=2, max_size=4), st.data())
def test_transposes(shape: list[int], data: Any) -> None:
    perm = tuple(data.draw(st.permutations(range(len(shape)))))
    dtype = data.draw(st.sampled_from(sorted(DTYPES)))
    if perm != tuple(range(len(shape))):
        moved("transpose", (random_values(tuple(shape), dtype), dtype), perm=perm)


@FEW
@given(st.lists(st.tuples(SIZE, st.integers(0, 19), st.integers(0, 19)), min_size=1, max_size=3))
def test_padding(sides: list[tuple[int, int, int]]) -> None:
    x = random_values(tuple(n for n, _, _ in sides))
    moved("pad", (x, "f32"), widths=tuple((a, b) for _, a, b in sides), value=2.5)


@FEW
@given(st.lists(SIZE, min_size=1, max_size=3), st.lists(SIZE, min_size=2, max_size=5), st.data())
def test_joining(shape: list[int], sizes: list[int], data: Any) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    parts = [random_values((*shape[:axis], n, *shape[axis + 1 :]), seed=i) for i, n in enumerate(sizes)]
    moved("concat", *((x, "f32") for x in parts), axis=axis)


def test_more_parts_than_boxes() -> None:
    moved("concat", *((random_values((9, n), seed=n), "f32") for n in range(1, 25)), axis=1)


def test_a_box_of_one_bfloat16_number() -> None:
    import ml_dtypes

    moved("pad", (random_values((5, 20)).astype(ml_dtypes.bfloat16), "bf16"), widths=((1, 0), (3, 4)), value=2.5)


def test_a_condition_on_data_is_no_place_to_cut() -> None:
    x, part, at = random_values((20, 30)), random_values((4, 30), seed=1), np.array(7, "int32")
    built = build(operator("write-window", ("f32", (20, 30)), ("f32", (4, 30)), ("i32", ()), starts=(3, 0), axis=0))
    want = reference("write-window", x, part, at, starts=(3, 0), axis=0)
    np.testing.assert_array_equal(built.run(x, part, at)[0], want)


def heads(emit: Any, *parts: Any) -> Any:
    """Gradients of three slices, each with its heads first, joined: pads, added."""
    total = None
    for n, x in enumerate(parts):
        flat = emit(R.reshape(emit(R.permute_dims(x, [0, 2, 1, 3])), (2, 9, 32)))
        wide = emit(R.nn.pad(flat, [0, 0, 0, 0, 32 * n, 64 - 32 * n]))
        total = wide if total is None else emit(R.add(total, wide))
    return R.reshape(total, (18, 96))


@pytest.mark.parametrize("target", [V3, V4, "cpu-aarch64"])
def test_padding_inside_a_kernel_has_no_branch(target: str) -> None:
    (func,) = graph(heads, *[((2, 4, 9, 8), "float32")] * 3)
    done = schedules.first(func, schedules.TARGETS[target]).func
    assert not [c for c in collect(done.body, Call) if "if_then_else" in c.op.name]


def test_padding_inside_a_kernel() -> None:
    (func,) = graph(heads, *[((2, 4, 9, 8), "float32")] * 3)
    built, parts = build(func), [random_values((2, 4, 9, 8), seed=n) for n in range(3)]
    want = np.concatenate([x.transpose(0, 2, 1, 3).reshape(18, 32) for x in parts], 1)
    assert built.rule == "elementwise"
    np.testing.assert_array_equal(built.run(*parts)[0], want)


@pytest.mark.parametrize("shape", [(300, 400), (7, 65, 129)], ids=str)
def test_what_is_done_on_a_transpose(shape: tuple[int, ...]) -> None:
    """One operand turned and one not, on one and on two threads."""
    perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    turned = tuple(shape[n] for n in perm)
    (func,) = graph(lambda emit, x, y: R.add(emit(R.permute_dims(x, perm)), y), (shape, "float32"), (turned, "float32"))
    built, x, y = build(func), random_values(shape), random_values(turned, seed=1)
    for count in (1, 2):
        threads(count)
        np.testing.assert_array_equal(built.run(x, y)[0], x.transpose(perm) + y)
    threads(1)


@pytest.mark.parametrize("kind", [tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE])
def test_where_a_comparison_changes(kind: Any) -> None:
    """Against every place, for any sign of the factor; an equality may add a place too many."""
    v = tirx.Var("v", "int64")
    number = lambda n: tirx.IntImm("int64", n)  # noqa: E731
    truth = {tirx.LT: "<", tirx.LE: "<=", tirx.GT: ">", tirx.GE: ">=", tirx.EQ: "==", tirx.NE: "!="}[kind]
    for c in (-3, -1, 1, 2):
        for d in range(-7, 8):
            found = {p for p in _changes(kind(v * number(c), number(d)), v) if abs(p) < 20}
            holds = [eval(f"{c} * v {truth} {d}") for v in range(-20, 20)]
            want = {n - 19 for n in range(39) if holds[n] != holds[n + 1]}
            assert want == found if kind not in (tirx.EQ, tirx.NE) else want <= found
