"""Every kernel of an artifact, alone: its GPU form on the fake device in three orders of threads and watched for races,
and its CPU form, on the same draws. A process of its own, which has the fake driver preloaded, or TVM would find
another.

python -m tests.cuda_on_cpu.compare_kernels RUN.sx GPU.tar CPU.tar

One line of JSON a kernel; the last of CPU.tar's targets.
"""

from __future__ import annotations

import ctypes
import json
import sys
import zlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi

from artifacts.device.cuda import _kernel_server
from artifacts.format import tarball
from lowering import emit, pipeline
from sexpgpu.language.diagnostics import Report
from sexpgpu.language.runfile import load
from sexpgpu.phases.trace_run import trace_run
from sexpgpu.planning.microbatch_stacking import stacked

from .artifact import recompiled

ORDERS = (0, 1, 2)  # fake_cuda_order
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def programs(run: str, degree: int) -> dict[str, list[tuple[tuple[int, ...], str]]]:
    """Tensor program -> the shapes and dtypes of its parameters, in the order of the names."""
    report = Report()
    plan = trace_run(load(run, report), report)  # type: ignore[arg-type]
    assert plan, report.errors
    phases = stacked(plan, degree).phases
    pairs = {p.function: p.in_place for p in phases if p.in_place}
    lowered = pipeline.lower(emit.emit([p.graph for p in phases]), pairs, None)
    return {
        name: [(tuple(map(int, p.shape)), str(p.dtype)) for p in func.params]
        for name, func in sorted(lowered.programs.items())
    }


def draws(name: str, n: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """What parameter ``n`` of a program begins as: integers are small, to be places in whatever they count."""
    r = np.random.default_rng([zlib.crc32(name.encode()), n])
    if dtype == "bool":
        return r.integers(0, 2, shape).astype(bool)
    if "int" in dtype:
        return r.integers(0, 3, shape).astype(dtype)
    return np.asarray(r.standard_normal(shape)).astype(BFLOAT16 if dtype == "bfloat16" else dtype)


def libraries(on_gpu: tarball.Artifact, on_cpu: tarball.Artifact) -> tuple[Any, Any, Any, Any]:
    """The GPU's library of one artifact, the same with kernels that are watched, the CPU's last of another, and what
    orders the device's threads."""
    driver = ctypes.CDLL("libcuda.so.1")
    gpu = next(t for t in on_gpu.manifest.targets if t.device == "cuda")
    cpu = [t for t in on_cpu.manifest.targets if t.device == "cpu"][-1]  # that with the fewest wants
    served = _kernel_server(on_gpu, gpu.archs[0])
    loaded = []
    for n, (artifact, target) in enumerate(((on_gpu, gpu), (on_gpu, gpu), (on_cpu, cpu))):
        serve = (lambda key: recompiled(served(key), "watched")) if n == 1 else served
        tvm_ffi.register_global_func("tvm_callback_cuda_compile", serve, override=True)
        file = Path(f"/dev/shm/each-kernel-{tvm_ffi.__version__}-{n}-{id(target)}.so")
        file.write_bytes(artifact.read(target.library))
        loaded.append(tvm_ffi.load_module(str(file)))
        file.unlink()
    return *loaded, driver.fake_cuda_order


def called(function: Any, arrays: list[np.ndarray], device: Any) -> list[np.ndarray]:
    """The arrays as the program leaves them."""
    tensors = [tvm.runtime.tensor(a, device) for a in arrays]
    function(*tensors)
    device.sync()
    return [t.numpy() for t in tensors]


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference of two results over the largest number of the second; infinity where one is no number and
    the other is, or integers differ."""
    if a.dtype.kind in "iub":
        return 0.0 if (a == b).all() else float("inf")
    a, b = a.astype("float64"), b.astype("float64")
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    apart = np.abs(a - b)[~same].max()
    return float(apart / np.abs(b[np.isfinite(b)]).max(initial=1e-30)) if np.isfinite(apart) else float("inf")


def bits(a: np.ndarray) -> bytes:
    """What two equal results have the same of: all bits, but which NaN it is."""
    return (np.where(np.isnan(a), np.nan, a) if a.dtype.kind == "f" else a).tobytes()


def compared(
    name: str, kinds: list[tuple[tuple[int, ...], str]], gpu: Any, watch: Any, cpu: Any, order: Any
) -> dict[str, Any]:
    arrays = [draws(name, n, *kind) for n, kind in enumerate(kinds)]
    want = called(cpu.imports[0][name], arrays, tvm.cpu())
    got = []
    for way in ORDERS:
        order(way)
        library = watch if way == 0 else gpu  # a race is an error
        got.append(called(library.imports[0][name], arrays, tvm.cuda()))
    orders = {tuple(a.tobytes() for a in made) for made in got}
    pairs = list(zip(got[0], want, strict=True))
    apart, equal = max((difference(*pair) for pair in pairs), default=0.0), all(bits(a) == bits(b) for a, b in pairs)
    return {"kernel": name, "orders": len(orders), "equal": equal, "apart": apart, "kinds": kinds}


def main() -> None:
    run, *paths = sys.argv[1:]
    with tarball.open(paths[0]) as on_gpu, tarball.open(paths[1]) as on_cpu:
        assert on_gpu.manifest.degree == on_cpu.manifest.degree
        loaded = libraries(on_gpu, on_cpu)
        for name, kinds in programs(run, on_gpu.manifest.degree).items():
            print(json.dumps(compared(name, kinds, *loaded)), flush=True)


if __name__ == "__main__":
    main()
