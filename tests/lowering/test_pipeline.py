"""What a build is told: the kernels and their rules, the memory of a call, the module between passes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from lowering_runs import T, compiled, graph, inputs, no_rule, reference, run_functions, samples, target, tvm
from tvm import relax

from lowering.passes.memory_usage import constants
from sexpgpu.graph.core import Builder, Graph

pytestmark = pytest.mark.build


def two_kernels() -> Graph:
    b = Builder()
    (x,) = inputs(b, x=T("f32", 64, 32))
    y = b("softmax", x, axis=-1)
    return graph("f", [x], y=b("sum", b("matmul", y, y, ta=True, tb=False), axes=(0,)))


def test_a_scheduler_that_raises_is_recorded_and_the_build_goes_on():
    def broken(func, target):
        raise ZeroDivisionError("no tile\nfits")

    g = two_kernels()
    made = compiled(g, scheduler=broken)
    assert {k.rule for k in made.kernels} == {""}
    assert {k.failures for k in made.kernels} == {("ZeroDivisionError: no tile fits",)}
    arrays = samples(g)
    assert run_functions(made, {"f": arrays})["f"][0].shape == reference(g, arrays)[0].shape


def test_the_scheduler_is_asked_once_a_kernel_and_its_answer_is_used():
    asked = []

    def rule(func, target):
        asked.append(target.attrs["mcpu"])
        body = func.with_attr("seen", True)
        return SimpleNamespace(func=body.with_attr("global_symbol", "main"), rule="mine", failures=("first: no",))

    made = compiled(two_kernels(), scheduler=rule)
    assert asked == ["x86-64-v3"] * len(made.kernels)
    assert {(k.rule, k.failures) for k in made.kernels} == {("mine", ("first: no",))}


@pytest.mark.parametrize("claims", [False, True])
def test_a_schedule_keeps_the_word_on_aliases_of_the_program_it_was_given(claims):
    from tvm import te

    from lowering.passes.apply_schedules import schedule

    x = te.placeholder((4,), "float32", "x")
    func = te.create_prim_func([x, te.compute((4,), lambda i: x[i] + 1.0)])
    both = {True: func.with_attr("tirx.noalias", True), False: without(func)}
    given, other = both[claims], both[not claims]
    answer = SimpleNamespace(func=other, rule="r", failures=())
    module, _ = schedule(tvm.IRModule({"k": given}), target(), lambda func, target: answer)
    assert ("tirx.noalias" in module["k"].attrs) is claims


def without(func):
    return func.without_attr("tirx.noalias") if "tirx.noalias" in func.attrs else func


def test_the_memory_of_a_call():
    made = compiled(two_kernels())
    by_name = {k.kernel: k for k in made.kernels}
    softmax = next(k for n, k in by_name.items() if "softmax" in n)
    # softmax of 64 rows of 32 keeps its exponentials; the largest and the sum of each row are on the stack
    assert softmax.workspace == 4 * 64 * 32
    # planned: softmax's result and the product; returned: 32 sums; and the workspace of the hungriest kernel
    assert made.memory == {"f": 4 * (64 * 32 + 32 * 32) + 4 * 32 + softmax.workspace}


def test_a_part_has_the_bytes_of_its_programs_alone_wherever_they_are_compiled():
    from lowering.codegen import objects

    made = compiled(two_kernels())
    (part,) = objects.parts(made.lowered)
    assert objects.compile_part(part, target(), no_rule).object == made.objects[0]


def test_parts_share_out_the_programs_and_each_is_compiled_once():
    from lowering import emit, pipeline
    from lowering.codegen import objects

    b = Builder()
    xs = inputs(b, **{f"x{n}": T("f32", n + 2, 3) for n in range(2 * objects.KERNELS_PER_OBJECT + 1)})
    lowered = pipeline.lower(emit.emit([graph("f", xs, **{f"y{n}": b("exp", x) for n, x in enumerate(xs)})]))
    parts = objects.parts(lowered)
    names = [gv.name_hint for part in parts for gv, _ in tvm.ir.load_json(part).functions_items()]
    assert (
        len(parts) == 3 and sorted(names) == list(lowered.programs) and len(names) == 2 * objects.KERNELS_PER_OBJECT + 1
    )


def test_an_output_in_place_takes_no_memory():
    b = Builder()
    p, g = inputs(b, p=T("f32", 100), g=T("f32", 100))
    up = graph("update", [p, g], p=b("-", p, g))
    assert (compiled(up).memory, compiled(up, in_place={"update": [(0, 0)]}).memory) == ({"update": 400}, {"update": 0})


def test_dumps_show_the_module_after_each_pass_and_the_kernels_as_scheduled(tmp_path):
    from lowering.codegen import objects
    from lowering.pipeline import PASSES

    made = compiled(two_kernels(), scheduler=no_rule, dump=tmp_path / "dump")
    (part,) = objects.parts(made.lowered)
    objects.compile_part(part, target(), no_rule, str(tmp_path / "kernels"))
    assert {p.stem for p in (tmp_path / "kernels").iterdir()} == {k.kernel for k in made.kernels}
    names = sorted(p.name for p in (tmp_path / "dump").iterdir())
    assert names == [f"{n:02}-{name}.py" for n, (name, _) in enumerate(PASSES)]
    assert "R.call_tir" in (tmp_path / "dump" / names[0]).read_text(encoding="utf-8")


def test_constants_are_counted_once_each():
    """A library has equal ones once, whichever of its functions have them."""
    made = relax.BlockBuilder()
    for name, value in (("f", 1.0), ("g", 1.0), ("h", 2.0)):
        x = relax.Var("x", relax.TensorType([relax.prim_value(4)], "float32"))
        with made.function(name, [x]):
            made.emit_func_output(relax.op.add(x, relax.const(np.full(4, value, np.float32))))
    assert constants(made.get()) == (16, 16)
