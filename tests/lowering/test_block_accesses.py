"""may_alias, on tensor programs of every kind that it must tell apart."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm", reason="needs the extra `build`")

from tvm import te  # noqa: E402
from tvm.script import tirx as T  # noqa: E402, N812

from lowering.passes.block_accesses import may_alias, outputs  # noqa: E402

pytestmark = pytest.mark.build


def program(make):
    """The PrimFunc of x f32[4 4], z f32[4 4] -> make(x, z)."""
    x, z = (te.placeholder((4, 4), "float32", name) for name in "xz")
    made = make(x, z)
    return te.create_prim_func([x, z, *(made if isinstance(made, list) else [made])])


def pointwise(x, z, f):
    return te.compute((4, 4), lambda i, j: f(x, z, i, j))


def chain(x, z):
    """Two stages, each element by element."""
    y = te.compute((4, 4), lambda i, j: x[i, j] * z[j, i])
    return te.compute((4, 4), lambda i, j: y[i, j] + x[i, j])


def shifted_chain(x, z):
    y = te.compute((4, 4), lambda i, j: x[i, j] * z[i, j])
    return te.compute((4, 4), lambda i, j: y[3 - i, j])


def epilogue(x, z):
    """z z + x: the product does not read x."""
    k = te.reduce_axis((0, 4), "k")
    y = te.compute((4, 4), lambda i, j: te.sum(z[i, k] * z[k, j], axis=k))
    return te.compute((4, 4), lambda i, j: y[i, j] + x[i, j])


def row_sum(x, z):
    k = te.reduce_axis((0, 4), "k")
    y = te.compute((4,), lambda i: te.sum(x[i, k], axis=k))
    return te.compute((4, 4), lambda i, j: z[i, j] + y[i])


def scaled_sum(x, z):
    """x stands in every term of a sum, whose parts are already written where x was."""
    k = te.reduce_axis((0, 4), "k")
    return te.compute((4, 4), lambda i, j: te.sum(x[i, j] * z[i, k], axis=k))


def two_outputs(x, z):
    """z's copy is written first, so that the second output would read what the first has overwritten."""
    return [pointwise(x, z, lambda x, z, i, j: z[i, j]), pointwise(x, z, lambda x, z, i, j: x[i, j])]


CASES = [
    ("same element", lambda x, z: pointwise(x, z, lambda x, z, i, j: x[i, j] + z[j, i]), True),
    ("not read", lambda x, z: pointwise(x, z, lambda x, z, i, j: z[j, i]), True),
    ("a chain", chain, True),
    ("an epilogue", epilogue, True),
    ("another element", lambda x, z: pointwise(x, z, lambda x, z, i, j: x[j, i]), False),
    ("this and another", lambda x, z: pointwise(x, z, lambda x, z, i, j: x[i, j] + x[3 - i, j]), False),
    ("a neighbour", lambda x, z: pointwise(x, z, lambda x, z, i, j: x[i, (j + 1) % 4]), False),
    ("a fixed row", lambda x, z: pointwise(x, z, lambda x, z, i, j: x[0, j]), False),
    ("a chain that turns", shifted_chain, False),
    ("a sum of a row", row_sum, False),
    ("a factor of every term of a sum", scaled_sum, False),
    ("another output reads it later", two_outputs, False),
]


@pytest.mark.parametrize(("make", "may"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_may_alias(make, may):
    assert may_alias(program(make), 0, 2) is may


def test_another_output_may_read_the_input_before_but_not_after():
    func = program(
        lambda x, z: [pointwise(x, z, lambda x, z, i, j: x[i, j]), pointwise(x, z, lambda x, z, i, j: x[i, j])]
    )
    assert [may_alias(func, 0, out) for out in (2, 3)] == [False, True]


def test_another_output_may_not_read_another_element_of_the_input():
    func = program(
        lambda x, z: [pointwise(x, z, lambda x, z, i, j: x[j, i]), pointwise(x, z, lambda x, z, i, j: x[i, j])]
    )
    assert not may_alias(func, 0, 3)


def test_what_is_read_after_the_first_write_may_not_alias():
    @T.prim_func(s_tir=True)
    def func(x: T.Buffer((4,), "float32"), z: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        t = T.sblock_alloc_buffer((4,))
        for i in range(4):
            with T.sblock("first"):
                v = T.axis.spatial(4, i)
                y[v] = z[v]
        for i in range(4):
            with T.sblock("then"):
                v = T.axis.spatial(4, i)
                t[v] = x[v]
        for i in range(4):
            with T.sblock("last"):
                v = T.axis.spatial(4, i)
                y[v] = y[v] + t[v]

    assert not may_alias(func, 0, 2)


def test_outputs_are_the_parameters_that_are_written():
    assert outputs(program(two_outputs)) == [2, 3]
