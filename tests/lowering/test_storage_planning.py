"""Intermediates share memory only where no two are alive at once, in few objects; functions trust their callers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering_runs import T, compiled, graph, inputs, reference, run_functions, samples, tvm

from sexpgpu.graph.core import Builder, Graph

pytestmark = pytest.mark.build


def lowered(g: Graph) -> str:
    """The function as the virtual machine gets it."""
    from lowering import emit, pipeline

    return pipeline.lower(emit.emit([g])).module[g.name].script()


def chain(depth: int) -> Graph:
    """A product after another, each of the result before and of the input: two tensors live at a time, of one type."""
    b = Builder()
    (x,) = inputs(b, x=T("f32", 16, 16))
    y = x
    for _ in range(depth):
        y = b("matmul", y, x, ta=False, tb=False)
    return graph("f", [x], y=y)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 30), st.integers(0, 9)), max_size=25))
def test_no_two_that_live_at_once_share_a_block(spans: list[tuple[int, int, int]]) -> None:
    from lowering.passes.storage_planning import Lifetime, share_blocks

    lives = [Lifetime(None, 4 * size, first, first + n) for size, first, n in spans]
    blocks = share_blocks(lives)
    assert sorted(map(id, (life for block in blocks for life in block.lifetimes))) == sorted(map(id, lives))
    for block in blocks:
        assert block.size == max(life.size for life in block.lifetimes)
        in_order = sorted(block.lifetimes, key=lambda life: life.first)
        assert all(a.last < b.first for a, b in zip(in_order, in_order[1:], strict=False))
    alive = max((sum(a.first <= at <= a.last for a in lives) for at in range(40)), default=0)
    assert len(blocks) >= alive


@pytest.mark.parametrize("depth", [3, 12])
def test_a_long_chain_takes_no_more_memory_and_no_more_objects_than_a_short_one(depth: int) -> None:
    g = chain(depth)
    text = lowered(g)
    # two intermediates in turn; and the result, which has a storage of its own
    assert text.count("R.vm.alloc_storage") == 3 and text.count("R.vm.alloc_tensor") == 3
    assert compiled(g).memory == {"f": 3 * 4 * 16 * 16}
    turned = np.roll(np.eye(16, dtype="float32"), 1, axis=0)  # products of which are exact
    (found,) = run_functions(compiled(g), {"f": [turned]})["f"]
    np.testing.assert_array_equal(found, np.roll(turned, depth, axis=0))


def test_a_view_is_the_tensor_of_its_block() -> None:
    """Whatever its shape: a block is one object."""
    b = Builder()
    (x,) = inputs(b, x=T("f32", 4, 6))
    y = b("softmax", x, axis=-1)
    z = b("softmax", b("reshape", y, shape=(6, 4)), axis=-1)
    g = graph("f", [x], z=b("softmax", b("reshape", z, shape=(4, 6)), axis=-1))
    text = lowered(g)
    assert "vm.builtin.reshape" not in text and "vm.builtin.copy" not in text
    assert text.count("R.vm.alloc_tensor") == text.count("R.vm.alloc_storage") == 3
    arrays = samples(g)
    (found,) = run_functions(compiled(g), {"f": arrays})["f"]
    np.testing.assert_allclose(found, reference(g, arrays)[0], rtol=1e-5)  # three times exp, each of some 2^-23


def test_a_function_trusts_its_caller_and_releases_all_at_once() -> None:
    text = lowered(chain(3))
    assert not any(word in text for word in ("check_tensor_info", "match_shape", "kill_object"))


def test_the_plan_needs_no_more_than_that_of_tvm() -> None:
    """TVM's own plan of the same function, in bytes."""
    from lowering import emit, pipeline
    from lowering.passes.memory_usage import call_memory

    g, module = chain(7), None
    state = pipeline._State({})
    module = emit.emit([g])
    for name, run in pipeline.PASSES:
        module = tvm.relax.transform.StaticPlanBlockMemory()(module) if name == "PlanStorage" else run(module, state)
        if name == "PlanStorage":
            break
    assert pipeline.lower(emit.emit([g])).planned["f"].bytes <= call_memory(module)["f"].bytes
