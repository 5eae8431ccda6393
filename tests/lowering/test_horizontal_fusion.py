"""Updates of many tensors become few programs, whoever wrote the update, and compute the same."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from lowering_runs import T, compiled, graph, inputs, load, no_rule, numpy, reference, samples, tensor

from sexpgpu.graph.core import Builder, Graph, Value

pytestmark = pytest.mark.build

SHAPES = ((70, 30), (5, 7), (3,), (2500,), (11,), ())


def by_rule(func, target):
    """The schedules' own choice for this machine's kind."""
    import attrs

    import schedules
    from lowering.math import elementary

    return schedules.first(func, attrs.evolve(schedules.TARGETS["cpu-x86-64-v3"], functions=elementary.STEPS))


def norm(b: Builder, grads: list[Value]) -> Value:
    total = b.const(0.0, "f32")
    for g in grads:
        total = b("+", total, b("sum", b("*", g, g), axes=tuple(range(g.type.rank)), keepdims=False))
    return b("sqrt", total)


def adam(b: Builder, p, g, m, v) -> list[Value]:
    m2 = b("+", b("*", m, b.const(0.9, "f32")), b("*", g, b.const(0.1, "f32")))
    v2 = b("+", b("*", v, b.const(0.99, "f32")), b("*", b("*", g, g), b.const(0.01, "f32")))
    step = b("/", m2, b("+", b("sqrt", b("abs", v2)), b.const(1e-3, "f32")))
    return [b("-", p, b("*", b.const(0.1, "f32"), step)), m2, v2]


def own_norm(b: Builder, p, g, m, v) -> list[Value]:
    """A step as long as the parameter (You et al. 2020): a sum over a tensor that needs another one before."""
    p2, m2, v2 = adam(b, p, g, m, v)
    ratio = b("/", norm(b, [p]), norm(b, [b("-", p, p2)]))
    return [b("-", p, b("*", ratio, b("-", p, p2))), m2, v2]


def update(step, shapes=SHAPES, bound: float = 1e9) -> tuple[Graph, list[tuple[int, int]]]:
    """``step`` on every parameter, with the norm of all gradients; all is left as it was where that is not below
    ``bound``. Inputs in order: p.. g.. m.. v..; outputs: norm, then p m v of each parameter."""
    b = Builder()
    ports = {k: inputs(b, **{f"{k}{n}": T("f32", *s) for n, s in enumerate(shapes)}) for k in "pgmv"}
    size = norm(b, ports["g"])
    scale = b("min", b.const(1.0, "f32"), b("/", b.const(0.5, "f32"), size))
    fine = b("<", size, b.const(bound, "f32"))
    outs, pairs = {"norm": size}, []
    for n, (p, g, m, v) in enumerate(zip(*ports.values(), strict=True)):
        new = step(b, p, b("*", g, scale), m, v)
        for key, old, value in zip("pmv", (p, m, v), new, strict=True):
            pairs.append((len(outs), [x for xs in ports.values() for x in xs].index(old)))
            outs[f"{key}{n}"] = b("where", fine, value, old)
    return graph("update", [x for xs in ports.values() for x in xs], **outs), pairs


def calls(made) -> dict[str, int]:
    return {row.kernel: sum(row.calls.values()) for row in made.kernels}


def run(made, g: Graph) -> list[np.ndarray]:
    """What is returned, and all inputs as they are afterwards."""
    from lowering.link import shared_library

    given = [tensor(a) for a in samples(g)]
    returned = load(shared_library.library(made, "x86_64"))(g.name)(*given)
    return [numpy(x) for x in (*returned, *given)]


def agree(made, g: Graph, pairs) -> None:
    assert sorted(made.in_place["update"]) == sorted(pairs)
    got, want = run(made, g), reference(g, samples(g))
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5)  # a sum of 5000 squares in another order
    for output, input in pairs:
        np.testing.assert_allclose(got[1 + input], want[output], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scheduler", [no_rule, by_rule], ids=["as made", "scheduled"])
@pytest.mark.parametrize("bound", [1e9, 1e-9], ids=["done", "left as it was"])
def test_all_tensors_of_an_update_are_two_programs(scheduler, bound):
    g, pairs = update(adam, bound=bound)
    made = compiled(g, scheduler=scheduler, in_place={"update": pairs})
    joined = {name: n for name, n in calls(made).items() if name.startswith("update")}
    assert joined == {"update_totals": 1, "update_elements": 1}
    agree(made, g, pairs)
    if scheduler is by_rule:
        assert {row.rule for row in made.kernels if row.kernel in joined} == {"multi-tensor"}


@pytest.mark.parametrize("scheduler", [no_rule, by_rule], ids=["as made", "scheduled"])
def test_sums_that_need_other_sums_stand_one_after_the_other(scheduler):
    shapes = ((70, 30), (41,))
    g, pairs = update(own_norm, shapes)
    made = compiled(g, scheduler=scheduler, in_place={"update": pairs})
    assert calls(made) == {"update_totals": 1, "update_totals1": 1, "update_elements": 1}
    agree(made, g, pairs)


def test_many_tensors_are_several_programs_of_the_same_bits(monkeypatch):
    from lowering.passes import horizontal_fusion

    g, pairs = update(adam)
    whole = run(compiled(g, scheduler=by_rule, in_place={"update": pairs}), g)
    monkeypatch.setattr(horizontal_fusion, "MAX_TENSORS", 15)
    made = compiled(g, scheduler=by_rule, in_place={"update": pairs})
    joined = [name.rstrip("123") for name in calls(made) if name.startswith("update")]
    assert joined == ["update_elements"] * 3 + ["update_totals"]  # 7 tensors a parameter, two of a sum
    assert [x.tobytes() for x in run(made, g)] == [x.tobytes() for x in whole]


def factored(b: Builder, p, g, m, v) -> list[Value]:
    """A step divided by the sums of its rows, where there are rows."""
    if p.type.rank < 2:
        return adam(b, p, g, m, v)
    rows = b("sum", b("*", g, g), axes=(1,), keepdims=True)
    return [b("-", p, b("/", g, b("+", b.const(1.0, "f32"), rows))), m, b("+", v, b("*", g, g))]


def test_what_is_not_element_by_element_is_left_to_fusion():
    g, pairs = update(factored, ((70, 30), (41,), (6,)))
    made = compiled(g, scheduler=by_rule, in_place={"update": pairs})
    assert calls(made)["update_elements"] == 1
    assert any(not name.startswith("update") for name in calls(made))
    agree(made, g, pairs)


def test_a_sum_that_a_product_adds_to_stays_with_the_product():
    b = Builder()
    ins = inputs(b, x=T("f32", 6, 3), y=T("f32", 6, 4), s=T("f32", 3, 4), t=T("f32", 3, 4))
    x, y, *sums = ins
    made = [
        b("+", s, b("matmul", x, b("*", y, b.const(k, "f32")), ta=True, tb=False))
        for k, s in zip((2.0, 3.0), sums, strict=True)
    ]
    g = graph("train", ins, a=made[0], b=made[1])
    assert not any(name.startswith("train") for name in calls(compiled(g, in_place={"train": [(0, 2), (1, 3)]})))


def test_nothing_is_joined_where_nothing_is_in_place():
    g, _ = update(adam, ((5,), (7,)))
    assert not any(name.startswith("update") for name in calls(compiled(g)))


def test_equal_constants_are_one_input():
    seen = {}

    def watch(func, target):
        seen[len(func.params)] = func
        return SimpleNamespace(func=None, rule="", failures=())

    b = Builder()
    p, q = ins = inputs(b, p=T("f32", 5), q=T("f32", 7))
    zero = b.const(0.0, "f32")  # handed over as data: TVM would take 0 x for 0
    g = graph("update", ins, p=b("*", p, zero), q=b("*", q, zero))
    compiled(g, scheduler=watch, in_place={"update": [(0, 0), (1, 1)]})
    assert list(seen) == [5]  # two inputs, one constant, two outputs


def test_a_number_that_is_a_result_too_is_made_before_what_reads_it():
    """Of an update without sums, which would be made before."""
    b = Builder()
    p, q = inputs(b, p=T("f32", 70, 30), q=T("f32", 70, 30))
    rate = b.const(0.1, "f32")
    g = graph("update", [p, q], rate=rate, p2=b("-", p, rate), q2=b("*", q, rate))
    agree(compiled(g, in_place={"update": [(1, 0), (2, 1)]}), g, [(1, 0), (2, 1)])
