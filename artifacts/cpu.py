"""The CPU row: checks the machine, then loads the artifact's own runtime and library from memory files that have no
path to race for and leave nothing behind."""

from __future__ import annotations

import ctypes
import math
import os
import platform
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import cores, tensors
from .device import Call
from .errors import (
    ART_VERSION,
    DEVICE_CALL,
    ENV_LIBRARY,
    ENV_PACKAGE,
    TARGET_MACHINE,
    TARGET_NAME,
    RunError,
    shown,
)
from .manifest import Manifest, Target
from .tarball import Artifact

CPUINFO = "/proc/cpuinfo"
POOLED = 2  # the runtime's pooled allocator, by its number in vm_initialization
ALLOCATE = "runtime.TVMTensorAllocWithScope"
CPU = 1  # DLPack's device type


def cpu_flags(path: str = CPUINFO) -> frozenset[str]:
    """What every processor of this machine offers, in the words of /proc/cpuinfo; empty when that is unknown."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line for line in file if line.startswith(("flags", "Features"))]
    except OSError:
        return frozenset()
    rows = [frozenset(line.partition(":")[2].split()) for line in dict.fromkeys(lines)]
    return frozenset.intersection(*rows) if rows else frozenset()


def choose(manifest: Manifest, machine: str, flags: frozenset[str], where: str = "", name: str | None = None) -> Target:
    """The first target that this machine can run, or the one of ``name``; before any code is loaded.

    E-TARGET-010 with want and have; E-TARGET-011 for a name that is not in the artifact.
    """
    offered = [t for t in manifest.targets if name in (None, t.name)]
    if not offered:
        hint = f"it has {' '.join(t.name for t in manifest.targets)}"
        raise RunError(TARGET_NAME, f"there is no target {shown(str(name))} in the artifact", where, hint)
    for target in offered:
        if target.machine == machine and flags >= set(target.cpu_flags):
            return target
    least = min(offered, key=lambda t: len(_lacking(t, flags)))
    if least.machine != machine:
        raise RunError(TARGET_MACHINE, f"built for {least.machine}, this machine is {machine}", where)
    lacking = " ".join(_lacking(least, flags))
    raise RunError(TARGET_MACHINE, f"built for {least.name}; this processor lacks {lacking}", where)


def _lacking(target: Target, flags: frozenset[str]) -> list[str]:
    return [flag for flag in target.cpu_flags if flag not in flags]


def memory_file(name: str, data: bytes) -> str:
    """A path, good while this process lives, of an anonymous file that holds ``data``."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return f"/proc/self/fd/{fd}"


class CpuDevice:
    """A compiled library. Tensors are the runtime's own, aligned to 64 bytes as its vector code needs.

    A process holds one runtime: the first device loads its artifact's, later ones use that.
    ``target``: which of the artifact's libraries; None for the best that this machine can run.
    """

    def __init__(self, artifact: Artifact, threads: int | None = None, target: str | None = None) -> None:
        manifest = artifact.manifest
        chosen = choose(manifest, platform.machine(), cpu_flags(), artifact.path, target)
        cores.set_threads(threads)
        self._ffi = import_ffi(manifest.toolchain.tvm_ffi, artifact.path)
        self._machine = self._load(artifact, chosen)
        self._allocate = self._ffi.get_global_func(ALLOCATE)
        self._device = self._ffi.device("cpu", 0)
        self._size, self._item = map(self._ffi.get_global_func, ("ffi.ArraySize", "ffi.ArrayGetItem"))
        self._kinds: dict[Any, tuple[Any, Any]] = {}  # (shape, NumPy's dtype) -> the runtime's words for them
        self._manifest = manifest

    def settle(self) -> None:
        """Start the runtime's threads, and place them and this one (``cores``)."""
        cores.settle(self._ffi.get_global_func("runtime.NumThreads"))

    def _load(self, artifact: Artifact, target: Target) -> Any:
        """The library's virtual machine. Loading runs native code: both files were verified by ``read``."""
        runtime, library = artifact.read(artifact.manifest.runtime.library), artifact.read(target.library)
        try:
            if (
                self._ffi.get_global_func(ALLOCATE, allow_missing=True) is None
            ):  # a second runtime would end the process
                self._runtime = ctypes.CDLL(memory_file("runtime", runtime), ctypes.RTLD_GLOBAL)
            load = self._ffi.get_global_func("ffi.Module.load_from_file.so")
            self._module = load(memory_file("phases", library), "so")
            machine = self._module["vm_load_executable"]()
            machine["vm_initialization"](CPU, 0, POOLED)
        except (OSError, RuntimeError, AttributeError, ValueError) as error:
            raise RunError(ENV_LIBRARY, f"the library cannot be loaded: {_first_line(error)}", artifact.path) from error
        return machine

    def tensor(self, array: np.ndarray) -> Any:
        kind = array.shape, array.dtype
        if kind not in self._kinds:
            name = tensors.DTYPES[tensors.dtype_name(array)][0]
            self._kinds[kind] = self._ffi.Shape(array.shape), self._ffi.dtype(name)
        out = self._allocate(*self._kinds[kind], self._device, None)
        array = np.ascontiguousarray(array)
        ctypes.memmove(out.data_ptr(), array.ctypes.data, array.nbytes)
        return out

    def numpy(self, handle: Any) -> np.ndarray:
        """A view of the tensor's memory, which it keeps alive."""
        shape, kind = tuple(handle.shape), tensors.dtype(tensors.OF_NUMPY[str(handle.dtype)])
        memory = (ctypes.c_char * (math.prod(shape) * kind.itemsize)).from_address(handle.data_ptr())
        memory.keep = handle  # type: ignore[attr-defined]
        return np.frombuffer(memory, kind).reshape(shape)  # type: ignore[call-overload]

    def zero(self, handle: Any) -> None:
        size = tensors.DTYPES[tensors.OF_NUMPY[str(handle.dtype)]][2]
        ctypes.memset(handle.data_ptr(), 0, math.prod(handle.shape) * size)

    def phase(self, name: str) -> Call:
        phase = self._manifest.phase(name)
        assert phase is not None
        try:
            function = self._machine[phase.function]
        except AttributeError:
            raise RunError(ENV_LIBRARY, f"the library has no function {phase.function}") from None

        size, item = self._size, self._item

        def call(inputs: Sequence[Any]) -> tuple[Any, ...]:
            try:
                made = function(*inputs)
                return tuple([item(made, i) for i in range(size(made))])  # made's own iterator takes ten times as long
            except MemoryError:
                raise
            except Exception as error:
                raise RunError(DEVICE_CALL, f"phase {name} failed: {_first_line(error)}") from error

        return call


def import_ffi(wanted: str, where: str) -> Any:
    """tvm_ffi, if it is of the version that the artifact's runtime was made for."""
    hint = f"pip install apache-tvm-ffi=={wanted}"
    try:
        import tvm_ffi
    except ImportError as error:
        raise RunError(ENV_PACKAGE, f"tvm_ffi cannot be imported: {_first_line(error)}", hint=hint) from None
    if tvm_ffi.__version__ != wanted:
        raise RunError(ART_VERSION, f"it needs tvm-ffi {wanted}, installed is {tvm_ffi.__version__}", where, hint)
    return tvm_ffi


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
