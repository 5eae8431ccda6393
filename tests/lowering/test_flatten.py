"""Accesses are flattened in programs with few variables of loops, and come out as TVM's own pass makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("tvm")

import tvm
from tvm import tirx

from lowering.passes import flatten_buffer
from schedules.tir.builder import i64, loop, store
from tests.cuda_on_cpu import emulator
from tests.schedules.cpu import test_attention_cpu
from tests.schedules.gpu.cpu_and_cuda import scheduled
from tests.schedules.tensor_programs import V3, build, product, runs_here

pytestmark = pytest.mark.skipif(not runs_here(V3), reason="this CPU has no AVX2")


def variables(body: Any) -> tuple[int, int]:
    """Loops, and variables of loops."""
    loops = flatten_buffer._loops(body)
    return len(loops), len({loop.loop_var for loop in loops})


def compared(found: list[tuple[int, int, bool]]) -> Callable[[], Any]:
    """Stands for ``flatten``; keeps (loops, variables of loops, whether both passes make the same) of each program."""
    original = flatten_buffer.flatten

    @tvm.transform.module_pass(opt_level=0)
    def run(module: Any, _: Any) -> Any:
        want, got = flatten_buffer.ORIGINAL()(module), original()(module)
        for gv, func in module.functions_items():
            same = tvm.ir.save_json(want[gv.name_hint]) == tvm.ir.save_json(got[gv.name_hint])
            found.append((*variables(flatten_buffer.share_loop_vars(func.body)), same))
        return got

    return lambda: run


MADE = {
    "gradients": lambda: test_attention_cpu.attend_grad((2,), 9, 40, 16, 8, causal=False),
    "causal": lambda: test_attention_cpu.attend((1, 2), 35, 35, 8, 9, causal=True),
    "product": lambda: product("nt", 33, 70, 20),
}


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("compile", [build, lambda func: emulator.compile(scheduled(func))], ids=["cpu", "gpu"])
def test_the_programs_are_those_of_tvms_pass(
    kind: str, compile: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[int, int, bool]] = []
    monkeypatch.setattr(flatten_buffer, "flatten", compared(found))
    compile(MADE[kind]())
    assert found and all(same for *_, same in found)
    if kind != "product":  # a tenth of the loops of a large kernel
        loops, variables, _ = max(found)
        assert variables <= loops / 2


def test_loops_in_one_another_keep_variables_of_their_own() -> None:
    """Of one name and range, twice beside each other."""
    rows = tirx.decl_buffer([i64(4), i64(4)], "float32", "rows")

    def nest(value: float) -> Any:
        return loop(4, lambda i: loop(4, lambda j: store(rows, tirx.const(value, "float32"), i, j)))

    body = tirx.SeqStmt([nest(1.0), nest(2.0)])
    assert variables(body) == (4, 4) and variables(flatten_buffer.share_loop_vars(body)) == (4, 2)
    module = tvm.IRModule({"main": tirx.PrimFunc([rows], body).with_attr("global_symbol", "main")})
    want, got = flatten_buffer.ORIGINAL()(module)["main"], flatten_buffer.flatten()(module)["main"]
    assert tvm.ir.save_json(want) == tvm.ir.save_json(got) and variables(got.body) == (4, 4)
