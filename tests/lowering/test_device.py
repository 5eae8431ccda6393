"""Kernels for a GPU, as text: what the library holds in their place, and what is refused."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lowering_runs import T, graph, inputs

from sexpgpu.graph.core import Builder, Graph

tvm = pytest.importorskip("tvm", reason="needs the extra `build`")
pytest.importorskip("ziglang", reason="needs the extra `build`")

from tvm import tirx  # noqa: E402
from tvm.script import tirx as TS  # noqa: E402

import schedules  # noqa: E402
from lowering import emit, pipeline  # noqa: E402
from lowering.codegen import cuda_source, module_blob, objects  # noqa: E402
from lowering.link import shared_library  # noqa: E402

pytestmark = pytest.mark.build
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GPU = schedules.TARGETS["nvidia-h100"].tvm


def plain(func: Any, _: Any) -> Any:
    """A scheduler for elementwise programs: one thread an element."""
    schedule = tvm.s_tir.Schedule(func)
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        outer, inner = schedule.split(schedule.fuse(*schedule.get_loops(block)), [None, 64])
        schedule.bind(outer, "blockIdx.x")
        schedule.bind(inner, "threadIdx.x")
    return SimpleNamespace(func=schedule.mod["main"], rule="plain", failures=())


def many(count: int = objects.KERNELS_PER_OBJECT + 2) -> Graph:
    """A function of ``count`` kernels, more than one part has."""
    b = Builder()
    xs = inputs(b, **{f"x{n}": T("f32", 100 + n) for n in range(count)})
    return graph("f", xs, **{f"y{n}": b("*", b("+", x, x), x) for n, x in enumerate(xs)})


def cuda_objects() -> Any:
    return objects.compile(emit.emit([many()]), GPU, plain)


def test_the_library_holds_a_key_for_each_part_and_no_text() -> None:
    compiled = cuda_objects()
    library = shared_library.library(compiled, "x86_64")
    assert len(compiled.devices) > 1
    held = sorted(re.findall(rb"sexpgpu-kernels:[0-9a-f]{64}", library))
    assert held == sorted(b"sexpgpu-kernels:" + d.key.encode() for d in compiled.devices)
    assert library.count(b"sexpgpu-kernels:") == len(held)
    for word in (b"__global__", b"float", b"threadIdx.x)", b"/tmp", b"/home", sys.prefix.encode()):
        assert word not in library
    assert all(d.key == hashlib.sha256(d.source.encode()).hexdigest() for d in compiled.devices)
    kernels = [re.sub(r"_kernel(_\d+)?$", "", name) for d in compiled.devices for name in d.kernels]
    assert set(kernels) == {k.kernel for k in compiled.kernels}


PRINT_DIGEST = """
import hashlib, test_device as t
if "backwards" in t.sys.argv:
    lowered = t.pipeline.lower(t.emit.emit([t.many()]))
    parts = t.objects.parts(lowered)
    done = [t.objects.compile_part(part, t.GPU, t.plain) for part in reversed(parts)]
    compiled = t.objects.join(lowered, t.GPU, done[::-1])
else:
    compiled = t.cuda_objects()
print(hashlib.sha256(t.shared_library.library(compiled, "x86_64")).hexdigest(), [d.key for d in compiled.devices])
"""


def test_bytes_depend_neither_on_the_order_of_parts_nor_on_the_process(tmp_path: Path) -> None:
    said = set()
    for n, (seed, order) in enumerate((("1", "forwards"), ("99", "backwards"))):
        folder = tmp_path / ("a folder with a longer name" * n or "a")
        folder.mkdir()
        path = os.pathsep.join((str(ROOT), str(HERE)))
        env = {"HOME": str(folder), "TMPDIR": str(folder), "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        command = [sys.executable, "-c", PRINT_DIGEST, order]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said.add(done.stdout.strip())
    assert len(said) == 1


# A driver that can do nothing: enough for TVM's runtime to be loaded, and to load a library.
SYMBOLS = """
cuDeviceGetName cuFuncSetAttribute cuGetErrorName cuGetErrorString cuLaunchKernelEx cuModuleGetFunction
cuModuleLoadData cuModuleUnload cuTensorMapEncodeTiled
"""
LOAD = """
import ctypes, sys, tvm_ffi
*libraries, phases = sys.argv[1:]
for path in libraries:
    ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
