"""The CUDA device: checks driver, GPU and memory through libcuda alone, then loads the CUDA runtime and the library.

TVM's runtime for CUDA is loaded with it. The kernels were compiled when the artifact was built: nothing is compiled
here.

``fit``, ``check_memory`` and ``open_device`` are the functions that ``interface.Row`` calls.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from attrs import frozen

from ..base import safetensors_io
from ..base.errors import DEVICE_FULL, DEVICE_MEMORY, ENV_LIBRARY, TARGET_ARCH, RunError
from ..format import library_signature
from ..format.manifest import Manifest, Target
from ..format.tarball import Artifact
from . import cuda_driver, cuda_runtime, memory_check
from .cpu import cpu_flags, fitting
from .cuda_driver import Gpu
from .cuda_graphs import Graphs
from .graph_replay import Replaying
from .interface import Call, Choice, Device, Handle, Row
from .library import CPU, POOLED, LibraryDevice, first_line, load_shared

CUDA = 2  # DLPack's device type
COMPILE_CALLBACK = "tvm_callback_cuda_compile"  # TVM's CUDA runtime calls it with a module's source
KEY = re.compile(r"sexpgpu-kernels:([0-9a-f]{64})")
# Bytes of device memory beside the run's tensors and the context: the library's modules, local memory of threads,
# graphs, rounding of allocations. An estimate: no GPU was there to measure.
OVERHEAD = 256 * 2**20
# Bytes of OVERHEAD that must be free before a phase runs for the first time and allocates. A kernel that cannot
# allocate its workspace ends the process: the runtime's exception cannot pass the kernel's host code.
MIN_FREE = 64 * 2**20


@frozen
class GpuDetails:
    """The GPU that was found, and which of the target's kernels it runs."""

    gpu: Gpu
    arch: str


def fit(row: Row, targets: Sequence[Target], number: int, where: str) -> Choice:
    """The first target with a cubin for the GPU, else with PTX for it; E-DEVICE-010 to 012, E-TARGET-010 or 012."""
    fitting(targets, platform.machine(), cpu_flags(), where)
    gpu = cuda_driver.survey(number)
    runs = [(t, arch) for t in targets if (arch := cuda_driver.best_arch(t.archs, gpu.capability))]
    if not runs:
        have = " ".join(dict.fromkeys(arch for t in targets for arch in t.archs))
        hint = f"build it again with cuda-sm_{gpu.capability} added to --target"
        what = f"built for {have}, and this GPU, {gpu.name}, is sm_{gpu.capability}"
        raise RunError(TARGET_ARCH, what, where, hint)
    target, arch = min(runs, key=lambda run: run[1].startswith("compute"))
    return Choice(target, row, number, GpuDetails(gpu, arch), f"cuda:{number}, {gpu.name}, kernels for {arch}")


def check_memory(manifest: Manifest, threads: int | None, choice: Choice, where: str, data: int) -> None:
    """E-MEM-010 unless the machine, and E-DEVICE-013 unless the GPU has the memory that the run takes."""
    memory_check.check_host(manifest, where, data=data)
    want, have = wanted(manifest, choice.target), cuda_driver.Driver().free(choice.number)
    if want > have:
        takes, free = memory_check.size(want), memory_check.size(have)
        what = f"the run takes {takes} of {choice.has.gpu.name}'s memory, {free} are free"
        what += f"; its largest phase is {memory_check.largest_phase(manifest)}"
        raise RunError(DEVICE_MEMORY, what, where, "nvidia-smi shows who has the rest")


def wanted(manifest: Manifest, target: Target) -> int:
    """Bytes of the GPU that a run takes: the memory plan, which counts constants and what captures hold, if the target
    has them made, and what is beside it."""
    return manifest.memory.device_bytes + OVERHEAD


def open_device(artifact: Artifact, choice: Choice, threads: int | None) -> Device:
    """E-DEVICE-012 where the driver is too old for the PTX that the library's kernels are kept as; E-ART-002 where a
    cubin is cut short."""
    arch = choice.has.arch
    kernels = [entry.path for entry in artifact.manifest.files if f".{arch}." in entry.path]
    for member in [path for path in kernels if path.endswith(".ptx")][:1]:  # one compiler made them all
        cuda_driver.check_ptx(artifact.read(member), choice.has.gpu.driver, artifact.path)
    for member in (path for path in kernels if path.endswith(".cubin")):
        library_signature.check_kernels(artifact, member)
    return CudaDevice(artifact, choice.target, choice.number, arch)


