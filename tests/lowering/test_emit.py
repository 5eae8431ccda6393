"""Graphs become functions that take all inputs, return all outputs, and share no memory with either."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from lowering_runs import T, compiled, graph, inputs, load, numpy, reference, run_functions, sample, samples, tensor

from sexpgpu.graph.core import Builder
from sexpgpu.ops import OPS

pytestmark = pytest.mark.build


def test_every_input_is_taken_and_every_output_returned_in_order():
    b = Builder()
    x, unused, y = inputs(b, x=T("f32", 3, 2), unused=T("i64"), y=T("f32", 2))
    g = graph("f", [x, unused, y], sum=b("+", x, y), product=b("*", x, y))
    arrays = samples(g)
    got = run_functions(compiled(g), {"f": arrays})["f"]
    assert [a.tobytes() for a in got] == [a.tobytes() for a in reference(g, arrays)]


def test_outputs_share_memory_with_no_input_and_no_other_output():
    b = Builder()
    (x,) = inputs(b, x=T("f32", 4, 6))
    y = b("+", x, b.const(1.0, "f32"))
    flat = b("reshape", x, shape=(24,))
    g = graph(
        "f",
        [x],
        same=x,
        view=flat,
        y=y,
        again=y,
        deep=b("reshape", flat, shape=(2, 12)),
        of=b("reshape", y, shape=(24,)),
    )
    from lowering.link import shared_library

    given = tensor(sample(x.type))
    got = load(shared_library.library(compiled(g), "x86_64"))("f")(given)
    want = [a.tobytes() for a in reference(g, [numpy(given)])]
    every = [given, *got]
    places = [np.from_dlpack(t).ctypes.data for t in every]
    assert [numpy(a).tobytes() for a in got] == want
    assert len(set(places)) == 7


def test_a_single_output_is_still_a_tuple():
    b = Builder()
    (x,) = inputs(b, x=T("f32"))
    assert len(run_functions(compiled(graph("f", [x], y=b("exp", x))), {"f": [np.float32(0)]})["f"]) == 1


# rank 3 by a matrix: product, bias, function and residual all stay [M, n]; what breaks the chain is made whole again
@pytest.mark.parametrize("tb", [False, True])
def test_a_flattened_product_is_the_same_product(tb):
    b = Builder()
    x, w, bias, mask = inputs(
        b, x=T("f32", 2, 3, 4), w=T("f32", 5, 4) if tb else T("f32", 4, 5), bias=T("f32", 5), mask=T("f32", 2, 1, 5)
    )
    h = b("exp", b("+", b("matmul", x, w, ta=False, tb=tb), bias))
    broken = b("*", h, mask)
    row = b("reshape", h, shape=(6, 5))
    g = graph(
        "f",
        [x, w, bias, mask],
        h=h,
        broken=broken,
        back=b("matmul", row, row, ta=True, tb=False),
        soft=b("softmax", b("-", h, bias), axis=-1),
    )
    arrays = samples(g)
    for got, want in zip(run_functions(compiled(g), {"f": arrays})["f"], reference(g, arrays), strict=True):
        # sums of 4 and 6 terms in another order, and libm's exp against NumPy's: a few units in the last place
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)


def test_the_chain_after_a_product_joins_its_kernel():
    b = Builder()
    x, w, bias = inputs(b, x=T("f32", 2, 3, 4), w=T("f32", 4, 5), bias=T("f32", 5))
    made = compiled(graph("f", [x, w, bias], y=b("sum", b("exp", b("+", b("matmul", x, w), bias)), axes=(0, 1, 2))))
    assert [k.kernel for k in made.kernels] == ["fused_matmul_add_tir_exp", "sum"]


def test_nothing_is_computed_inside_a_join():
    """A part that was computed in the copy's branches would be code of one element at a time, 16 of them nested."""
    b = Builder()
    x, y = inputs(b, x=T("f32", 3, 5), y=T("f32", 3, 2))
    made = compiled(graph("f", (x, y), z=b("exp", b("concat", b("exp", x), b("exp", y), axis=1))))
    assert sorted(k.kernel.rstrip("0123456789") for k in made.kernels) == ["concat", "tir_exp", "tir_exp", "tir_exp"]


def test_a_row_whose_relax_and_type_disagree_is_a_fault_of_the_row(monkeypatch):
    b = Builder()
    (x,) = inputs(b, x=T("f32", 3))
    monkeypatch.setitem(OPS, "exp", attrs.evolve(OPS["exp"], relax=lambda r, x: r.astype(x, "float64")))
    with pytest.raises(AssertionError, match=r"row 'exp': relax gives f64\[3\], the type rule f32\[3\]"):
        compiled(graph("f", [x], y=b("exp", x)))


def test_equal_layers_are_traced_once_and_others_are_not_taken_for_them(monkeypatch):
    from lowering.kernels import namespace

    traced = []
    real = namespace.KERNELS["pad"]
    monkeypatch.setitem(namespace.KERNELS, "pad", lambda *a, **k: traced.append(k["value"]) or real(*a, **k))
    b = Builder()
    x, y = inputs(b, x=T("f32", 2), y=T("f32", 2))
    pads = [b("pad", v, widths=((1, 1),), value=value) for v in (x, y) for value in (0.0, -0.0)]
    g = graph("f", [x, y], **{f"y{n}": p for n, p in enumerate(pads)})
    got = run_functions(compiled(g), {"f": samples(g)})["f"]
    assert [str(value) for value in traced] == ["0.0", "-0.0"]
    for have, want in zip(got, reference(g, samples(g)), strict=True):
        assert have.tobytes() == want.tobytes()


def test_rows_that_share_a_kernel_are_one_call_of_it():
    """Whichever of its results are wanted; other arguments are another call of the same program."""
    from lowering import emit, pipeline

    b = Builder()
    dy, q, k, v = xs = inputs(b, **{n: T("f32", 8, 5, 4) for n in ("dy", "q", "k", "v")})
    made = lambda of, *args: b(f"attend-grad-{of}", *args, causal=True)  # noqa: E731
    g = graph("f", xs, q=made("q", *xs), v=made("v", *xs), k=made("k", *xs), other=made("k", dy, k, q, v))
    arrays = samples(g)
    for mine in (g, g.with_outputs(g.outputs[2:3])):
        count = 2 if len(mine.outputs) > 1 else 1
        assert pipeline.lower(emit.emit([mine])).calls == {"attend_grad": {"f": count}}
        for got, want in zip(run_functions(compiled(mine), {"f": arrays})["f"], reference(mine, arrays), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6)  # as the table's
