"""Everything but matrix products: elementwise programs, rows, columns, sums over everything, indices, in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from tvm import relax, te, tirx

import schedules
from tests.schedules.tensor_programs import V3, assert_close, build, graph, numbers, program, runs_here, threads

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here("cpu-x86-64-v3"), reason="this CPU has no AVX2")]

R = relax.op
F = "float32"


def single_kernel(function: Any, *shapes: tuple[int, ...]) -> Any:
    """The single program of a Relax expression of f32 tensors, compiled."""
    (func,) = graph(function, *((shape, F) for shape in shapes))
    return build(func)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x.astype("float64") - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@pytest.mark.parametrize("shape", [(4, 9, 33), (128, 64), (3, 1000), (1, 5), (40, 16), (7, 257)], ids=str)
def test_softmax_is_one_row_nest(shape: tuple[int, ...]) -> None:
    built, x = single_kernel(lambda emit, x: R.nn.softmax(x, -1), shape), numbers(*shape)
    assert built.rule == "row-reduction"
    assert_close(built.run(x)[0], softmax(x, -1), shape[-1])


@pytest.mark.parametrize("shape", [(512, 64), (13, 131)], ids=str)
def test_log_softmax(shape: tuple[int, ...]) -> None:
    built, x = single_kernel(lambda emit, x: R.nn.log_softmax(x, -1), shape), numbers(*shape)
    assert built.rule == "row-reduction"
    assert_close(built.run(x)[0], np.log(softmax(x, -1)), shape[-1])


@pytest.mark.parametrize("shape", [(40, 100), (3, 5, 128), (9, 17)], ids=str)
def test_layer_norm(shape: tuple[int, ...]) -> None:
    n = shape[-1]
    built = single_kernel(lambda emit, x, g, b: R.nn.layer_norm(x, g, b, axes=[-1]), shape, (n,), (n,))
    x, g, b = numbers(*shape), numbers(n, seed=1), numbers(n, seed=2)
    wide = x.astype("float64")
    mean, var = wide.mean(-1, keepdims=True), wide.var(-1, keepdims=True)
    assert built.rule == "row-reduction"
    assert_close(built.run(x, g, b)[0], (wide - mean) / np.sqrt(var + 1e-5) * g + b, n)


@pytest.mark.parametrize("axes", [[0], [1], [2], [0, 1], [1, 2], [0, 2], [0, 1, 2]], ids=str)
@pytest.mark.parametrize("shape", [(7, 30, 70), (64, 3, 16), (5, 4, 3)], ids=str)
def test_sums_over_any_axes(shape: tuple[int, ...], axes: list[int]) -> None:
    built, x = single_kernel(lambda emit, x: R.sum(x, axes), shape), numbers(*shape)
    assert_close(built.run(x)[0], x.astype("float64").sum(tuple(axes)), x.size)


@pytest.mark.parametrize("shape", [(300, 411), (100_001, 3), (70_000,), (9, 9, 9, 9, 9)], ids=str)
def test_a_sum_over_everything_has_the_bits_of_its_shape(shape: tuple[int, ...]) -> None:
    def norm(emit, x):
        return R.sum(emit(R.multiply(x, x)))

    built, x, bits = single_kernel(norm, shape), numbers(*shape), set()
    for count in (1, 2, 3):
        threads(count)
        got = built.run(x)[0]
        bits.add(got.tobytes())
    threads(1)
    assert len(bits) == 1
    np.testing.assert_allclose(got, (x.astype("float64") ** 2).sum(), rtol=1e-6)  # a tree of 64 lanes, pieces of 8192


@pytest.mark.parametrize("shape", [(4099, 40), (2000, 1), (300, 513)], ids=str)
def test_sums_down_columns(shape: tuple[int, ...]) -> None:
    built, x, bits = single_kernel(lambda emit, x: R.mean(x, [0]), shape), numbers(*shape), set()
    for count in (1, 2):
        threads(count)
        got = built.run(x)[0]
        bits.add(got.tobytes())
    threads(1)
    assert len(bits) == 1
    assert_close(got, x.astype("float64").mean(0))


@pytest.mark.parametrize("name", ["max", "min", "prod"])
def test_other_folds(name: str) -> None:
    built, x = single_kernel(lambda emit, x: getattr(R, name)(x, [-1]), (31, 45)), numbers(31, 45)
    want = getattr(x.astype("float64"), name)(-1)
    np.testing.assert_allclose(built.run(x)[0], want, rtol=45 * 2.0**-24)  # one rounding a factor


def test_argmax_takes_the_first_of_equals() -> None:
    built, x = single_kernel(lambda emit, x: R.argmax(x, -1), (40, 33)), np.round(numbers(40, 33))
    assert built.rule == "row-reduction"
    assert (built.run(x)[0] == x.argmax(-1)).all()


@pytest.mark.parametrize("shape", [(13, 77), (130, 64), (4096, 33), (3,), (), (20_011,)], ids=str)
def test_a_chain_of_elementwise_stages(shape: tuple[int, ...]) -> None:
    def chain(emit, x, y):
        return R.add(emit(R.tanh(emit(R.multiply(x, emit(R.add(x, y)))))), y)

    built = single_kernel(chain, shape, shape)
    x, y = numbers(*shape), numbers(*shape, seed=1)
    assert built.rule == "elementwise"
    assert_close(built.run(x, y)[0], np.tanh(x.astype("float64") * (x.astype("float64") + y)) + y)


def test_a_long_chain_does_not_grow() -> None:
    """Each stage reads the one before twice: 2^24 terms if values had no names."""

    def chain(emit, x):
        for _ in range(24):
            x = emit(R.multiply(emit(R.add(x, x)), relax.const(0.5, F)))
        return x

    built, x = single_kernel(chain, (50, 50)), numbers(50, 50)
    assert (built.run(x)[0] == x).all()


def test_broadcasting_transposing_and_slicing() -> None:
    def moves(emit, x, b):
        y = emit(R.add(emit(R.permute_dims(x, [0, 2, 1])), b))
        return R.strided_slice(y, axes=[1], begin=[1], end=[9], strides=[2])

    built = single_kernel(moves, (13, 77, 9), (77,))
    x, b = numbers(13, 77, 9), numbers(77, seed=1)
    assert (built.run(x, b)[0] == (x.transpose(0, 2, 1) + b)[:, 1:9:2]).all()


def test_concat_reads_only_the_chosen_side() -> None:
    """The other side's index is out of bounds: a select, which evaluates both, would read past the end. Few parts are
    boxes of their own, many are a branch."""
    many = graph(lambda emit, *xs: R.concat(list(xs), 1), *[((13, 2), F)] * 70)[0]
    text = schedules.first(many, schedules.TARGETS[V3]).func.script()
    assert "if_then_else" in text and "Select" not in text
    (func,) = graph(lambda emit, x, y: R.concat([emit(R.exp(x)), y], 1), ((13, 77), F), ((13, 9), F))
    text = schedules.first(func, schedules.TARGETS[V3]).func.script()
    assert "if_then_else" not in text and "Select" not in text
    built = build(func)
    x, y = numbers(13, 77), numbers(13, 9, seed=1)
    got = built.run(x, y)[0]
    np.testing.assert_allclose(got[:, :77], np.exp(x.astype("float64")), rtol=2 * 2.0**-23)  # 2 ulp
    assert (got[:, 77:] == y).all()


def test_several_outputs_and_truth_values() -> None:
    built = single_kernel(lambda emit, x: R.split(x, [3], 1), (13, 77))
    x = numbers(13, 77)
    first, second = built.run(x)
    assert (first == x[:, :3]).all() and (second == x[:, 3:]).all()

    def pick(emit, x, y):
        return R.where(emit(R.logical_and(emit(R.greater(x, y)), emit(R.greater(x, relax.const(0.0, F))))), x, y)

    built, y = single_kernel(pick, (13, 77), (13, 77)), numbers(13, 77, seed=1)
    assert (built.run(x, y)[0] == np.where((x > y) & (x > 0), x, y)).all()


def test_gather() -> None:
    (func,) = graph(lambda emit, x, i: R.take(x, i, axis=0), ((13, 77), F), ((40,), "int64"))
    x, i = numbers(13, 77), np.random.default_rng(0).integers(0, 13, 40)
    assert (build(func).run(x, i)[0] == x[i]).all()


@pytest.mark.parametrize("shape", [(96, 37), (9, 300)], ids=str)
def test_the_gradient_of_softmax_is_one_row_nest(shape: tuple[int, int]) -> None:
    """y (dy - sum(dy y)): a product, a row sum and a map."""
    rows, columns = shape

    def gradient(y, dy):
        k = te.reduce_axis((0, columns), "k")
        both = te.compute(shape, lambda i, j: y(i, j) * dy(i, j), "both")
        sums = te.compute((rows, 1), lambda i, _: te.sum(both(i, k), axis=k), "sums")
        return te.compute(shape, lambda i, j: y(i, j) * (dy(i, j) - sums(i, 0)), "dx")

    built = build(program(gradient, (shape, F), (shape, F)))
    y, dy = numbers(*shape), numbers(*shape, seed=1)
    wide = dy.astype("float64")
    assert built.rule == "row-reduction"
    assert_close(built.run(y, dy)[0], y * (wide - (wide * y).sum(-1, keepdims=True)), columns)


def test_an_update_in_place_reads_before_it_writes() -> None:
    """Parameters and state of one element are read before any of them is written, at every vector and tail."""
    shape = (33, 45)

    def step(p, m, g):
        new = te.compute(shape, lambda *i: m(*i) * tirx.const(0.5, F) + g(*i), "m")
        return [te.compute(shape, lambda *i: p(*i) - new(*i) * m(*i), "p"), new]

    func = program(step, *[(shape, F)] * 3)
    built = build(func.without_attr("tirx.noalias"))
    from tvm.runtime import tensor

    p, m, g = (numbers(*shape, seed=s) for s in range(3))
    memory = [tensor(p), tensor(m), tensor(g)]
    built.call(*memory, memory[0], memory[1])
    np.testing.assert_allclose(
        memory[0].numpy(), p - (m * np.float32(0.5) + g) * m, rtol=1e-5, atol=1e-6
    )  # fused or not
    assert_close(memory[1].numpy(), m * np.float32(0.5) + g)


@pytest.mark.parametrize("shape", [(30, 70), (9, 16)], ids=str)
def test_bfloat16_is_rounded_to_nearest_and_keeps_nan(shape: tuple[int, ...]) -> None:
    import ml_dtypes

    bf16 = ml_dtypes.bfloat16
    (func,) = graph(lambda emit, x: R.multiply(emit(R.add(x, x)), x), (shape, "bfloat16"))
    x = numbers(*shape).astype(bf16)
    x[0, :3] = [np.nan, np.inf, -np.inf]
    got = build(func).run(x)[0].astype("float32")
    doubled = (x.astype("float32") * 2).astype(bf16).astype("float32")
    want = (doubled * x.astype("float32")).astype(bf16).astype("float32")
    np.testing.assert_array_equal(got, want)


def test_loops_written_by_hand_stay_as_they_are() -> None:
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as T

    def body(ins, outs):
        x, y = T.buffer_proxy(ins[0]), T.buffer_proxy(outs[0])
        with IRBuilder() as ib:
            with T.serial(0, 20) as i:
                y[i] = x[19 - i]
            return ib.get()

    func = program(lambda a: te.extern([(20,)], [a], body, "turn", F), ((20,), F))
    built, x = build(func), numbers(20)
    assert built.rule == "explicit-loops"
    assert (built.run(x)[0] == x[::-1]).all()


def test_a_block_with_a_condition_falls_back() -> None:
    from tvm import IRModule, s_tir

    func = program(lambda a: te.compute((100,), lambda i: a(i) + tirx.const(1.0, F), "y"), ((100,), F))
    schedule = s_tir.Schedule(IRModule({"main": func}))
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    schedule.split(loop, [None, 16])  # 100 is no multiple of 16: the block gets a condition
    built, x = build(schedule.mod["main"]), numbers(100)
    assert built.rule == "fallback"
    assert (built.run(x)[0] == x + 1).all()
