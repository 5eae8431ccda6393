"""Functions of f32, of steps of our own and made of others: accurate, right at the edges, one set of bits."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from lowering_runs import X86, T, compiled, graph, inputs, load, numpy, tensor, tvm

from sexpgpu.graph.core import Builder

pytestmark = pytest.mark.build
RNG = np.random.default_rng(0)
COUNT = 1 << 14
ERF = np.vectorize(math.erf)
INF, NAN = math.inf, math.nan
HAS_V4 = "avx512vl" in Path("/proc/cpuinfo").read_text(encoding="utf-8")

FAR = np.exp2(RNG.uniform(20, 46, COUNT // 2)) * RNG.choice([-1, 1], COUNT // 2)  # of sin and cos, up to their last

# name -> arguments, the function in f64, and how many units in the last place a value may be off: what 2^18 values
# showed, rounded up
SPACED = {
    "exp": ([RNG.uniform(-87.3, 88.7, COUNT)], np.exp, 1.5),
    "log": ([np.exp(RNG.uniform(-87, 88, COUNT))], np.log, 1.0),
    "tanh": ([RNG.uniform(-10, 10, COUNT)], np.tanh, 2.4),
    "sigmoid": ([RNG.uniform(-87.3, 88, COUNT)], lambda x: np.exp(-np.logaddexp(0, -x)), 3.0),
    "sin": ([np.concatenate([RNG.uniform(-1e6, 1e6, COUNT // 2), FAR])], np.sin, 1.6),
    "cos": ([np.concatenate([RNG.uniform(-7, 7, COUNT // 2), FAR])], np.cos, 1.6),
    "erf": ([RNG.uniform(-5, 5, COUNT)], ERF, 1.3),
    "pow": ([np.exp(RNG.uniform(-20, 20, COUNT)), RNG.uniform(-4, 4, COUNT)], np.power, 0.6),
}


def function(op: str, count: int, arity: int, scheduler=None, spec=X86):
    from lowering.link import shared_library

    b = Builder()
    ins = inputs(b, **{f"x{n}": T("f32", count) for n in range(arity)})
    made = compiled(graph("f", ins, y=b(op, *ins)), scheduler=scheduler or plain, spec=spec)
    data = shared_library.library(made, "x86_64")
    assert shared_library.libm(data) == ()
    call = load(data)("f")
    return lambda *xs: numpy(call(*(tensor(np.asarray(x, "float32")) for x in xs))[0])


def plain(func, target):
    return SimpleNamespace(func=None, rule="", failures=())


def in_vectors(width: int):
    """Every loop as vectors of ``width`` lanes."""

    def scheduler(func, target):
        sch = tvm.s_tir.Schedule(func)
        (block,) = sch.get_child_blocks(sch.get_sblock("root"))
        _, inner = sch.split(sch.get_loops(block)[-1], [None, width])
        sch.vectorize(inner)
        return SimpleNamespace(func=sch.mod["main"], rule="vectors", failures=())

    return scheduler


@pytest.mark.parametrize("op", SPACED)
def test_values_are_within_the_units_stated(op):
    xs, true, bound = SPACED[op]
    xs = [x.astype("float32") for x in xs]
    want = true(*(x.astype("float64") for x in xs))
    normal = (np.abs(want) > 2.0**-126) & (np.abs(want) < 2.0**127)
    unit = np.spacing(np.abs(want).astype("float32")[normal]).astype("float64")
    got = function(op, COUNT, len(xs))(*xs).astype("float64")
    assert np.max(np.abs(got - want)[normal] / unit) <= bound


# of a sign and every size down to the smallest normal number
SIGNED = np.concatenate([s * np.exp(RNG.uniform(-87, -1e-4, COUNT // 4)) for s in (1, -1)])
MADE = {  # rows made of others: as above
    "log1p": (np.concatenate([SIGNED, np.exp(RNG.uniform(0, 88, COUNT // 2))]), np.log1p, 2.5),
    "expm1": (np.concatenate([SIGNED, RNG.uniform(-100, 88.7, COUNT // 2)]), np.expm1, 2.5),
    "rsqrt": (np.exp(RNG.uniform(-87, 88, COUNT)), lambda x: 1 / np.sqrt(x), 1.5),
}
MADE_EDGES = {
    "log1p": [
        (0.0, 0), (-0.0, -0.0), (1e-40, 1e-40), (-1e-40, -1e-40), (-1.0, -INF), (-1.5, NAN), (INF, INF), (-INF, NAN),
        (NAN, NAN),
    ],
    "expm1": [(0.0, 0), (-0.0, -0.0), (1e-40, 1e-40), (-1e-40, -1e-40), (-INF, -1), (INF, INF), (89., INF), (NAN, NAN)],
    "rsqrt": [(0.0, INF), (-0.0, -INF), (INF, 0), (-1.0, NAN), (-INF, NAN), (NAN, NAN), (4.0, 0.5)],
}  # fmt: skip


@pytest.mark.parametrize("op", MADE)
def test_rows_made_of_others_are_within_the_units_stated(op):
    x, true, bound = MADE[op]
    x = x.astype("float32")
    want = true(x.astype("float64"))
    unit = np.spacing(np.abs(want).astype("float32")).astype("float64")
    assert np.max(np.abs(function(op, len(x), 1)(x) - want) / unit) <= bound


@pytest.mark.parametrize("op", MADE)
def test_rows_made_of_others_have_one_set_of_bits(op):
    import attrs

    import schedules
    from lowering.math import elementary

    def scheduler(lanes):
        target = attrs.evolve(schedules.TARGETS["cpu-x86-64-v3"], functions=elementary.STEPS, lanes=lanes)
        return lambda func, _: schedules.first(func, target)

    x = MADE[op][0].astype("float32")
    edges = np.array([e for e, _ in MADE_EDGES[op]], "float32")
    x = np.concatenate([edges, x[len(edges) :]])
    assert len({function(op, len(x), 1, s)(x).tobytes() for s in (plain, scheduler(8), scheduler(16))}) == 1


@pytest.mark.parametrize("op", MADE_EDGES)
def test_edges_of_rows_made_of_others(op):
    x, want = np.array(MADE_EDGES[op], "float32").T
    got = function(op, len(x), 1)(x)
    np.testing.assert_array_equal(got, want)
    assert np.array_equal(np.signbit(got[~np.isnan(want)]), np.signbit(want[~np.isnan(want)]))


@pytest.mark.parametrize("op", SPACED)
def test_every_width_and_instruction_set_gives_the_same_bits(op):
    xs = SPACED[op][0]
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38], "float32")
    xs = [np.concatenate([edges, x.astype("float32")[len(edges) :]]) for x in xs]
    makers = [(plain, X86), (in_vectors(8), X86), (in_vectors(16), X86)]
    makers += [(in_vectors(16), {**X86, "mcpu": "x86-64-v4"})] if HAS_V4 else []
    assert len({function(op, COUNT, len(xs), s, spec)(*xs).tobytes() for s, spec in makers}) == 1


EDGES = {  # pairs and not a table, where -0.0 and 0.0 would be one key
    "exp": [(0.0, 1), (-0.0, 1), (INF, INF), (-INF, 0), (NAN, NAN), (88.73, INF), (1e30, INF), (-87.4, 0), (1e-40, 1)],
    "log": [(1.0, 0), (0.0, -INF), (-0.0, -INF), (INF, INF), (-INF, NAN), (NAN, NAN), (-1.0, NAN), (1e-45, -103.27893)],
    "tanh": [(0.0, 0), (-0.0, -0.0), (INF, 1), (-INF, -1), (NAN, NAN), (1e-40, 1e-40), (3e38, 1)],
    "sigmoid": [
        (0.0, 0.5),
        (-0.0, 0.5),
        (INF, 1),
        (-INF, 0),
        (NAN, NAN),
        (-87.5, 0),
        (-88.5, 0),
        (-3e38, 0),
        (3e38, 1),
    ],
    "sin": [(0.0, 0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (NAN, NAN), (1e-40, 1e-40), (2.0**46, 0)],
    "cos": [(0.0, 1), (INF, NAN), (-INF, NAN), (NAN, NAN), (1e-40, 1), (2.0**46, 1)],
    "erf": [(0.0, 0), (-0.0, -0.0), (INF, 1), (-INF, -1), (NAN, NAN), (1e-30, 1.1283792e-30), (3e38, 1)],
}


@pytest.mark.parametrize("op", EDGES)
def test_edges(op):
    xs, want = np.array(EDGES[op], "float32").T
    got = function(op, len(xs), 1)(xs)
    np.testing.assert_allclose(got, want, rtol=2e-7)  # the logarithms of subnormals are rounded; the rest is exact
    whole = (want == np.round(want)) | ~np.isfinite(want)
    assert np.array_equal(np.signbit(got[whole & ~np.isnan(want)]), np.signbit(want[whole & ~np.isnan(want)]))
    np.testing.assert_array_equal(got[whole], want[whole])


def test_edges_of_pow_are_those_of_c():
    bases = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, INF, -INF, NAN, 1e-40, 3e38, -3e38]
    exponents = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, INF, -INF, NAN, 1e-45, 1e30, -1e30]
    x, y = (a.ravel().astype("float32") for a in np.meshgrid(bases, exponents))
    with np.errstate(all="ignore"):
        want = np.power(x.astype("float64"), y.astype("float64")).astype("float32")
    got = function("pow", len(x), 2)(x, y)
    np.testing.assert_array_equal(got, want)
    known = ~np.isnan(want)
    assert np.array_equal(np.signbit(got[known]), np.signbit(want[known]))
