"""Queries the machine's GPUs through libcuda, before anything else of CUDA is loaded."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable
from typing import Any

from attrs import frozen

from ..base.errors import (
    DEVICE_BUSY,
    DEVICE_DRIVER,
    DEVICE_FULL,
    DEVICE_MEMORY,
    DEVICE_NONE,
    DEVICE_OLD,
    Code,
    RunError,
    shown,
)
from .cuda_errors import NUMBERED

LIBRARY = "libcuda.so.1"
NEEDS = 13000  # what cuDriverGetVersion answers for CUDA 13.0: kernels of any CUDA 13 run on a driver for it
DRIVER = "580"  # the first driver for CUDA 13.0
VISIBLE = "CUDA_VISIBLE_DEVICES"
RUNTIME = "pip install 'sexpgpu[gpu]'"  # all of CUDA that a run needs beside the driver
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


@frozen
class Gpu:
    """``number`` counts the visible ones; ``capability`` 90 is 9.0; ``driver`` 13000 is one for CUDA 13.0."""

    number: int
    name: str
    capability: int
    driver: int


class Driver:
    """libcuda by ctypes. Raises RunError E-DEVICE-010 where there is none, or it does not start, and E-DEVICE-011 where
    it sees no GPU."""

    def __init__(self, library: Any = None) -> None:
        self._library = library or _load()
        self._start(self._library.cuInit(0))

    def _start(self, status: int) -> None:
        code, hint = _code_and_hint(status)
        if code is DEVICE_NONE:
            raise _no_gpu(0)
        if code is DEVICE_BUSY:
            raise RunError(DEVICE_BUSY, f"the GPUs are not ready: {self._name(status)}", hint=hint)
        self._check(status, "does not start")

    def _name(self, status: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(status, ctypes.byref(text))
        entry = NUMBERED.get(status)  # by name, where the driver is older than the number
        return (text.value or b"").decode() or (entry.driver if entry else f"error {status}")

    def _check(self, status: int, what: str) -> None:
        if status:
            code, hint = _code_and_hint(status)
            code = code if code in (DEVICE_BUSY, DEVICE_OLD) else DEVICE_DRIVER
            raise RunError(code, f"the NVIDIA driver {what}: {self._name(status)}", hint=hint)

    def _int(self, function: str, *arguments: Any) -> int:
        out = ctypes.c_int()
        self._check(getattr(self._library, function)(ctypes.byref(out), *arguments), f"cannot answer {function}")
        return out.value

    def version(self) -> int:
        """The newest CUDA version that it supports: 13000 for 13.0."""
        return self._int("cuDriverGetVersion")

    def count(self) -> int:
        """How many GPUs are visible."""
        return self._int("cuDeviceGetCount")

    def gpu(self, number: int) -> Gpu:
        """The visible GPU of that number."""
        device = self._int("cuDeviceGet", number)
        major, minor = (self._int("cuDeviceGetAttribute", a, device) for a in (MAJOR, MINOR))
        name = ctypes.create_string_buffer(256)
        self._check(self._library.cuDeviceGetName(name, len(name), device), "cannot name the GPU")
        return Gpu(number, name.value.decode(errors="replace"), 10 * major + minor, self.version())

    def free(self, number: int) -> int:
        """Bytes that are free beside the context that the run will use, which is made here: nobody can ask without one.

        E-DEVICE-014 where the GPU is another's alone, E-DEVICE-013 where there is no room for the context.
        """
        device, context = self._int("cuDeviceGet", number), ctypes.c_void_p()
        status = self._library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        code, hint = _code_and_hint(status)
        if code is DEVICE_BUSY:
            raise RunError(DEVICE_BUSY, f"GPU {number} cannot be used: {self._name(status)}", hint=hint)
        if code is DEVICE_FULL:
            raise RunError(DEVICE_MEMORY, f"GPU {number} has no memory left, not even for a context")
        self._check(status, f"cannot use GPU {number}")
        self._check(self._library.cuCtxSetCurrent(context), f"cannot use GPU {number}")
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        status = self._library.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        self._check(status, "cannot tell its free memory")
        return free.value


def _load() -> Any:
    try:
        return ctypes.CDLL(LIBRARY, ctypes.RTLD_GLOBAL)
    except OSError as error:
        hint = f"it needs the driver {DRIVER} or newer and, of CUDA, the wheel nvidia-cuda-runtime: {RUNTIME}"
        raise RunError(DEVICE_DRIVER, f"there is no NVIDIA driver: {error}", hint=hint) from None


def _code_and_hint(status: int) -> tuple[Code | None, str]:
    """(code, hint) of an answer of the driver; None where it says no more than that the driver does not serve."""
    entry = NUMBERED.get(status)
    return (entry.code, entry.hint) if entry else (None, "")


def _no_gpu(number: int, count: int = 0) -> RunError:
    value = os.environ.get(VISIBLE)
    hint = "" if value is None else f'{VISIBLE} is "{shown(value)}"'
    if count:
        return RunError(DEVICE_NONE, f"there is no GPU {number}: {count} visible, counted from 0", hint=hint)
    return RunError(DEVICE_NONE, "the NVIDIA driver sees no GPU", hint=hint)


def survey(number: int, driver: Driver | None = None) -> Gpu:
    """The visible GPU of that number, where the driver is new enough: else E-DEVICE-010, 011 or 012."""
    driver = driver or Driver()
    have, count = driver.version(), driver.count()
    if have < NEEDS:
        raise _too_old(have, "kernels need", NEEDS, f"install the driver {DRIVER} or newer")
    if number >= count:
        raise _no_gpu(number, count)
    return driver.gpu(number)


def check_ptx(text: bytes, have: int, where: str) -> None:
    """E-DEVICE-012 unless a driver of version ``have`` compiles this PTX. PTX 9.n is that of CUDA 13.n, and no driver
    reads a newer one than its own ("PTX ISA", release history; "CUDA Compatibility", minor versions)."""
    version = re.search(rb"^\.version (\d+)\.(\d+)", text, re.MULTILINE)
    if version is not None and (need := 1000 * (int(version[1]) + 4) + 10 * int(version[2])) > have:
        hint = "install a driver for it, or build with a target that has this GPU's own kernels"
        raise _too_old(have, "PTX for this GPU needs", need, hint, where)


def _too_old(have: int, what: str, need: int, hint: str, where: str = "") -> RunError:
    text = f"the NVIDIA driver is for CUDA {_cuda(have)}, the {what} {_cuda(need)}"
    return RunError(DEVICE_OLD, text, where, hint)


def _cuda(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def best_arch(archs: Iterable[str], capability: int) -> str | None:
    """The best of ``archs`` for a GPU: a cubin of its own major number and the greatest minor
    number up to its own, else the newest PTX that is not newer than itself; None where there is neither.

    The rules are those of the CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility".
    """
    parsed = [(kind, int(n)) for kind, n in (re.split(r"_(?=\d+$)", arch) for arch in archs)]
    cubins = [n for kind, n in parsed if kind == "sm" and n // 10 == capability // 10 and n <= capability]
    ptx = [n for kind, n in parsed if kind == "compute" and n <= capability]
    return f"sm_{max(cubins)}" if cubins else f"compute_{max(ptx)}" if ptx else None
