"""What loops are said to take, and that only those that repay it are shared out to threads."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

pytest.importorskip("tvm")

from tvm import relax, te, tirx

import schedules
from lowering.math import elementary
from schedules.tir.builder import i64, load, loop, scratch, store
from schedules.tir.context import vector_loop
from schedules.tir.rewrite import collect
from schedules.tir.thread_cost import MIN_PARALLEL_NANOSECONDS, nanoseconds
from tests.schedules.tensor_programs import V3, build, graph, numbers, operator, product, program, runs_here

pytestmark = pytest.mark.build

R: Any = relax.op
F32 = "float32"


def shared_out(func: Any) -> int:
    """Loops over threads in the program as its rule makes it."""
    elementary.install()
    aimed = attrs.evolve(schedules.TARGETS[V3], functions=elementary.STEPS)
    done = schedules.first(func.with_attr("global_symbol", "main"), aimed)
    assert not done.failures and done.func is not None
    return sum(node.kind == tirx.ForKind.PARALLEL for node in collect(done.func.body, tirx.For))


def add(n: int) -> Any:
    return operator("+", ("f32", (n, 64)), ("f32", (n, 64)))


def scatter(n: int) -> Any:
    return operator("scatter-add", ("f32", (100, 40)), ("i32", (n,)), ("f32", (n, 40)))


KERNELS: dict[str, tuple[Any, int, int]] = {
    # what -> program of a size, a size of some microseconds, and one of tens of them
    "elementwise": (add, 64, 4096),
    "function": (lambda n: operator("exp", ("f32", (n, 64))), 16, 512),
    "tiles": (lambda n: operator("transpose", ("f32", (n, 48)), perm=(1, 0)), 64, 2048),
    "row reduction": (lambda n: operator("softmax", ("f32", (n, 64)), axis=-1), 16, 1024),
    "column reduction": (lambda n: operator("sum", ("f32", (n, 512)), axes=(0,)), 16, 1024),
    "product": (lambda n: product("NN", n, 32, 32), 32, 1024),
    "explicit loops": (scatter, 64, 8192),
}


@pytest.mark.parametrize("what", KERNELS)
def test_what_takes_microseconds_stays_on_one_thread(what: str) -> None:
    made, small, _ = KERNELS[what]
    assert shared_out(made(small)) == 0


@pytest.mark.parametrize("what", KERNELS)
def test_what_takes_longer_is_shared_out(what: str) -> None:
    made, _, large = KERNELS[what]
    assert shared_out(made(large)) == 1


def map_loop(value: Any, count: int = 4096, step: int = 1) -> Any:
    """``y[f] = value(x[f * step])`` by vectors of 8."""
    x, y = scratch([count * step], F32, "x"), scratch([count], F32, "y")
    read = lambda f: load(x, f * i64(step) if step > 1 else f)  # noqa: E731
    (whole,) = vector_loop(count, 8, lambda f: store(y, value(read(f)), f))
    return whole


def test_a_price_follows_elements_operations_and_the_way_through_memory() -> None:
    plain = nanoseconds(map_loop(lambda x: x), 8)
    assert nanoseconds(map_loop(lambda x: x, 8192), 8) == pytest.approx(2 * plain)
    assert nanoseconds(map_loop(lambda x: x), 4) > 1.5 * plain
    assert nanoseconds(map_loop(lambda x: x * x), 8) > plain
    assert nanoseconds(map_loop(lambda x: x / (x + 1.0)), 8) > nanoseconds(map_loop(lambda x: x * (x + 1.0)), 8)
    assert nanoseconds(map_loop(tirx.exp), 8) > 3 * plain
    assert nanoseconds(map_loop(lambda x: x, step=3), 8) > 3 * plain


def test_branches_and_loops_of_unknown_extent() -> None:
    whole, last, n = map_loop(lambda x: x), map_loop(lambda x: x, 2048), tirx.Var("n", "int64")
    either = tirx.IfThenElse(n < i64(3), whole, last)
    assert nanoseconds(whole, 8) < nanoseconds(either, 8) < 1.1 * nanoseconds(whole, 8)
    assert nanoseconds(tirx.IfThenElse(n < i64(3), whole, None), 8) < 0.6 * nanoseconds(whole, 8)
    some = tirx.For(tirx.Var("i", "int64"), i64(0), tirx.Min(i64(6), n), tirx.ForKind.SERIAL, last)
    assert nanoseconds(some, 8) == pytest.approx(nanoseconds(loop(6, lambda _: last), 8))
    assert 0 < MIN_PARALLEL_NANOSECONDS < 100_000


def through_heads(emit: Any, x: Any) -> Any:
    """[rows 8, heads 12] -> [rows, heads, 8, 12] -> back, the heads first: what attention does with its inputs."""
    rows, wide = (int(n) for n in x.ty.shape) if hasattr(x, "ty") else (128, 48)
    split = emit(R.reshape(x, (rows // 8, 8, wide // 12, 12)))
    return emit(R.permute_dims(split, [0, 2, 1, 3]))


def from_heads(emit: Any, x: Any) -> Any:
    return R.reshape(emit(R.permute_dims(x, [0, 2, 1, 3])), (128, 48))


@pytest.mark.parametrize("target", [V3, "cpu-x86-64-v4", "cpu-aarch64"])
@pytest.mark.parametrize(
    ("made", "shape"), [(through_heads, (128, 48)), (from_heads, (16, 4, 8, 12))], ids=["to", "from"]
)
def test_a_transpose_between_reshapes_divides_nothing(made: Any, shape: tuple[int, ...], target: str) -> None:
    """Its vectors go along memory on both sides: no index is divided."""
    (func,) = graph(made, (shape, F32))
    done = schedules.first(func.with_attr("global_symbol", "main"), schedules.TARGETS[target])
    assert done.func is not None and not collect(done.func.body, (tirx.FloorDiv, tirx.FloorMod))


@pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")
@pytest.mark.parametrize("sizes", [(128, 48, 8, 12), (24, 36, 4, 6), (30, 21, 5, 3), (16, 10, 2, 5), (600, 96, 50, 16)])
def test_transposes_between_reshapes(sizes: tuple[int, int, int, int]) -> None:
    """There and back, with something done on the way, for pieces longer and shorter than a vector."""
    rows, wide, deep, each = sizes

    def made(emit: Any, x: Any, y: Any) -> Any:
        split = emit(R.reshape(x, (rows // deep, deep, wide // each, each)))
        turned = emit(R.permute_dims(split, [2, 0, 1, 3]))
        return emit(R.reshape(emit(R.add(turned, y)), (wide // each * rows, each)))

    four = (wide // each, rows // deep, deep, each)
    (func,) = graph(made, ((rows, wide), F32), (four, F32))
    x, y = numbers(rows, wide), numbers(*four, seed=1)
    want = (x.reshape(rows // deep, deep, wide // each, each).transpose(2, 0, 1, 3) + y).reshape(-1, each)
    np.testing.assert_array_equal(build(func).run(x, y)[0], want)


@pytest.mark.parametrize(("old", "new"), [((2, 16, 8, 4, 12), (256, 48)), ((1280, 64), (64, 20, 64))], ids=str)
def test_a_reshape_divides_no_place_twice(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    """TVM then loses sight of which places lie side by side, and loads one number at a time."""
    (func,) = graph(lambda emit, x: R.reshape(x, new), (old, F32))
    done = schedules.first(func.with_attr("global_symbol", "main"), schedules.TARGETS[V3])
    assert done.func is not None
    divided = (tirx.FloorDiv, tirx.FloorMod)
    assert not [node for node in collect(done.func.body, divided) if collect(node.a, divided)]


@pytest.mark.parametrize("shape", [(64, 20, 2), (9, 5, 7, 3)], ids=str)
def test_axes_that_are_one_in_memory_are_one_place_there(shape: tuple[int, ...]) -> None:
    """However many they are: a place along all of them divides nothing."""
    func = operator("neg", ("f32", shape))
    done = schedules.first(func.with_attr("global_symbol", "main"), schedules.TARGETS[V3])
    assert done.func is not None and not collect(done.func.body, (tirx.FloorDiv, tirx.FloorMod))


@pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")
@pytest.mark.parametrize("shape", [(64, 20, 2), (9, 5, 7, 3)], ids=str)
def test_a_map_over_axes_that_are_one_in_memory(shape: tuple[int, ...]) -> None:
    x = numbers(*shape)
    np.testing.assert_array_equal(build(operator("neg", ("f32", shape))).run(x)[0], -x)


@pytest.mark.parametrize("target", [V3, "cpu-x86-64-v4", "cpu-aarch64"])
def test_vectors_of_bytes_are_as_long_as_those_of_f32(target: str) -> None:
    """In bytes: four times as many of them."""
    func = operator("not", ("bool", (64, 152, 20)))
    done = schedules.first(func.with_attr("global_symbol", "main"), schedules.TARGETS[target])
    assert done.func is not None
    lanes = {int(node.extent) for node in collect(done.func.body, tirx.For) if node.kind == tirx.ForKind.VECTORIZED}
    assert lanes == {4 * schedules.TARGETS[target].lanes}


@pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")
@pytest.mark.parametrize("size", [1, 7, 8, 31, 32, 33, 71])
def test_maps_of_bytes(size: int) -> None:
    """Whole vectors of them, shorter ones, and a rest; with other dtypes beside them as well."""
    x = numbers(3, size) > 0
    np.testing.assert_array_equal(build(operator("not", ("bool", (3, size)))).run(x)[0], ~x)
    y = numbers(3, size, seed=1)
    func = operator("where", ("bool", (3, size)), ("f32", (3, size)), ("f32", (3, size)))
    np.testing.assert_array_equal(build(func).run(x, y, -y)[0], np.where(x, y, -y))


@pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")
def test_a_map_that_keeps_values_of_its_own() -> None:
    """Of which there is room for those of a piece, axis by axis, so that their places are not made one number."""

    def function(x: te.Tensor) -> te.Tensor:
        first = te.compute(x.shape, lambda *at: te.sigmoid(x(*at)), "first")
        second = te.compute(x.shape, lambda *at: first(*at) * (one - first(*at)), "second")
        return te.compute(x.shape, lambda *at: second(*at) * second(*at) + first(*at), "third")

    one = tirx.const(1.0, F32)
    given = numbers(3001, 7)
    (found,) = build(program(function, (given.shape, F32))).run(given)
    (flat,) = build(program(function, ((given.size,), F32))).run(given.ravel())
    np.testing.assert_array_equal(found.ravel(), flat)
