"""The CPU device: checks the machine, then loads the artifact's own runtime and library.

``fit``, ``check_memory`` and ``open_device`` are the functions that ``interface.Row`` calls.
"""

from __future__ import annotations

import ctypes
import math
import platform
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..base import safetensors_io
from ..base.errors import TARGET_MACHINE, RunError
from ..format.manifest import Manifest, Target
from ..format.tarball import Artifact
from . import huge_pages
from . import memory_check as memory
from . import threads as cores
from .active_threads import ActiveThreads
from .interface import Choice, Device, Row, targets_named
from .library import LibraryDevice

CPUINFO = "/proc/cpuinfo"
CONFIGURE = "runtime.config_threadpool"  # (which cores threads prefer, how many of them work)
ANY_CORE = 1  # its constant for the fast cores; with TVM_BIND_THREADS=0 it binds no thread


def cpu_flags(path: str = CPUINFO) -> frozenset[str]:
    """The features that every processor of this machine has, as named in /proc/cpuinfo; empty if unknown."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line for line in file if line.startswith(("flags", "Features"))]
    except OSError:
        return frozenset()
    rows = [frozenset(line.partition(":")[2].split()) for line in dict.fromkeys(lines)]
    return frozenset.intersection(*rows) if rows else frozenset()


def choose(manifest: Manifest, machine: str, flags: frozenset[str], where: str = "", name: str | None = None) -> Target:
    """The first target for a CPU that this machine can run, or the one of ``name``; before any code is loaded.

    E-TARGET-010 with want and have; E-TARGET-011 for a name that is not in the artifact.
    """
    return fitting([t for t in targets_named(manifest, name, where) if t.device == "cpu"], machine, flags, where)


def fitting(offered: Sequence[Target], machine: str, flags: frozenset[str], where: str) -> Target:
    """The first of ``offered`` whose code this processor can run; E-TARGET-010 with want and have."""
    for target in offered:
        if target.machine == machine and flags >= set(target.cpu_flags):
            return target
    nearest = min(offered, key=lambda t: len(_lacking(t, flags)))
    if nearest.machine != machine:
        raise RunError(TARGET_MACHINE, f"built for {nearest.machine}, this machine is {machine}", where)
    lacking = " ".join(_lacking(nearest, flags))
    raise RunError(TARGET_MACHINE, f"built for {nearest.name}; this processor lacks {lacking}", where)


def _lacking(target: Target, flags: frozenset[str]) -> list[str]:
    return [flag for flag in target.cpu_flags if flag not in flags]


def fit(row: Row, targets: Sequence[Target], number: int, where: str) -> Choice:
    return Choice(fitting(targets, platform.machine(), cpu_flags(), where), row, number)


def check_memory(manifest: Manifest, threads: int | None, choice: Choice, where: str, data: int) -> None:
    """E-MEM-010 unless the machine has the memory that the run takes; ``data``: bytes still to be read into it."""
    memory.check(manifest, threads, where, data=data)


def open_device(artifact: Artifact, choice: Choice, threads: int | None) -> Device:
    return CpuDevice(artifact, threads, choice.target.name)


class CpuDevice(LibraryDevice):
    """A library whose kernels run on the CPU.

    ``target``: which of the artifact's libraries; None for the best that this machine can run.
    """

    def __init__(self, artifact: Artifact, threads: int | None = None, target: str | None = None) -> None:
        chosen = choose(artifact.manifest, platform.machine(), cpu_flags(), artifact.path, target)
        max_threads = cores.set_threads(threads)
        super().__init__(artifact, chosen, "cpu", 0)
        configure = self._ffi.get_global_func(CONFIGURE)
        self._active_threads = ActiveThreads(max_threads, lambda count: configure(ANY_CORE, count))
        self.before_call = self._active_threads.look

    def step_finished(self) -> None:
        huge_pages.collapse()

    def notes(self) -> list[str]:
        crew = self._active_threads
        reduced = crew.min_active < crew.max_threads
        return [f"threads: beside other work {crew.min_active} of {crew.max_threads} at the fewest"] if reduced else []

    def tensor(self, array: np.ndarray) -> Any:
        out = self._empty(array)
        self.write(out, array)
        return out

    def write(self, handle: Any, array: np.ndarray) -> None:
        array = np.ascontiguousarray(array)
        ctypes.memmove(handle.data_ptr(), array.ctypes.data, array.nbytes)

    def numpy(self, handle: Any) -> np.ndarray:
        """A view of the tensor's memory, which it keeps alive."""
        shape, kind = tuple(handle.shape), safetensors_io.dtype(safetensors_io.OF_NUMPY[str(handle.dtype)])
        memory = (ctypes.c_char * (math.prod(shape) * kind.itemsize)).from_address(handle.data_ptr())
        memory.keep = handle  # type: ignore[attr-defined]
        return np.frombuffer(memory, kind).reshape(shape)  # type: ignore[call-overload]

    def trip_numbers(self, count: int, carried: Sequence[tuple[int, int]]) -> Iterator[Any]:
        """One tensor, overwritten each time: a call has finished when it returns."""
        number = self.tensor(np.array(0, np.int64))
        value = ctypes.c_int64.from_address(number.data_ptr())
        for n in range(count):
            value.value = n
            yield number

    def zero(self, handles: Sequence[Any]) -> None:
        for handle in handles:
            size = safetensors_io.DTYPES[safetensors_io.OF_NUMPY[str(handle.dtype)]][2]
            ctypes.memset(handle.data_ptr(), 0, math.prod(handle.shape) * size)
