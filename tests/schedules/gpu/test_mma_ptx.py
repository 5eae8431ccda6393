"""What NVIDIA's compiler makes of products of halves: the instructions, for every architecture, without spills."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import pytest

pytest.importorskip("tvm", reason="needs the extra `build`")

from schedules.cuda import cubin, nvrtc
from schedules.gpu.matmul import tensor_core
from schedules.gpu.threads import mma_tiling
from schedules.gpu.threads.mma_tiling import MmaTiling
from tests.cuda_on_cpu import emulator

from .cpu_and_cuda import GPU, scheduled
from .half_precision import product
from .test_attention_tensor_core import attend

pytestmark = [
    pytest.mark.build,
    pytest.mark.skipif(nvrtc.missing_package() is not None, reason="needs the extra `cuda`"),
]
PRODUCT = "mma.sync.aligned.m16n8k16.row.col.f32.{0}.{0}.f32"
MATRICES = "ldmatrix.sync.aligned.m8n8.x4{}.shared.b16"
INSTRUCTION = re.compile(r"^\s*((?:mma|ldmatrix|cp\.async|wgmma|wmma)[\w.:]*)", re.MULTILINE)


def text(func: Any) -> str:
    return emulator.compile(scheduled(func), GPU).text


def instructions(func: Any) -> set[str]:
    """Of matrix units and asynchronous copies, in the PTX that is the least that any GPU of the level gets."""
    return set(INSTRUCTION.findall(cubin.kernels(text(func), "compute_80", ()).decode()))


@pytest.mark.parametrize(
    ("kind", "loads"), [("NN", ("", ".trans")), ("NT", ("",)), ("TN", (".trans",)), ("TT", ("", ".trans"))]
)
def test_every_layout_is_multiplied_in_place(kind: str, loads: tuple[str, ...]) -> None:
    """One kernel: matrices are turned as they are loaded. Eight bytes can be copied where a row is of 20."""
    found = instructions(product(kind, 40, 80, 20))
    assert {name for name in found if name.startswith(("mma", "wmma"))} == {PRODUCT.format("bf16")}
    assert {name for name in found if name.startswith("ldmatrix")} == {MATRICES.format(load) for load in loads}
    assert {"cp.async.commit_group", "cp.async.wait_group", "cp.async.cg.shared.global"} <= found


def test_float16() -> None:
    assert PRODUCT.format("f16") in instructions(product("NN", 40, 80, 24, dtype="float16"))


@pytest.mark.parametrize("gradient", [False, True])
def test_attention(gradient: bool) -> None:
    """Both kinds of products of the forward pass, all five of the gradients'."""
    func = attend(((4,), 64, 64, 64, 64), True, gradient=gradient)
    ptx = cubin.kernels(text(func), "compute_80", ()).decode()
    assert {name for name in INSTRUCTION.findall(ptx) if name.startswith(("mma", "wmma"))} == {PRODUCT.format("bf16")}
    made = ptx.count(".visible .entry")
    assert made == (2 if gradient else 1) and ptx.count(MATRICES.format(".trans")) >= made
    assert {"cp.async.commit_group", "cp.async.wait_group", "cp.async.cg.shared.global"} <= {*INSTRUCTION.findall(ptx)}


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("gradient", [False, True])
def test_attention_does_not_spill(width: int, gradient: bool) -> None:
    log = assembler_log(text(attend(((8, 12), 1024, 1024, width, width), True, gradient=gradient)), "sm_90")
    found = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert found == [("0", "0", "0")] * (2 if gradient else 1)


def test_float32_is_multiplied_as_float32() -> None:
    """No matrix unit, whose factors would be of 19 bits."""
    func = product("NN", 64, 64, 64, dtype="float32")
    assert not {name for name in instructions(func) if "mma" in name}
    assert "tf32" not in cubin.kernels(text(func), "compute_80", ()).decode()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_cubins(arch: str) -> None:
    made = cubin.kernels(text(product("NT", 40, 80, 24)), arch, ())
    assert made.startswith(b"\x7fELF")


def assembler_log(source: str, arch: str) -> str:
    """What the assembler says of the kernels of ``source``."""
    library, program = nvrtc._nvrtc(), ctypes.c_void_p()
    options = (*cubin.OPTIONS, f"--gpu-architecture={arch}", "--ptxas-options=-v")
    given = [*options, *(f"-I{nvrtc._path_in_wheel(*include)}" for include in nvrtc.INCLUDES)]
    words = (ctypes.c_char_p * len(given))(*(option.encode() for option in given))
    made = library.nvrtcCreateProgram(ctypes.byref(program), cubin._text(source).encode(), b"k.cu", 0, None, None)
    assert not made and not library.nvrtcCompileProgram(program, len(given), words)
    return nvrtc._output(program, "ProgramLog").decode()


@pytest.mark.parametrize("tile", mma_tiling.TILES, ids=lambda t: f"{t.rows}x{t.columns}")
def test_no_tile_spills(monkeypatch: pytest.MonkeyPatch, tile: mma_tiling.MmaTile) -> None:
    """Every register that a kernel names is one, with the sums of several pieces; shared memory fits the level."""
    monkeypatch.setattr(tensor_core, "choose_tiling", lambda m, n, k, count: MmaTiling(m, n, k, count, tile, False))
    log = assembler_log(text(product("TN", 1000, 2048, 1000, out="bfloat16")), "sm_90")
    assert re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log) == [
        ("0", "0", "0")
    ]
    (registers,), (shared,) = re.findall(r"Used (\d+) registers", log), re.findall(r"(\d+) bytes smem", log)
    assert int(registers) * tile.threads <= 65536 and int(shared) == 2 * tile.stage_halves * tile.stages <= 48 * 1024