class CudaDevice(LibraryDevice, Replaying):
    """A library whose kernels run on GPU ``number``. All its work is in one stream: what is asked for is done in order,
    and ``numpy`` and ``read`` wait for it.

    arch:   of the target's kernels those to load, as ``cuda_driver.best_arch`` names them
    graphs: whether what is repeated is captured; None: as the target says
    """

    def __init__(
        self, artifact: Artifact, target: Target, number: int = 0, arch: str = "", graphs: bool | None = None
    ) -> None:
        self._number = number
        self._arch = (
            arch or cuda_driver.best_arch(target.archs, cuda_driver.survey(number).capability) or target.archs[0]
        )
        super().__init__(artifact, target, "cuda", number)
        self._init_replay(Graphs(self._stream) if (target.graphs if graphs is None else graphs) else None)

    def _load_device(self, artifact: Artifact, target: Target) -> None:
        self._stream = cuda_runtime.Stream(cuda_runtime.load(artifact.path), self._number)
        if self._ffi.get_global_func("device_api.cuda", allow_missing=True) is None:
            member = artifact.manifest.runtime.cuda
            assert member is not None
            signed = library_signature.runtime(artifact, member, library_signature.CUDA_RUNTIME)
            self._cuda = load_shared("runtime_cuda", signed)
        self._ffi.register_global_func(COMPILE_CALLBACK, _kernel_server(artifact, self._arch), override=True)
        self._ffi.use_raw_stream(self._device, self._stream.handle).__enter__()  # and never left: a run has one stream

    def _load(self, artifact: Artifact, target: Target) -> Any:
        machine = super()._load(artifact, target)
        self._stream.wait_for_default()
        return machine

    def _vm_devices(self) -> tuple[int, ...]:
        return (CUDA, self._number, POOLED, CPU, 0, POOLED)

    def tensor(self, array: np.ndarray) -> Handle:
        out = self._empty(array)
        self.write(out, array)
        return out

    def write(self, handle: Handle, array: np.ndarray) -> None:
        self._stream.staging.write(handle.data_ptr(), np.ascontiguousarray(array))

    def _copy(self, to: Handle, source: Handle) -> None:
        self._stream.on_device(to.data_ptr(), source.data_ptr(), _nbytes(to))

    def _fill(self, handles: Sequence[Handle]) -> tuple[Handle, ...]:
        for handle in handles:
            self._stream.zero(handle.data_ptr(), _nbytes(handle))
        return ()

    def numpy(self, handle: Handle) -> np.ndarray:
        """A copy of the tensor's values, once all that was asked for before is done."""
        out = safetensors_io.aligned(*_kind(handle))
        self._stream.staging.read(handle.data_ptr(), out)
        return out

    def read(self, handles: Sequence[Handle]) -> list[np.ndarray]:
        """Packed into one buffer on the GPU, then one copy to the host."""
        starts, packing_buffer = self._packing([_nbytes(handle) for handle in handles])
        if packing_buffer is None:
            return [self.numpy(handle) for handle in handles]
        packed = np.empty(starts[-1], np.uint8)
        for handle, at in zip(handles, starts, strict=False):
            self._stream.on_device(packing_buffer.data_ptr() + at, handle.data_ptr(), _nbytes(handle))
        self._stream.staging.read(packing_buffer.data_ptr(), packed)
        return [_array(packed[at:], *_kind(handle)) for handle, at in zip(handles, starts, strict=False)]

    def phase(self, name: str) -> Call:
        plain = self._with_memory_check(name, super().phase(name))
        if self._graphs is None:
            return lambda inputs: self._stream.paced(lambda: plain(inputs))
        return self._capturable(name, plain)

    def _with_memory_check(self, name: str, call: Call) -> Call:
        """``call``, but E-DEVICE-015 at the first call if other processes have taken the memory since the start."""
        already_ran: list[bool] = []

        def checked(inputs: Sequence[Handle]) -> tuple[Handle, ...]:
            if not already_ran:
                have = self._stream.free()
                if have < MIN_FREE:
                    free, spare = memory_check.size(have), memory_check.size(MIN_FREE)
                    what = f"phase {name} finds {free} of the GPU's memory free, not {spare}"
                    raise RunError(DEVICE_FULL, what, hint="others have taken what was free at the start")
                already_ran.append(True)
            return call(inputs)

        return checked

    def notes(self) -> list[str]:
        return self._graphs.lines() if self._graphs else []

    def _fault(self, what: str, error: Exception) -> RunError:
        return cuda_runtime.fault(what, first_line(error))


def _kind(handle: Handle) -> tuple[tuple[int, ...], str]:
    """Its shape and our dtype."""
    return tuple(handle.shape), safetensors_io.OF_NUMPY[str(handle.dtype)]


def _array(data: np.ndarray, shape: tuple[int, ...], name: str) -> np.ndarray:
    """The array that the bytes ``data`` begin with."""
    return data[: memory_check.nbytes(shape, name)].view(safetensors_io.dtype(name)).reshape(shape)


def _nbytes(handle: Handle) -> int:
    return memory_check.nbytes(*_kind(handle))


def _kernel_server(artifact: Artifact, arch: str) -> Callable[[str], bytes]:
    """The callback that gives TVM the compiled kernels of ``arch`` for the key that the library holds as their
    source."""

    def serve(source: str) -> bytes:
        key = KEY.fullmatch(source.strip())
        if key is None:
            raise RunError(ENV_LIBRARY, "the library holds source code of kernels", artifact.path)
        name = f"kernels/{key.group(1)}.{arch}."
        if arch.startswith("sm_"):
            return artifact.read(f"{name}cubin")
        return artifact.read(f"{name}ptx") + b"\0"  # the driver reads the text up to its first zero

    return serve
