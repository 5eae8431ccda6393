"""Kernels do not grow with the layers of a model: equal layers are calls of equal programs, of the same bits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering_runs import compiled
from test_horizontal_fusion import adam, agree, by_rule, calls, own_norm, run, update

from lowering.passes import layer_grouping
from tests.support import plan_text

pytestmark = pytest.mark.build

WRITER = Path(__file__).resolve().parents[2] / "scripts" / "bench" / "writer" / "run.sx"
LAYER = ((70, 30), (30,), (5, 7))
ENDS = ((9, 4), (30,), (11,))


def kernels(depth: int) -> set[str]:
    """The programs of the benchmarks' writer, narrow, of ``depth`` layers."""
    from lowering import emit, pipeline

    text = WRITER.read_text(encoding="utf-8")
    for old, new in (("(def layers 4)", f"(def layers {depth})"), ("(def width 128)", "(def width 16)")):
        assert text.count(old) == 1
        text = text.replace(old, new)
    plan, report = plan_text(text)
    assert plan, report.errors
    pairs = {p.function: p.in_place for p in plan.phases}
    return set(pipeline.lower(emit.emit([p.graph for p in plan.phases]), pairs).programs)


def test_a_deep_model_has_the_kernels_of_a_shallow_one():
    """13 layers: a prime number, and more tensors than one program may have."""
    shallow, deep = kernels(2), kernels(13)
    assert deep == shallow
    assert {k for k in deep if "update" in k} == {f"update_{k}" for k in ("totals", "totals1", "elements", "elements1")}


@pytest.mark.parametrize("step", [adam, own_norm], ids=["adam", "a scalar for each parameter"])
def test_calls_of_equal_programs_make_the_bits_of_one_program(monkeypatch, step):
    g, pairs = update(step, LAYER * 4 + ENDS)
    dealt = compiled(g, scheduler=by_rule, in_place={"update": pairs})
    monkeypatch.setattr(layer_grouping, "CALL_COST", 10**6)
    whole = compiled(g, scheduler=by_rule, in_place={"update": pairs})
    assert calls(whole)["update_elements"] == 1
    assert sorted(n for k, n in calls(dealt).items() if "elements" in k) == [1, 2]
    agree(dealt, g, pairs)
    assert [x.tobytes() for x in run(dealt, g)] == [x.tobytes() for x in run(whole, g)]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 40), max_size=6))
def test_every_member_is_dealt_once_and_calls_are_alike(sizes: list[int]) -> None:
    members = [(group, (group, n)) for group, size in enumerate(sizes) for n in range(size)]
    taken, rest = layer_grouping.split_into_calls(members)
    assert sorted([m for call in taken for m in call] + rest) == sorted(m for _, m in members)
    assert len({tuple(group for group, _ in call) for call in taken}) <= 1
    assert all(n < max(1, len(taken)) for n in Counter(group for group, _ in rest).values()) or not taken


def test_few_members_are_one_call_and_many_are_some_root_of_them():
    assert layer_grouping.split_into_calls([(0, 1), (0, 2), (1, 3)]) == ([], [1, 2, 3])
    assert [layer_grouping.best_call_count({"w": 4 * n, "b": 2 * n, "e": 1}) for n in (1, 8, 32, 128)] == [1, 4, 8, 16]