asked = []
tvm_ffi.register_global_func("tvm_callback_cuda_compile", lambda text: asked.append(text) or b"\\x7fELF")
module = tvm_ffi.load_module(phases)
assert module.kind == "relax.VMExecutable" and module["vm_load_executable"]()
kinds = [m.kind for m in module.imports[0].imports]
assert kinds == ["cuda"] * len(asked), kinds
print(*asked)
"""


def test_a_runtime_that_loads_the_library_asks_for_each_key(tmp_path: Path) -> None:
    runtime = pytest.importorskip("nvidia.cu13", reason="needs the extra `cuda`")
    stubs, driver = tmp_path / "driver.c", tmp_path / "libcuda.so.1"
    stubs.write_text("".join(f"int {name}(void) {{ return 999; }}\n" for name in SYMBOLS.split()))
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux", "-nostdlib", "-shared", "-fPIC"]
    caches = {f"ZIG_{which}_CACHE_DIR": str(tmp_path / "zig") for which in ("LOCAL", "GLOBAL")}
    command = [*zig, f"-Wl,-soname,{driver.name}", "-o", str(driver), str(stubs)]
    subprocess.run(command, check=True, env={**os.environ, **caches})
    phases = tmp_path / "phases.so"
    compiled = cuda_objects()
    phases.write_bytes(shared_library.library(compiled, "x86_64"))
    folder = Path(tvm.__file__).parent / "lib"
    ours = [str(folder / f"libtvm_runtime{which}.so") for which in ("", "_cuda")]
    cudart = str(Path(list(runtime.__path__)[0]) / "lib" / "libcudart.so.13")
    command = [sys.executable, "-c", LOAD, cudart, str(driver), *ours, str(phases)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [cuda_source.PREFIX + d.key for d in compiled.devices]


def scheduled(body: Any) -> Any:
    """A scheduler that answers with ``body``, whatever the program is."""
    return lambda func, _: SimpleNamespace(func=body, rule="made", failures=())


def fault(scheduler: Any) -> objects.KernelFault:
    with pytest.raises(objects.KernelFault) as caught:
        objects.compile(emit.emit([twice()]), GPU, scheduler)
    return caught.value


def twice() -> Graph:
    b = Builder()
    (x,) = inputs(b, x=T("f32", 128))
    return graph("f", [x], y=b("+", x, x))


@TS.prim_func(s_tir=True)
def half_bound(x: TS.Buffer((128,), "float32"), y: TS.Buffer((128,), "float32")):
    for t in TS.thread_binding(128, thread="threadIdx.x"):
        with TS.sblock("first"):
            i = TS.axis.spatial(128, t)
            y[i] = x[i]
    for t in range(128):
        with TS.sblock("second"):
            i = TS.axis.spatial(128, t)
            y[i] = y[i] + x[i]


def test_the_text_can_be_looked_at(tmp_path: Path) -> None:
    (part,) = objects.parts(pipeline.lower(emit.emit([twice()])))
    made = objects.compile_part(part, GPU, plain, str(tmp_path))
    assert made.device is not None and (tmp_path / f"{made.device.key}.cu").read_text() == made.device.source


def test_what_each_launch_is_is_kept_and_an_audit_that_fails_is_told() -> None:
    lowered = pipeline.lower(emit.emit([twice()]))
    (part,) = objects.parts(lowered)
    made = objects.compile_part(part, GPU, plain, audit=lambda func: [{"blocks": 2}])
    (kernel,) = objects.join(lowered, GPU, [made]).kernels
    assert (kernel.launches, kernel.failures) == (({"blocks": 2},), ())
    made = objects.compile_part(part, GPU, plain, audit=lambda func: [][0])
    (kernel,) = objects.join(lowered, GPU, [made]).kernels
    assert (kernel.launches, kernel.failures) == ((), ("audit: IndexError: list index out of range",))


def test_programs_that_no_rule_took_are_named() -> None:
    caught = fault(lambda func, _: SimpleNamespace(func=None, rule="", failures=("rule: Error: why",)))
    assert (caught.unbound, caught.bool_vectors) == ({"add": ("rule: Error: why",)}, ())


def test_so_is_one_of_which_a_part_is_not_bound() -> None:
    assert fault(scheduled(half_bound)).unbound == {"add": ()}


@TS.prim_func(s_tir=True)
def read_by_the_host(x: TS.Buffer((128,), "float32"), y: TS.Buffer((128,), "float32")):
    first = x[0]
    for t in TS.thread_binding(128, thread="threadIdx.x"):
        with TS.sblock("all"):
            i = TS.axis.spatial(128, t)
            y[i] = x[i] + first


def test_and_one_that_the_host_reads_for() -> None:
    assert fault(scheduled(read_by_the_host)).unbound == {"add": ()}


def test_a_name_for_a_load_counts_as_one() -> None:
    name, load = tirx.Var("first", "float32"), tirx.BufferLoad(tirx.decl_buffer((4,), "float32"), [0])
    assert not cuda_source._is_bound(tirx.Bind(name, load + load))
    assert cuda_source._is_bound(tirx.Bind(name, tirx.const(1.0, "float32")))


def test_a_kernel_that_is_bound_is_not() -> None:
    objects.compile(emit.emit([twice()]), GPU, plain)


def bool_by(lanes: int, scope: str) -> Any:
    @TS.prim_func(s_tir=True)
    def program(x: TS.Buffer((128,), "float32"), y: TS.Buffer((128,), "float32")):
        for _ in TS.thread_binding(1, thread="blockIdx.x"):
            with TS.sblock("whole"):
                held = TS.sblock_alloc_buffer((128,), "bool", scope=scope)
                for t in TS.thread_binding(128 // lanes, thread="threadIdx.x"):
                    for v in TS.vectorized(lanes):
                        with TS.sblock("first"):
                            i = TS.axis.spatial(128, t * lanes + v)
                            held[i] = x[i] > TS.float32(0)
                for t in TS.thread_binding(128 // lanes, thread="threadIdx.x"):
                    for v in range(lanes):
                        with TS.sblock("second"):
                            i = TS.axis.spatial(128, t * lanes + v)
                            y[i] = TS.Select(held[i], x[i], x[i] + x[i])

    return program


@pytest.mark.parametrize("scope", ["shared", "shared.dyn", "local"])
def test_bool_by_vectors_is_refused(scope: str) -> None:
    assert fault(scheduled(bool_by(4, scope))).bool_vectors == ("add_kernel",)
    objects.compile(emit.emit([twice()]), GPU, scheduled(bool_by(1, scope)))


@pytest.mark.parametrize(
    ("parameters", "body", "wrong"),
    [
        ("bool* __restrict__ a_ptr, float* __restrict__ b_ptr", "*(ushort2*)(a_ptr + 2)", True),
        ("float* __restrict__ b_ptr, bool* a_ptr", "ushort4 x = *(ushort4*)(a_ptr + (((int)threadIdx.x) * 4));", True),
        ("float* b_ptr", "*(ushort4*)(((bool*)buf_dyn_shmem) + 16) = x;", True),
        (
            "bool* a_ptr, ushort* b_ptr, float* c_ptr",
            "*(ushort2*)(b_ptr + 2) = *(float2*)(c_ptr + 2); a_ptr[0];",
            False,
        ),
        ("bool* a_ptr, ushort* a_ptr_1", "*(ushort2*)(a_ptr_1 + 2)", False),
    ],
)
def test_what_counts_as_bool_by_vectors(parameters: str, body: str, wrong: bool) -> None:
    head = f'extern "C" __global__ void __launch_bounds__(4) k({parameters})'
    other = 'extern "C" __global__ void other(bool* q_ptr) {\n  q_ptr[0];\n}\n'
    text = f"{head};\n{other}{head} {{\n  {body}\n}}\n{other}"
    assert cuda_source.bool_vectors(text) == (("k",) if wrong else ())


def test_a_list_of_modules_is_read_as_it_was_written() -> None:
    code, root = module_blob.Entry(module_blob.CODE, None, ()), module_blob.Entry("root", b"abc", (1,))
    data = module_blob.write([root, code])
    assert module_blob.read(data) == [root, code]
    more = module_blob.read(module_blob.with_modules(data, "cuda", [b"x", b""]))
    assert more[1].children == (2, 3) and more[2:] == [
        module_blob.Entry("cuda", b"x", ()),
        module_blob.Entry("cuda", b"", ()),
    ]


def test_cuda_stays_text_on_a_machine_that_has_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cuda_source.FORCE_FALLBACK, "0")
    with cuda_source.as_text():
        assert os.environ[cuda_source.FORCE_FALLBACK] == "1"
    assert os.environ[cuda_source.FORCE_FALLBACK] == "0"
