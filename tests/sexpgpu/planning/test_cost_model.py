"""What the cost model counts in a graph, and what it makes of the counts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from attrs import evolve

from sexpgpu.graph.core import Builder, Graph, Value
from sexpgpu.ops.types import TensorType
from sexpgpu.planning.cost_model import Rates, calls, flops, kernel_seconds, phase_cost, step_seconds
from sexpgpu.planning.fusion_model import Kernel, kernels
from sexpgpu.planning.memory_plan import beside
from tests.sexpgpu.phases.test_phases import HELD_OUT, generate
from tests.support import plan_of

b = Builder()
RATES = Rates(flops=1e9, bytes=1e9, threads=2, launch=1e-6, fork=2e-6, call=20e-6, port=1e-6, cache=1e6, far=1e8)


def input_of(*shape: int) -> Value:
    return b.input("x", TensorType(shape, "f32"))


def graph(*outputs: Value) -> Graph:
    found = {v: None for v in Graph("", (), tuple(("", o) for o in outputs)).values() if not v.op}
    return Graph("g", tuple(found), tuple((str(n), v) for n, v in enumerate(outputs)))


def ops(*outputs: Value) -> list[list[str]]:
    """The operators of each kernel."""
    return [[v.op for v in k.values] for k in kernels(graph(*outputs))]


def test_a_matmul_is_two_m_n_k_and_moves_are_free() -> None:
    product = b("matmul", input_of(4, 3), input_of(3, 2))
    assert flops(graph(product)) == 2 * 4 * 3 * 2
    assert flops(graph(b("exp", b("transpose", product, perm=(1, 0))))) == 48 + 8
    assert flops(graph(b("matmul", input_of(3, 4), input_of(3, 2), ta=True))) == 48


def test_elementwise_values_join_each_other_and_a_sum() -> None:
    x = input_of(4, 3)
    y = b("exp", x)
    both = b("*", b("sin", y), b("cos", y))  # y has two users, in one kernel
    assert ops(b("sum", both, axes=(0,), keepdims=False)) == [["exp", "sin", "cos", "*", "sum"]]
    assert ops(b("sqrt", b("sum", x, axes=(0,), keepdims=False))) == [["sum"], ["sqrt"]]


def test_an_output_and_a_value_of_two_kernels_stay_alone() -> None:
    y = b("exp", input_of(4, 3))
    assert ops(b("sin", y), y) == [["exp"], ["sin"]]
    assert ops(b("sum", y, axes=(0,), keepdims=False), b("sum", y, axes=(1,), keepdims=False)) == [
        ["exp"], ["sum"], ["sum"],
    ]  # fmt: skip


def test_a_product_takes_the_elementwise_values_after_it_and_none_before() -> None:
    product = b("matmul", b("exp", input_of(4, 3)), input_of(3, 2))
    shifted = b("+", product, input_of(2))
    assert ops(b("max", shifted, input_of(4, 2))) == [["exp"], ["matmul", "+", "max"]]
    assert ops(b("sum", shifted, axes=(0,), keepdims=False)) == [["exp"], ["matmul"], ["+", "sum"]]
    two = b("matmul", input_of(4, 3), input_of(3, 2))
    assert len(ops(b("+", product, two))) == 3  # one product a kernel


def test_the_gradients_of_attention_are_one_kernel_made_before_any_is_read() -> None:
    q, k, v, dy = input_of(2, 4, 5, 3), input_of(2, 4, 6, 3), input_of(2, 4, 6, 2), input_of(2, 4, 5, 2)
    dq, dk, dv = (b(f"attend-grad-{of}", dy, q, k, v, causal=False) for of in "qkv")
    made = ["attend-grad-q", "attend-grad-k", "attend-grad-v"]
    first, second, third = ops(b("exp", dq), dk, b("sin", dv))
    assert (sorted(first), second, third) == (sorted(made), ["exp"], ["sin"])
    other = b("attend-grad-q", dy, q, k, v, causal=True)
    assert [len(names) for names in ops(dq, dk, other)] == [2, 1]
    scores = 2 * 4 * 5 * 6
    assert flops(graph(b("attend", q, k, v, causal=False))) == scores * (2 * (3 + 2) + 2)
    # scores again and the gradients of weights; a softmax, a softmax's gradient and two scalings; three products
    assert flops(graph(dq, dk, dv)) == scores * (2 * (3 + 2) + 4 + 2 * (3 + 3 + 2))
    assert kernel_seconds(kernels(graph(dq, dk, dv))[0], RATES) > kernel_seconds(kernels(graph(dq))[0], RATES)


def test_a_move_joins_elementwise_values_alone() -> None:
    turned = b("transpose", input_of(4, 3), perm=(1, 0))
    assert ops(b("exp", turned)) == [["transpose", "exp"]]
    assert ops(b("sum", b("exp", turned), axes=(0,), keepdims=False)) == [["transpose"], ["exp", "sum"]]
    moved = b("exp", b("transpose", b("exp", input_of(4, 3)), perm=(1, 0)))
    assert ops(b("sum", moved, axes=(0,), keepdims=False)) == [["exp", "transpose"], ["exp", "sum"]]
    square = b("exp", input_of(4, 4))  # two users, which meet in the kernel of the sum
    both = b("+", b("transpose", square, perm=(1, 0)), square)
    assert ops(b("sum", both, axes=(0,), keepdims=False)) == [["exp", "transpose", "+", "sum"]]


def test_a_view_is_no_kernel_and_a_returned_input_is_a_copy() -> None:
    x = input_of(4, 3)
    assert ops(b("softmax", b("reshape", x, shape=(12,)), axis=0)) == [["softmax"]]
    assert [(k.values, k.reads, k.writes) for k in kernels(graph(x))] == [((), 48, 48)]


def test_bytes_are_those_of_operands_and_results() -> None:
    x = input_of(4, 3)
    (k,) = kernels(graph(b("+", b("*", x, x), input_of(3))))
    assert (k.reads, k.writes) == (48 + 12, 48)
    (part,) = kernels(graph(b("exp", b("gather", input_of(1000, 3), b.input("i", TensorType((2,), "i32"))))))
    assert (part.reads, part.writes) == (2 * 3 * 4 + 8, 24)  # the rows that are read, not the table


def test_an_update_of_all_parameters_is_one_kernel_and_their_norm_one() -> None:
    weights, gradients = [input_of(4), input_of(5)], [input_of(4), input_of(5)]
    norm = [b("sum", b("*", g, g), axes=(0,), keepdims=False) for g in gradients]
    factor = b("sqrt", b("+", *norm))
    new = [b("-", w, b("*", g, factor)) for w, g in zip(weights, gradients, strict=True)]
    made = Graph("g", (*weights, *gradients), tuple(("", v) for v in new))
    first, last = kernels(made, ((0, 0), (1, 1)))
    assert sum(v.op == "sum" for v in first.values) == 2 and {v.op for v in last.values} == {"-", "*"}
    assert len(kernels(made)) > 2  # not where nothing replaces an input


def test_a_kernel_takes_its_work_and_its_bytes_on_as_many_threads_as_pay() -> None:
    assert kernel_seconds(Kernel((), 1000, 0), RATES) == pytest.approx(1e-6 + 1e-6)  # sharing would take 2.5e-6
    assert kernel_seconds(Kernel((), 100_000, 0), RATES) == pytest.approx(1e-6 + 50e-6 + 2e-6)
    product = b("matmul", input_of(100, 100), input_of(100, 100))  # 108 terms a sum, with what its ends cost
    assert kernel_seconds(Kernel((product,), 8000, 2000), RATES) == pytest.approx(1e-6 + 1.08e-3 + 5e-6 + 2e-6)


def test_what_does_not_fit_into_the_cache_comes_from_far() -> None:
    assert kernel_seconds(Kernel((), 1000, 0), RATES, missed=0.5) == pytest.approx(1e-6 + (0.5e-6 + 5e-6) / 2 + 2e-6)
    train = plan_of().phase("train")
    small, large = (phase_cost(train, evolve(RATES, cache=size)).seconds for size in (beside(train) / 2, beside(train)))
    assert small > large == phase_cost(train, RATES).seconds


def test_a_step_is_the_calls_of_its_phases() -> None:
    plan = plan_of(
        generate=generate(trips="3", finish="state"),
        passes=HELD_OUT.format(batch=4),
        run="(defrun r :model m :loader d :seed 1 :steps 2 :microbatches 2)",
    )
    count = {p.name: calls(p, plan.phases, plan.settings, plan.trips) for p in plan.phases}
    assert count == {
        "init": 0, "generate.init": 2, "generate.step": 6, "generate.finish": 2, "train": 2, "update": 1, "eval.p": 0,
    }  # fmt: skip
    once = {p.name: phase_cost(p, RATES).seconds for p in plan.phases}
    assert step_seconds(plan.phases, plan.settings, RATES, plan.trips) == pytest.approx(
        sum(n * once[name] for name, n in count.items())
    )
    train = plan.phase("train")
    ports = len(train.inputs) + len(train.outputs)
    assert once["train"] > RATES.call + ports * RATES.port + phase_cost(train, RATES).kernels * RATES.launch


def test_the_single_phase_runs_what_the_stacked_one_leaves() -> None:
    settings: object = SimpleNamespace(microbatches=11)
    phases = [SimpleNamespace(role=n, stack=d) for n in ("generate.step", "train") for d in (1, 4)]
    assert [calls(p, phases, settings, 3) for p in phases] == [9, 6, 3, 2]  # type: ignore[arg-type]


def product_seconds(dtype: str, depth: int, rates: Rates) -> float:
    x, y = (b.input("x", TensorType(shape, dtype)) for shape in ((64, depth), (depth, 64)))
    (kernel,) = kernels(graph(b("matmul", x, y)))
    return kernel_seconds(kernel, rates) - rates.launch


@pytest.mark.parametrize(("dtype", "depth", "faster"), [
    ("bf16", 64, 100), ("f16", 64, 100), ("f32", 64, 1), ("bf16", 16, 100), ("bf16", 15, 1),
])  # fmt: skip
def test_products_of_halves_are_priced_by_the_rate_of_matrix_units(dtype: str, depth: int, faster: int) -> None:
    """Where there are such units, and the product is as deep as their instruction; bytes cost nothing here."""
    plain = evolve(RATES, bytes=1e30, threads=1, fork=0.0)
    units = evolve(plain, halves=100 * plain.flops)
    assert product_seconds(dtype, depth, plain) == pytest.approx(faster * product_seconds(dtype, depth, units))


def test_attentions_products_of_halves_are_on_matrix_units_and_its_softmax_is_not() -> None:
    plain = evolve(RATES, bytes=1e30, threads=1, fork=0.0, launch=0.0)
    seconds = {}
    for dtype in ("bf16", "f32"):
        q, k, v = (b.input(n, TensorType((2, 64, 32), dtype)) for n in "qkv")
        (kernel,) = kernels(graph(b("attend", q, k, v, causal=False)))
        seconds[dtype] = [kernel_seconds(kernel, evolve(plain, halves=h)) for h in (0.0, 1e30)]
    assert seconds["f32"][0] == seconds["f32"][1]
    assert 0 < seconds["bf16"][1] < seconds["bf16"][0]
