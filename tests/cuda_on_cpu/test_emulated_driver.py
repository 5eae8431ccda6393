"""The fake driver: what a GPU's would refuse, do later, or do again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tvm")
pytest.importorskip("ziglang")

from . import artifact
from . import compile as cuda
from .test_harness import kernel

pytestmark = pytest.mark.build

ADD = kernel("a[threadIdx.x] += b * (float)(threadIdx.x < n);", "float* a", "float b", "int n", bounds=64)
PRELUDE = """
import ctypes, os, sys
from ctypes import byref, c_void_p, c_int, c_float, c_size_t, c_uint
cu = ctypes.CDLL("libcuda.so.1", ctypes.RTLD_GLOBAL)
rt = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
rt.cudaGetErrorName.restype = ctypes.c_char_p
def name(status): return rt.cudaGetErrorName(status).decode()
def ok(status): assert status == 0, name(status)
def made(function, *more):
    out = c_void_p()
    ok(function(byref(out), *more))
    return out
def memory(size): return made(rt.cudaMalloc, c_size_t(size))
def floats(*values): return (c_float * len(values))(*values)
def put(to, values, stream=None): return rt.cudaMemcpyAsync(to, values, c_size_t(ctypes.sizeof(values)), 1, stream)
def got(source, count, stream=None):
    out = (c_float * count)()
    ok(rt.cudaMemcpyAsync(out, source, c_size_t(4 * count), 2, stream)); ok(rt.cudaStreamSynchronize(stream))
    return list(out)
class Config(ctypes.Structure):
    _fields_ = [("blocks", c_uint * 3), ("threads", c_uint * 3), ("dynamic", c_uint), ("stream", c_void_p),
                ("attributes", c_void_p), ("count", c_uint)]
def module(): return made(cu.cuModuleLoadData, open(sys.argv[2], "rb").read())
def add(a, b, n, stream=None, threads=4, dynamic=0, of=None):
    function = made(cu.cuModuleGetFunction, of or module(), b"k")
    cells = [c_void_p(a.value if isinstance(a, c_void_p) else a), c_float(b), c_int(n)]
    places = (c_void_p * 3)(*map(ctypes.addressof, cells))
    config = Config((c_uint * 3)(1, 1, 1), (c_uint * 3)(threads, 1, 1), dynamic, stream)
    return cu.cuLaunchKernelEx(byref(config), function, places, None)
def stream(): return made(rt.cudaStreamCreateWithFlags, 1)
"""


def script(tmp_path: Path, code: str, head: str = "CUBIN sm_90\n", **fake: object) -> str:
    """What a process prints that uses the fake driver and a kernel ``k(a, b, n)``: a[t] += b for t < n."""
    image, file = tmp_path / "image", tmp_path / "script.py"
    image.write_bytes(head.encode() + cuda.library(ADD))
    file.write_text(PRELUDE + code)
    library = cuda.driver() / cuda.WHEEL / "libcudart.so.13"
    command = [sys.executable, str(file), str(library), str(image)]
    done = subprocess.run(command, capture_output=True, text=True, env=artifact.environment(**fake))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_kernel_runs_on_what_was_copied(tmp_path: Path) -> None:
    code = "a = memory(16); ok(put(a, floats(1, 2, 3, 4))); ok(add(a, 10, 3)); print(got(a, 4))"
    assert script(tmp_path, code) == "[11.0, 12.0, 13.0, 4.0]"


def test_work_is_done_when_somebody_waits_for_it(tmp_path: Path) -> None:
    code = """
s, a = stream(), memory(16)
host = made(rt.cudaMallocHost, c_size_t(16))
seen = (c_float * 4).from_address(host.value)
ok(put(a, floats(1, 2, 3, 4), s)); ok(add(a, 10, 4, s))
ok(rt.cudaMemcpyAsync(host, a, c_size_t(16), 2, s))
print(list(seen)); ok(rt.cudaStreamSynchronize(s)); print(list(seen))
"""
    later = "[nan, nan, nan, nan]\n[11.0, 12.0, 13.0, 14.0]"
    assert script(tmp_path, code) == later
    assert script(tmp_path, code, eager=1) == later.replace("[nan, nan, nan, nan]", "[11.0, 12.0, 13.0, 14.0]")


def test_a_copy_to_memory_that_is_not_page_locked_is_late_too(tmp_path: Path) -> None:
    """And what was there before is gone at once."""
    code = """
