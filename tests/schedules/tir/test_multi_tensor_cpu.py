"""Programs of many tensors as one loop over pieces of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from tvm import te, tirx
from tvm.runtime import tensor

from tests.schedules.tensor_programs import V3, V4, build, numbers, runs_here, threads

pytestmark = [pytest.mark.build, pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")]

F = "float32"
SHAPES = ((1001,), (3,), (70, 90), (2047,), (8, 256), (2049,), (30001,))
HALF = tirx.const(0.5, F)


def many(form: Any, shapes: Any = SHAPES, inputs: int = 2) -> Any:
    """``form(n, tensors..)`` -> tensors, for each of ``shapes``; the parameters are all inputs, then all outputs."""
    given, made = [], []
    for n, shape in enumerate(shapes):
        xs = [te.placeholder(shape, F, f"x{n}_{k}") for k in range(inputs)]
        outs = form(n, *xs)
        given += xs
        made += outs if isinstance(outs, list) else [outs]
    return te.create_prim_func([*given, *made])


def elementwise(shape: Any, f: Any) -> Any:
    return te.compute(shape, f, "each")


def blend(n: int, x: Any, y: Any) -> Any:
    """Two forms: every third tensor has another one."""
    factor = tirx.const(0.25 if n % 3 == 0 else 4.0, F)
    return elementwise(x.shape, lambda *i: x(*i) * factor + y(*i))


def random_inputs(shapes: Any = SHAPES, inputs: int = 2) -> list[np.ndarray]:
    return [numbers(*shape, seed=7 * n + k) for n, shape in enumerate(shapes) for k in range(inputs)]


def test_every_element_of_every_tensor() -> None:
    built, xs = build(many(blend)), random_inputs()
    assert built.rule == "multi-tensor"
    for n, got in enumerate(built.run(*xs)):
        want = xs[2 * n] * np.float32(0.25 if n % 3 == 0 else 4.0) + xs[2 * n + 1]  # exact factors: nothing to fuse
        assert got.tobytes() == want.tobytes()


def total(n: int, x: Any) -> Any:
    axes = [te.reduce_axis((0, extent), f"k{d}") for d, extent in enumerate(x.shape)]
    square = te.compute(x.shape, lambda *i: x(*i) * x(*i), "square")
    return te.compute((), lambda: te.sum(square(*axes), axis=axes), "total")


def by_lanes(x: np.ndarray) -> np.float32:
    """The sum of squares in the stated order: pieces of 8192, each in 64 lanes that then halve."""

    def halve(lanes: np.ndarray) -> np.float32:
        while len(lanes) > 1:
            lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
        return lanes[0]

    def piece(values: np.ndarray) -> np.float32:
        lanes = np.zeros(64, F)
        for at in range(0, len(values), 64):
            row = values[at : at + 64]
            lanes[: len(row)] += row * row
        return halve(lanes)

    flat = x.reshape(-1)
    return sum((piece(flat[at : at + 8192]) for at in range(0, flat.size, 8192)), np.float32(0))


def test_sums_of_whole_tensors() -> None:
    built = build(many(total, inputs=1))
    assert built.rule == "multi-tensor"
    # squares are exact, fused or not; their sums are rounded
    xs = [np.round(x * 1000) / 1024 for x in random_inputs(inputs=1)]
    for got, x in zip(built.run(*xs), xs, strict=True):
        assert got == by_lanes(x)
    assert by_lanes(xs[-1]) != np.float32((xs[-1].astype("float64") ** 2).sum())


FORMS = {"elements": (blend, 2), "sums": (total, 1)}


@pytest.mark.parametrize("name", FORMS)
def test_bits_depend_neither_on_threads_nor_on_the_level(name: str) -> None:
    form, inputs = FORMS[name]
    func, xs, seen = many(form, inputs=inputs), random_inputs(inputs=inputs), set()
    for target in (V3, V4):
        if not runs_here(target):
            target, code = V4, V3  # 16 lanes in AVX2 instructions
        else:
            code = target
        built = build(func, target, code)
        for count in (1, 2, 3):
            threads(count)
            seen.add(b"".join(out.tobytes() for out in built.run(*xs)))
    threads(1)
    assert len(seen) == 1


def step(n: int, p: Any, m: Any, g: Any) -> list[Any]:
    """A momentum step whose new values all look at old ones; the outputs come last."""
    new_m = elementwise(p.shape, lambda *i: m(*i) * HALF + g(*i))
    new_p = elementwise(p.shape, lambda *i: p(*i) - (new_m(*i) + m(*i)) * HALF)
    return [elementwise(p.shape, lambda *i: new_m(*i) + p(*i)), elementwise(p.shape, lambda *i: new_p(*i) + HALF)]


def shared(func: Any, count: int) -> Any:
    """Outputs m and p of each of ``count`` tensors, in the memory of its inputs."""
    pairs = [[3 * n + 1 - k, 3 * count + 2 * n + k] for n in range(count) for k in range(2)]
    return func.without_attr("tirx.noalias").with_attr("in_place", pairs)


@pytest.mark.parametrize("shapes", [SHAPES, SHAPES[:1]], ids=["many", "one"])
def test_an_update_in_place_reads_all_before_it_writes(shapes: Any) -> None:
    built, xs = build(shared(many(step, shapes, 3), len(shapes))), random_inputs(shapes, 3)
    assert built.rule == "multi-tensor"
    memory = [tensor(x) for x in xs]
    built.call(*memory, *(memory[3 * n + 1 - k] for n in range(len(shapes)) for k in range(2)))
    half = np.float32(0.5)
    for n in range(len(shapes)):
        p, m, g = xs[3 * n : 3 * n + 3]
        new_m = m * half + g
        np.testing.assert_allclose(memory[3 * n + 1].numpy(), new_m + p, rtol=1e-6, atol=1e-6)  # fused or not
        np.testing.assert_allclose(memory[3 * n].numpy(), p - (new_m + m) * half + half, rtol=1e-6, atol=1e-6)


def flags(n: int, p: Any, m: Any, g: Any) -> list[Any]:
    """Truth values have no names, so that each would be worked out where it is stored."""
    above = te.compute(p.shape, lambda *i: p(*i) > m(*i), "above")
    return [
        te.compute(p.shape, lambda *i: tirx.Cast(F, above(*i)), "m"),
        te.compute(p.shape, lambda *i: tirx.Cast(F, tirx.Not(above(*i))) + g(*i), "p"),
    ]


def test_a_stored_value_without_a_name_is_left_to_the_blocks_in_order() -> None:
    built, xs = build(shared(many(flags, SHAPES[:2], 3), 2)), random_inputs(SHAPES[:2], 3)
    assert built.rule == "fallback"
    memory = [tensor(x) for x in xs]
    built.call(*memory, *(memory[3 * n + 1 - k] for n in range(2) for k in range(2)))
    for n in range(2):
        p, m, g = xs[3 * n : 3 * n + 3]
        assert np.array_equal(memory[3 * n + 1].numpy(), (p > m).astype(F))
        assert np.array_equal(memory[3 * n].numpy(), (p <= m).astype(F) + g)


OTHER = {
    "turned": lambda x, y: elementwise(x.shape, lambda i, j: x(j, i) + y(i, j)),
    "a neighbour": lambda x, y: elementwise(x.shape, lambda i, j: x(i, (j + 1) % 9) + y(i, j)),
    "its own place": lambda x, y: elementwise(x.shape, lambda i, j: x(i, j) + tirx.Cast(F, i)),
    "sums of rows": lambda x, y: te.compute(
        (9,), (lambda k: lambda i: te.sum(x[i, k] + y[i, k], axis=k))(te.reduce_axis((0, 9), "k"))
    ),
}


@pytest.mark.parametrize("name", OTHER)
def test_what_is_not_element_by_element_is_not_taken(name: str) -> None:
    func = many(lambda n, x, y: OTHER[name](x, y), ((9, 9), (9, 9)))
    assert build(func).rule != "multi-tensor"


def test_half_precision() -> None:
    import ml_dtypes

    def scaled(x: Any) -> Any:
        return elementwise(x.shape, lambda *i: x(*i) + x(*i))

    given = [te.placeholder(shape, "bfloat16", f"x{n}") for n, shape in enumerate(SHAPES)]
    built = build(te.create_prim_func([*given, *map(scaled, given)]))
    assert built.rule == "multi-tensor"
    xs = [numbers(*shape, seed=n).astype(ml_dtypes.bfloat16) for n, shape in enumerate(SHAPES)]
    for got, x in zip(built.run(*xs), xs, strict=True):
        assert np.array_equal(got.view("uint16"), (x + x).view("uint16"))


def test_a_sum_that_needs_another_is_not_done_beside_it() -> None:
    """Of one element each, so that the other one's result looks like a tensor of which it is a part."""
    x = te.placeholder((1, 1), F, "x")
    along = [te.reduce_axis((0, 1), "k") for _ in range(2)]
    largest = te.compute((1,), lambda i: te.max(x[i, along[0]], axis=along[0]), "largest")
    total = te.compute((1,), lambda i: te.sum(x[i, along[1]] - largest[i], axis=along[1]), "total")
    func = te.create_prim_func([x, te.compute((1, 1), lambda i, j: x[i, j] - total[i], "y")])
    given = numbers(1, 1)
    assert np.array_equal(build(func).run(given)[0], given)
