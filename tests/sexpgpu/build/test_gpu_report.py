"""What a report says of kernels for GPUs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sexpgpu.build.gpu_report import data, kernel_fault, kernel_member, lines, short
from sexpgpu.build.report import lowering_data
from sexpgpu.language.codes import TARGET_BOOL, TARGET_UNBOUND
from tests.sexpgpu.reports.test_cost_report import RATES, TWO, WRITES, lowered, taken
from tests.support import plan_of

PLAN = plan_of(run=TWO, **WRITES)


def launch(moved: int, stride: int | None, *faults: str) -> dict[str, Any]:
    operands = {"x": [moved, stride], "y": [1, 1]}
    rest = {"shared": 512, "serial": 7, "flops": 3_000_000, "faults": list(faults), "operands": operands}
    return {"blocks": 40, "threads": 256, "bytes": moved, **rest}


def made() -> Any:
    """``lowered`` with a library for GPUs: copy7 is one launch, the product two."""
    of = lowered(PLAN)
    product, copy = of.compiled["cpu-a"].kernels[::-1]
    both = (launch(2**21, 12, "x: neighbouring threads are 12 elements apart"), launch(2**20, None))
    kernels = (
        SimpleNamespace(**{**vars(copy), "launches": (launch(2**22, 1),)}),
        SimpleNamespace(**{**vars(product), "launches": both}),
    )
    devices = [SimpleNamespace(source="x" * n, kernels=names) for n, names in ((1000, ("a", "b")), (500, ("c",)))]
    of.compiled["cuda-sm_80"] = SimpleNamespace(kernels=kernels, devices=devices)
    sizes = {"k1.sm_90.cubin": 3, "k2.sm_90.cubin": 1, "k1.compute_80.ptx": 2}
    of.graphs = True
    of.kernels = {"cuda-sm_80": {f"kernels/{name}": bytes(size) for name, size in sizes.items()}}
    return of


def test_texts_and_what_they_were_compiled_to_are_added_up() -> None:
    assert data(PLAN, made())["cuda-sm_80"] == {
        "texts": 2,
        "kernels": 3,
        "source": 1500,
        "bytes": {"sm_90": 4, "compute_80": 2},
        "launches": 6 * 2 + 2 * (3 * 2 + 1),
        "calls": 2 * (1 + 3 + 1 + 1) + 1,  # two microbatches of three trips, and the update
        "graphs": True,
        "phases": {
            "generate.init": {"calls": 2, "launches": 0},
            "generate.step": {"calls": 6, "launches": 2},
            "generate.finish": {"calls": 2, "launches": 0},
            "train": {"calls": 2, "launches": 7},
            "update": {"calls": 1, "launches": 0},
        },
    }


def test_launches_are_told_with_what_moves_the_most_first_and_faults_last() -> None:
    text = lines(PLAN, made())
    assert text[1:9] == [
        "cuda-sm_80: 3 kernels of 2 CUDA texts (1,500 bytes), made ahead of time",
        "  sm_90 4 bytes, compute_80 2 bytes",
        "  26 launches a step in 13 calls, a CUDA graph each",
        "    generate.init        2 calls of 0 launches",
        "    generate.step        6 calls of 2 launches",
        "    generate.finish      2 calls of 0 launches",
        "    train                2 calls of 7 launches",
        "    update               1 call of 0 launches",
    ]
    assert [row.split() for row in text[10:13]] == [
        ["copy7", "40", "256", "512", "7", "1", "4.00", "3.00"],
        ["fused_matmul3_add1", "1/2", "40", "256", "512", "7", "12", "2.00", "3.00"],
        ["fused_matmul3_add1", "2/2", "40", "256", "512", "7", "?", "1.00", "3.00"],
    ]
    assert text[13:] == ["fused_matmul3_add1 1/2: x: neighbouring threads are 12 elements apart"]
    assert all(len(line) <= 100 for line in text)


def test_a_build_without_graphs_says_so() -> None:
    of = made()
    of.graphs = False
    assert lines(PLAN, of)[3] == "  26 launches a step in 13 calls, one by one: no CUDA graphs, by --graphs off"


def test_a_library_for_cpus_has_no_such_part() -> None:
    assert lines(PLAN, lowered(PLAN)) == [] and "gpu" not in lowering_data(PLAN, lowered(PLAN), RATES, taken(PLAN))


def test_the_data_have_each_launch() -> None:
    found = lowering_data(PLAN, made(), RATES, taken(PLAN))
    assert found["gpu"]["cuda-sm_80"]["launches"] == 26
    assert [len(k["launches"]["cuda-sm_80"]) for k in found["kernels"]] == [1, 2]


def test_kernels_that_a_gpu_cannot_run_are_named() -> None:
    unbound = SimpleNamespace(unbound={"a": ("maps: ValueError: odd",), "b": ()}, bool_vectors=("c_kernel",))
    fault = kernel_fault("cuda-sm_80", unbound)
    assert (fault.code, fault.code.exit) == (TARGET_UNBOUND, 1)
    assert fault.message == "no schedule rule of cuda-sm_80 bound to threads: a (maps: ValueError: odd), b"
    fault = kernel_fault("cuda-sm_80", SimpleNamespace(unbound={}, bool_vectors=("c_kernel",)))
    assert fault.code == TARGET_BOOL and fault.message == "c_kernel for cuda-sm_80: bool by vectors"


def test_a_member_is_named_after_its_text_and_what_it_is_for() -> None:
    assert kernel_member("ab", "sm_90") == "kernels/ab.sm_90.cubin"
    assert kernel_member("ab", "compute_80") == "kernels/ab.compute_80.ptx"


def test_a_long_name_is_cut_before_its_place() -> None:
    assert short("k" * 38, "") == "k" * 38 and short("k" * 39, "") == "k" * 35 + "..."
    assert short("k" * 38, " 1/2") == "k" * 31 + "... 1/2"
