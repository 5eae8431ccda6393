"""An output takes an input's memory only where nobody can tell; the others are returned."""

from __future__ import annotations

import numpy as np
import pytest
from lowering_runs import T, compiled, graph, inputs, load, no_rule, numpy, reference, samples, tensor

from sexpgpu.graph.core import Builder, Graph

pytestmark = pytest.mark.build


def build(g: Graph, *pairs: tuple[int, int]):
    return compiled(g, in_place={g.name: pairs})


def agree(made, g: Graph) -> None:
    """One call: the pairs that were done are in the caller's memory, the other outputs are returned, and all inputs
    that are in no pair are as they were."""
    from lowering.link import shared_library

    arrays = samples(g)
    want = reference(g, arrays)
    given = [tensor(a) for a in arrays]
    got = load(shared_library.library(made, "x86_64"))(g.name)(*given)
    pairs = dict(made.in_place.get(g.name, ()))
    returned = [w for n, w in enumerate(want) if n not in pairs]
    assert len(got) == len(returned)
    for have, wanted in zip(got, returned, strict=True):
        np.testing.assert_allclose(numpy(have), wanted, rtol=1e-5, atol=1e-6)  # a handful of f32 operations
    for n, before in enumerate(arrays):
        after = [want[o] for o, i in pairs.items() if i == n] or [before]
        np.testing.assert_allclose(numpy(given[n]), after[0], rtol=1e-5, atol=1e-6)


def adam(b: Builder, p, g, m, v, rate):
    m2 = b("+", b("*", m, b.const(0.9, "f32")), b("*", g, b.const(0.1, "f32")))
    v2 = b("+", b("*", v, b.const(0.99, "f32")), b("*", b("*", g, g), b.const(0.01, "f32")))
    step = b("/", m2, b("+", b("sqrt", b("abs", v2)), b.const(1e-3, "f32")))
    return b("-", p, b("*", rate, b("+", step, b("*", p, b.const(0.1, "f32"))))), m2, v2


def test_an_optimizer_with_two_states_is_done_in_place():
    b = Builder()
    ins = p, g, m, v, rate = inputs(b, **{k: T("f32", 5, 7) for k in "pgmv"}, rate=T("f32"))
    p2, m2, v2 = adam(b, p, g, m, v, rate)
    up = graph("update", ins, p=p2, m=m2, norm=b("sum", b("*", g, g), axes=(0, 1)), v=v2)
    made = build(up, (0, 0), (1, 2), (3, 3))
    assert made.in_place == {"update": ((0, 0), (1, 2), (3, 3))}
    agree(made, up)


def test_a_choice_between_old_and_new_is_done_in_place():
    b = Builder()
    ins = p, g, m, v, rate = inputs(b, **{k: T("f32", 5, 7) for k in "pgmv"}, rate=T("f32"))
    fine = b("<", b("sum", b("*", g, g), axes=(0, 1)), b.const(1e9, "f32"))
    new = zip(adam(b, p, g, m, v, rate), (p, m, v), strict=True)
    p2, m2, v2 = (b("where", fine, a, old) for a, old in new)
    up = graph("update", ins, p=p2, m=m2, v=v2)
    made = build(up, (0, 0), (1, 2), (2, 3))
    assert made.in_place == {"update": ((0, 0), (1, 2), (2, 3))}
    agree(made, up)


def test_a_gradient_is_added_to_its_sum_in_place():
    b = Builder()
    x, dy, acc = ins = inputs(b, x=T("f32", 6, 3), dy=T("f32", 6, 4), acc=T("f32", 3, 4))
    g = graph("train", ins, loss=b("sum", x, axes=(0, 1)), acc=b("+", acc, b("matmul", x, dy, ta=True, tb=False)))
    made = build(g, (1, 2))
    assert made.in_place == {"train": ((1, 2),)}
    agree(made, g)


def test_an_output_that_does_not_read_its_input_may_replace_it():
    b = Builder()
    p, g = inputs(b, p=T("f32", 4), g=T("f32", 4))
    made = build(up := graph("update", [p, g], p=b("softmax", g, axis=-1)), (0, 0))
    assert made.in_place == {"update": ((0, 0),)}
    agree(made, up)