s, a, out = stream(), memory(16), floats(7, 7, 7, 7)
ok(put(a, floats(1, 2, 3, 4), s)); ok(rt.cudaMemcpyAsync(out, a, c_size_t(16), 2, s))
print(list(out)); e = made(rt.cudaEventCreateWithFlags, c_uint(3)); ok(rt.cudaEventRecord(e, s))
ok(rt.cudaEventSynchronize(e)); print(list(out))
"""
    assert script(tmp_path, code) == "[nan, nan, nan, nan]\n[1.0, 2.0, 3.0, 4.0]"


def test_a_copy_from_page_locked_memory_reads_what_is_there_when_it_runs(tmp_path: Path) -> None:
    code = """
s, a = stream(), memory(16); host = made(rt.cudaMallocHost, c_size_t(16))
seen = (c_float * 4).from_address(host.value); seen[:] = [1, 2, 3, 4]
ok(rt.cudaMemcpyAsync(a, host, c_size_t(16), 1, s)); seen[0] = 5; print(got(a, 4, s))
"""
    assert script(tmp_path, code) == "[5.0, 2.0, 3.0, 4.0]"


def test_an_event_without_timing_has_no_time(tmp_path: Path) -> None:
    code = """
s = stream(); a, b = (made(rt.cudaEventCreateWithFlags, c_uint(flags)) for flags in (0, 2))
for event in (a, b): ok(rt.cudaEventRecord(event, s))
print(name(rt.cudaEventElapsedTime(byref(c_float()), a, a)), name(rt.cudaEventElapsedTime(byref(c_float()), a, b)),
    name(rt.cudaEventCreateWithFlags(byref(c_void_p()), c_uint(8))))
"""
    assert script(tmp_path, code) == "cudaSuccess cudaErrorInvalidResourceHandle cudaErrorInvalidValue"


def test_streams_wait_for_each_other_by_events_alone(tmp_path: Path) -> None:
    code = """
s, t, a = stream(), stream(), memory(16)
ok(put(a, floats(1, 2, 3, 4), s))
print(got(a, 4, t))
e = made(rt.cudaEventCreate); ok(rt.cudaEventRecord(e, s)); ok(rt.cudaStreamWaitEvent(t, e, 0))
print(got(a, 4, t))
"""
    assert script(tmp_path, code) == "[nan, nan, nan, nan]\n[1.0, 2.0, 3.0, 4.0]"


def test_memory_is_not_the_hosts_begins_as_nan_and_ends_where_it_ends(tmp_path: Path) -> None:
    assert script(tmp_path, "print(got(memory(256), 2))") == "[nan, nan]"
    wrong = "a = memory(256); print(name(put(c_void_p(a.value + 8), floats(*range(63)))), name(put(c_void_p(64), a)))"
    assert script(tmp_path, wrong) == "cudaErrorInvalidValue cudaErrorInvalidValue"
    code = "a = memory(16)\nif os.fork() == 0: ctypes.string_at(a.value, 1)\nprint(os.wait()[1])"
    assert int(script(tmp_path, code).splitlines()[-1]) % 128 == 11  # SIGSEGV


@pytest.mark.parametrize(
    ("launch", "error", "why"),
    [
        ("add(c_void_p(a.value + 256), 1, 1)", "cudaErrorIllegalAddress", "parameter 0 is no address"),
        ("add(12345, 1, 1)", "cudaErrorIllegalAddress", "parameter 0 is no address"),
        ("add(a, 1, 1, threads=64)", "cudaErrorIllegalAddress", "a load or store outside of every tensor"),
        ("add(a, 1, 1) or rt.cudaFree(a) or add(a, 1, 1)", "cudaErrorIllegalAddress", "parameter 0 is no address"),
    ],
)  # fmt: skip
def test_a_wrong_address_ends_all_use_of_the_device(tmp_path: Path, launch: str, error: str, why: str) -> None:
    code = f"""
