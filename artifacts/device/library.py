"""Devices that run a compiled library: loads the artifact's own runtime and library, and calls its phases.

Both are loaded from anonymous memory files: no path can be raced for, and nothing is left behind.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base import safetensors_io
from ..base.errors import ART_VERSION, DEVICE_CALL, ENV_LIBRARY, ENV_LIMIT, ENV_PACKAGE, RunError, of_os_error
from ..format import library_signature
from ..format.manifest import Target
from ..format.tarball import Artifact
from .interface import Call, MovableTensors

POOLED = 2  # the runtime's pooled allocator, by its number in vm_initialization
ALLOCATE = "runtime.TVMTensorAllocWithScope"
CPU = 1  # DLPack's device type
NO_MEMORY = "cannot allocate memory"  # the C library's message if it cannot map a library


def memory_file(name: str, data: bytes) -> str:
    """A path, good while this process lives, of an anonymous file that holds ``data``. E-IO-011 without room for it."""
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    except OSError as error:
        raise of_os_error(error, f"a file in memory for {name}", ENV_LIBRARY) from None
    return f"/proc/self/fd/{fd}"


def load_shared(name: str, data: bytes) -> ctypes.CDLL:
    """``data`` as a shared library whose functions later ones find."""
    return ctypes.CDLL(memory_file(name, data), ctypes.RTLD_GLOBAL)


class LibraryDevice(MovableTensors):
    """A compiled library. Tensors are the runtime's own, aligned to 64 bytes as its vector code needs.

    A process holds one runtime: the first device loads its artifact's, later ones use that.
    """

    def __init__(self, artifact: Artifact, target: Target, device: str, number: int) -> None:
        """``device``: in the words of tvm_ffi, "cpu" or "cuda"; ``number``: which one."""
        self._manifest = artifact.manifest
        self._ffi = import_ffi(artifact.manifest.toolchain.tvm_ffi, artifact.path)
        self._device = self._ffi.device(device, number)
        self._machine = self._load(artifact, target)
        self._allocate = self._ffi.get_global_func(ALLOCATE)
        self._size, self._item = map(self._ffi.get_global_func, ("ffi.ArraySize", "ffi.ArrayGetItem"))
        self._kinds: dict[Any, tuple[Any, Any]] = {}  # (shape, NumPy's dtype) -> the runtime's words for them

    def _load(self, artifact: Artifact, target: Target) -> Any:
        """The library's virtual machine. Loading runs native code: all files were verified by ``read``, and the library
        is the one that the manifest is of."""
        library = library_signature.checked(artifact, target)
        try:
            if self._ffi.get_global_func(ALLOCATE, allow_missing=True) is None:  # a second one would end the process
                member = artifact.manifest.runtime.library
                signed = library_signature.runtime(artifact, member, library_signature.RUNTIME)
                self._runtime = load_shared("runtime", signed)
            self._load_device(artifact, target)
            load = self._ffi.get_global_func("ffi.Module.load_from_file.so")
            self._module = load(memory_file("phases", library), "so")
            machine = self._module["vm_load_executable"]()
            machine["vm_initialization"](*self._vm_devices())
        except (OSError, RuntimeError, AttributeError, ValueError) as error:
            what = first_line(error)
            code = ENV_LIMIT if NO_MEMORY in what.lower() else ENV_LIBRARY
            raise RunError(code, f"the library cannot be loaded: {what}", artifact.path) from error
        return machine

    def _load_device(self, artifact: Artifact, target: Target) -> None:
        """What the library needs beside the runtime."""

    def _vm_devices(self) -> tuple[int, ...]:
        """Device type, number and allocator of each device that the virtual machine uses; the host is the last."""
        return (CPU, 0, POOLED)

    def _empty(self, array: np.ndarray) -> Any:
        """A tensor of the shape and dtype of ``array``."""
        kind = array.shape, array.dtype
        if kind not in self._kinds:
            name = safetensors_io.DTYPES[safetensors_io.dtype_name(array)][0]
            self._kinds[kind] = self._ffi.Shape(array.shape), self._ffi.dtype(name)
        return self._allocate(*self._kinds[kind], self._device, None)

    def phase(self, name: str) -> Call:
        phase = self._manifest.phase(name)
        assert phase is not None
        try:
            function = self._machine[phase.function]
        except AttributeError:
            raise RunError(ENV_LIBRARY, f"the library has no function {phase.function}") from None

        size, item = self._size, self._item
        positions: list[int] = []  # of the returned outputs; the same for each call

        def call(inputs: Sequence[Any]) -> tuple[Any, ...]:
            try:
                outputs = function(*inputs)
                if not positions:
                    positions.extend(range(size(outputs)))
                return tuple([item(outputs, i) for i in positions])  # made's own iterator takes ten times as long
            except MemoryError:
                raise
            except Exception as error:
                raise self._fault(f"phase {name} failed", error) from error

        return call

    def _fault(self, what: str, error: Exception) -> RunError:
        return RunError(DEVICE_CALL, f"{what}: {first_line(error)}")


def import_ffi(wanted: str, where: str) -> Any:
    """tvm_ffi, if it is of the version that the artifact's runtime was made for."""
    hint = f"pip install apache-tvm-ffi=={wanted}"
    try:
        import tvm_ffi
    except ImportError as error:
        raise RunError(ENV_PACKAGE, f"tvm_ffi cannot be imported: {first_line(error)}", hint=hint) from None
    if tvm_ffi.__version__ != wanted:
        raise RunError(ART_VERSION, f"it needs tvm-ffi {wanted}, installed is {tvm_ffi.__version__}", where, hint)
    return tvm_ffi


def first_line(error: BaseException) -> str:
    """The first line of the error's message; its class where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