def through_view(b: Builder, p, g):
    """The view has two readers, so that it is no part of either's kernel."""
    view = b("reshape", p, shape=(2, 8))
    back = b("transpose", b("reshape", view, shape=(4, 4)), axes=(1, 0))
    return b("+", b("sum", view, axes=(0, 1)), b("-", g, back))


def corner_of_view(b: Builder, p, g):
    """Row i of the view is not row i of p, though both have the columns 0 to 3."""
    view = b("reshape", p, shape=(2, 8))
    top = b("slice", view, **{"axis": 1, "from": 0, "to": 4})
    return b("+", b("sum", view, axes=(0, 1)), b("+", b("pad", top, widths=((0, 2), (0, 0))), g))


# name -> outputs of p f32[4 4] and g f32[4 4], the first of which is to be in the place of p, but must not
UNSAFE = {
    "read by a later kernel": lambda b, p, g: [b("-", p, g), b("sum", p, axes=(0, 1))],
    "read later through a view": lambda b, p, g: [b("-", p, g), b("softmax", b("reshape", p, shape=(2, 8)), axis=-1)],
    "transposed": lambda b, p, g: [b("-", b("transpose", p, axes=(1, 0)), g)],
    "every element depends on a row": lambda b, p, g: [b("softmax", p, axis=-1)],
    "a neighbour is read": lambda b, p, g: [b("-", b("flip", p, axes=(0,)), g)],
    "a factor of a product": lambda b, p, g: [b("matmul", p, g)],
    "read through a view by its own kernel": lambda b, p, g: [through_view(b, p, g)],
    "read at the same indices of a view of another shape": lambda b, p, g: [corner_of_view(b, p, g)],
    "returned as it was": lambda b, p, g: [b("-", p, g), p],
    "of another shape": lambda b, p, g: [b("sum", b("-", p, g), axes=(0,))],
    "of another dtype": lambda b, p, g: [b("<", p, g)],
}


@pytest.mark.parametrize("outputs", UNSAFE.values(), ids=UNSAFE)
def test_what_could_be_told_is_returned(outputs):
    b = Builder()
    p, g = inputs(b, p=T("f32", 4, 4), g=T("f32", 4, 4))
    up = graph("update", [p, g], **{f"o{n}": v for n, v in enumerate(outputs(b, p, g))})
    made = build(up, (0, 0))
    assert made.in_place == {"update": ()}
    agree(made, up)


def test_one_input_takes_one_output():
    b = Builder()
    p, g = inputs(b, p=T("f32", 4), g=T("f32", 4))
    made = build(up := graph("update", [p, g], a=b("exp", g), b=b("sqrt", b("exp", g))), (0, 0), (1, 0))
    assert made.in_place == {"update": ((0, 0),)}
    agree(made, up)


def test_a_kernel_given_one_memory_twice_makes_no_claim_about_aliases():
    b = Builder()
    p, g, q = inputs(b, p=T("f32", 8), g=T("f32", 8), q=T("f32", 8))
    seen = {}

    def watch(func, target):
        seen["tirx.noalias" in func.attrs] = func
        return no_rule(func, target)

    up = graph("update", [p, g, q], p=b("-", p, g), q=b("softmax", g, axis=-1))
    made = compiled(up, scheduler=watch, in_place={"update": [(0, 0), (1, 2)]})
    assert made.in_place == {"update": ((0, 0), (1, 2))}
    assert [[*map(list, f.attrs.get("in_place", ()))] for _, f in sorted(seen.items())] == [[[0, 2]], []]
    assert sorted(seen) == [False, True]  # p's kernel reads p; q's does not read q


def test_an_input_that_is_returned_in_its_own_place_is_not_copied():
    """An entry of a generator's state that a trip returns as it got it, say. Two that change places are copied."""
    b = Builder()
    x, y, z = inputs(b, x=T("f32", 4), y=T("f32", 4), z=T("f32", 4))
    made = build(up := graph("step", [x, y, z], a=x, b=z, c=y, d=b("+", x, y)), (0, 0), (1, 1), (2, 2))
    assert made.in_place == {"step": ((0, 0), (2, 2))}  # z may take y's values once its own are in b
    assert {row.kernel: sum(row.calls.values()) for row in made.kernels} == {"add": 1, "step_elements": 1}
    agree(made, up)
