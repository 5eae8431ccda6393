"""Bindings of NVRTC, NVIDIA's run-time compiler: CUDA text to a cubin or PTX, without a GPU.

The library and headers come from pinned wheels, loaded by path; a CUDA toolkit on the machine is ignored, since its
version would change the bytes of an artifact.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution, version

# What the extra `cuda` installs; the bytes of a cubin are a function of these releases.
PACKAGES: Mapping[str, str] = {
    "nvidia-cuda-nvrtc": "13.5.37",
    "nvidia-cuda-runtime": "13.5.37",
    "nvidia-cuda-crt": "13.5.37",
    "nvidia-cuda-cccl": "13.3.5.0.6",
}
RELEASE = (13, 5)
LIBRARY = ("nvidia-cuda-nvrtc", "nvidia/cu13/lib/libnvrtc.so.13")
INCLUDES = (("nvidia-cuda-runtime", "nvidia/cu13/include"), ("nvidia-cuda-cccl", "nvidia/cu13/include/cccl"))


class CompileFault(RuntimeError):
    """NVRTC refused the text: our bug. The message ends with its log."""


def missing_package() -> str | None:
    """The first of PACKAGES that is missing or of another version, in words; None if all are installed."""
    for package, wanted in PACKAGES.items():
        try:
            installed = version(package)
        except PackageNotFoundError:
            return f"{package} {wanted}"
        if installed != wanted:
            return f"{package} {wanted}, and {installed} is installed"
    return None


def _path_in_wheel(package: str, path: str) -> str:
    return str(distribution(package).locate_file(path))


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    """The wheel's library, loaded by its path. Raises CompileFault if it is of another release."""
    library = ctypes.CDLL(_path_in_wheel(*LIBRARY))
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    if (major.value, minor.value) != RELEASE:
        raise CompileFault(f"{LIBRARY[1]} is of release {major.value}.{minor.value}, not {RELEASE}")
    return library


def supported() -> tuple[int, ...]:
    """The compute capabilities that NVRTC compiles for, 90 for 9.0."""
    library, count = _nvrtc(), ctypes.c_int()
    _check(library.nvrtcGetNumSupportedArchs(ctypes.byref(count)), b"")
    archs = (ctypes.c_int * count.value)()
    _check(library.nvrtcGetSupportedArchs(archs), b"")
    return tuple(archs)


def compile(text: str, name: str, options: tuple[str, ...], is_cubin: bool) -> bytes:
    """The cubin or the PTX of ``text``, which is called ``name`` in messages. Raises CompileFault."""
    library, program = _nvrtc(), ctypes.c_void_p()
    arguments = (*options, *(f"-I{_path_in_wheel(*include)}" for include in INCLUDES))
    argv = (ctypes.c_char_p * len(arguments))(*(option.encode() for option in arguments))
    status = library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
    _check(status, b"")
    try:
        status = library.nvrtcCompileProgram(program, len(arguments), argv)
        _check(status, _output(program, "ProgramLog") if status else b"")
        return _output(program, "CUBIN") if is_cubin else _output(program, "PTX").rstrip(b"\0")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _output(program: ctypes.c_void_p, what: str) -> bytes:
    library, size = _nvrtc(), ctypes.c_size_t()
    _check(getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), b"")
    data = ctypes.create_string_buffer(size.value)
    _check(getattr(library, f"nvrtcGet{what}")(program, data), b"")
    return data.raw


def _check(status: int, log: bytes) -> None:
    if status:
        words = _nvrtc().nvrtcGetErrorString(status).decode()
        raise CompileFault(f"NVRTC: {words}: {log.decode(errors='replace')[:3000]}")