a = memory(4 * 8); os.dup2(1, 2)
ok({launch}); s = rt.cudaStreamSynchronize(None); print(name(s), name(rt.cudaStreamSynchronize(None)),
    name(rt.cudaMalloc(byref(c_void_p()), c_size_t(1))), name(rt.cudaGetLastError()))"""
    out = script(tmp_path, code)
    assert why in out and out.splitlines()[-1] == " ".join([error] * 4)


@pytest.mark.parametrize("launch", ["threads=65", "threads=0", "dynamic=49153"])
def test_a_launch_beyond_the_limits_is_refused_at_once(tmp_path: Path, launch: str) -> None:
    code = f"a = memory(256); print(name(add(a, 1, 1, {launch}))); ok(rt.cudaStreamSynchronize(None))"
    assert script(tmp_path, code) == "cudaErrorInvalidValue"


@pytest.mark.parametrize(
    ("head", "cc", "error"),
    [
        ("CUBIN sm_90\n", "9.0", ""), ("CUBIN sm_80\n", "8.9", ""), ("CUBIN sm_89\n", "8.6", "NO_BINARY_FOR_GPU"),
        ("CUBIN sm_80\n", "9.0", "NO_BINARY_FOR_GPU"), ("/PTX compute_80\n", "12.0", ""),
        ("/PTX compute_90\n", "8.9", "NO_BINARY_FOR_GPU"), ("\x7fELF\n", "9.0", "INVALID_IMAGE"),
    ],
)  # fmt: skip
def test_a_module_is_for_some_devices(tmp_path: Path, head: str, cc: str, error: str) -> None:
    code = """
cu.cuInit(0); out = c_void_p(); text = ctypes.c_char_p()
status = cu.cuModuleLoadData(byref(out), open(sys.argv[2], "rb").read())
cu.cuGetErrorName(status, byref(text)); print(text.value.decode())"""
    assert script(tmp_path, code, head, cc=cc) == (f"CUDA_ERROR_{error}" if error else "CUDA_SUCCESS")


def test_modules_are_told_apart(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"CUBIN sm_90\n" + cuda.library(ADD.replace("+=", "-=")))
    code = f"""
a, minus = memory(16), made(cu.cuModuleLoadData, open({str(other)!r}, "rb").read()); plus = module()
ok(put(a, floats(1, 2, 3, 4))); ok(add(a, 10, 4, of=plus)); ok(add(a, 1, 4, of=minus)); print(got(a, 4))
ok(cu.cuModuleUnload(minus)); ok(add(a, 10, 4, of=module())); print(got(a, 4))"""
    assert script(tmp_path, code) == "[10.0, 11.0, 12.0, 13.0]\n[20.0, 21.0, 22.0, 23.0]"


def test_memory_is_limited_and_counted(tmp_path: Path) -> None:
    counts = tmp_path / "counts"
    code = """
a = memory(600); b = c_void_p()
print(name(rt.cudaMalloc(byref(b), c_size_t(600))), name(rt.cudaGetLastError()), name(rt.cudaGetLastError()))
ok(rt.cudaFree(a)); b = memory(900); print(name(rt.cudaFree(a)))
free, total = c_size_t(), c_size_t(); ok(rt.cudaMemGetInfo(byref(free), byref(total))); print(free.value, total.value)
"""
    out = script(tmp_path, code, memory=2000, free=1000, counters=counts)
    assert out.splitlines() == [
        "cudaErrorMemoryAllocation cudaErrorMemoryAllocation cudaSuccess", "cudaErrorInvalidValue", "100 2000",
    ]  # fmt: skip
    found = json.loads(counts.read_text())
    assert (found["mallocs"], found["frees"], found["bytes"], found["most"]) == (3, 1, 900, 900)


def test_a_graph_does_again_what_was_recorded_with_the_arguments_of_then(tmp_path: Path) -> None:
    counts = tmp_path / "counts"
    code = """
s, a, b = stream(), memory(16), memory(16); m = module()
host = floats(1, 2, 3, 4); ok(rt.cudaStreamBeginCapture(s, 2))
ok(put(a, host, s)); ok(add(a, 10, 4, s, of=m)); ok(rt.cudaMemcpyAsync(b, a, c_size_t(16), 3, s))
g = made(lambda out: rt.cudaStreamEndCapture(s, out)); n = c_size_t(); ok(rt.cudaGraphGetNodes(g, None, byref(n)))
print(n.value, got(a, 1, s))
e = made(rt.cudaGraphInstantiate, g, ctypes.c_ulonglong(0)); ok(rt.cudaGraphDestroy(g))
ok(rt.cudaGraphLaunch(e, s)); host[0] = 5; ok(rt.cudaGraphLaunch(e, s)); print(got(b, 4, s))
ok(rt.cudaGraphLaunch(e, s)); print(got(b, 4, s)); ok(rt.cudaGraphExecDestroy(e))
"""
    out = script(tmp_path, code, counters=counts)
    assert out.splitlines() == ["3 [nan]", "[15.0, 12.0, 13.0, 14.0]", "[15.0, 12.0, 13.0, 14.0]"]
    found = json.loads(counts.read_text())
    assert (found["launches"], found["graph_launches_inside"], found["graph_launches"]) == (0, 3, 3)


@pytest.mark.parametrize(
    ("mode", "call", "allowed"),
    [
        (0, "rt.cudaMalloc(byref(c_void_p()), c_size_t(4))", False), (1, "rt.cudaFree(a)", False),
        (2, "rt.cudaMalloc(byref(c_void_p()), c_size_t(4))", True), (2, "rt.cudaStreamSynchronize(s)", False),
        (2, "rt.cudaEventRecord(made(rt.cudaEventCreate), s)", False),
    ],
)  # fmt: skip
def test_what_a_capture_forbids_ends_it(tmp_path: Path, mode: int, call: str, allowed: bool) -> None:
    code = f"""
s, a, m = stream(), memory(16), module(); ok(rt.cudaStreamBeginCapture(s, {mode}))
print(name({call})); g = c_void_p()
print(name(rt.cudaStreamEndCapture(s, byref(g))), bool(g))
ok(add(a, 1, 1, s, of=m)); ok(rt.cudaStreamSynchronize(s))"""
    want = (
        ["cudaSuccess"] * 2 if allowed else ["cudaErrorStreamCaptureUnsupported", "cudaErrorStreamCaptureInvalidated"]
    )
    assert script(tmp_path, code).splitlines() == [want[0], f"{want[1]} {allowed}"]


def test_a_graph_that_is_destroyed_before_its_launch_is_over_is_seen(tmp_path: Path) -> None:
    code = """
s, a = stream(), memory(16); ok(rt.cudaStreamBeginCapture(s, 2)); ok(add(a, 1, 4, s))
g = made(lambda out: rt.cudaStreamEndCapture(s, out)); e = made(rt.cudaGraphInstantiate, g, ctypes.c_ulonglong(0))
ok(rt.cudaGraphLaunch(e, s)); print(name(rt.cudaGraphExecDestroy(e)))"""
    assert script(tmp_path, code) == "cudaErrorIllegalAddress"


def test_a_replay_on_memory_that_is_gone_is_seen(tmp_path: Path) -> None:
    code = """
s, a = stream(), memory(16); ok(rt.cudaStreamBeginCapture(s, 2)); ok(add(a, 1, 4, s))
g = made(lambda out: rt.cudaStreamEndCapture(s, out)); e = made(rt.cudaGraphInstantiate, g, ctypes.c_ulonglong(0))
ok(rt.cudaFree(a)); ok(rt.cudaGraphLaunch(e, s)); print(name(rt.cudaStreamSynchronize(s)))"""
    assert script(tmp_path, code) == "cudaErrorIllegalAddress"


def test_a_device_that_is_lost_or_not_there(tmp_path: Path) -> None:
    code = """
a = memory(16); m = module()
for _ in range(4):
    if not rt.cudaPeekAtLastError(): ok(add(a, 1, 1, of=m))
    print(name(rt.cudaStreamSynchronize(None)))
"""
    assert script(tmp_path, code, lost_after=2).splitlines() == ["cudaSuccess"] * 2 + ["cudaErrorIllegalAddress"] * 2
    assert script(tmp_path, "n = c_int(7); print(cu.cuInit(0), name(rt.cudaGetDeviceCount(byref(n))))", devices=0) == (
        "100 cudaErrorNoDevice"
    )
