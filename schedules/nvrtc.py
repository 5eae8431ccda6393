"""NVIDIA's run-time compiler, from its wheel: CUDA text to a cubin or PTX. A machine needs no GPU for it, and if it has
CUDA, nothing of that is used."""

from __future__ import annotations

import ctypes
import functools
import re
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


TURNS = 40  # more runs at most: of attention's gradients, the only ones where it was seen, one in two to seven is clean
METHOD = "without reads that overlap"  # kept results of another way are not found again
_PARTLY = b'.pragma "used_bytes_mask'
_READ = re.compile(rb"ld\.\S+\s+.*\[(?P<base>[^]+]+)(?:\+(?P<offset>-?\d+))?\];")


class CompileFault(RuntimeError):
    """NVRTC refused the text: our bug. The message ends with its log."""


def lacking() -> str | None:
    """What is missing of PACKAGES, or of another version, in words; None where all is there."""
    for package, wanted in PACKAGES.items():
        try:
            found = version(package)
        except PackageNotFoundError:
            return f"{package} {wanted}"
        if found != wanted:
            return f"{package} {wanted}, and {found} is installed"
    return None


def _place(package: str, path: str) -> str:
    return str(distribution(package).locate_file(path))


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    """The wheel's library by its path, whichever else the machine has."""
    library = ctypes.CDLL(_place(*LIBRARY))
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    if (major.value, minor.value) != RELEASE:
        raise CompileFault(f"{LIBRARY[1]} is of release {major.value}.{minor.value}, not {RELEASE}")
    return library


def supported() -> tuple[int, ...]:
    """The compute capabilities that it compiles for, 90 for 9.0."""
    library, count = _nvrtc(), ctypes.c_int()
    _check(library.nvrtcGetNumSupportedArchs(ctypes.byref(count)), b"")
    found = (ctypes.c_int * count.value)()
    _check(library.nvrtcGetSupportedArchs(found), b"")
    return tuple(found)


def compile(text: str, name: str, options: tuple[str, ...], is_cubin: bool) -> bytes:
    """The cubin or the PTX of ``text``, which is called ``name`` in messages. Raises CompileFault.

    The compiler is not always of one mind about a text: where four floats are read at once it makes, in some of its
    runs, two reads that overlap, as addresses in its own memory happen to be. Such a result is thrown away, so that a
    text has one result."""
    ptx, data = _compiled(text, name, options, is_cubin)
    for turn in range(TURNS):
        if not reads_twice(ptx):
            break
        held = ctypes.create_string_buffer((turn + 1) << 12)  # else its memory may lie as it did
        ptx, data = _compiled(text, name, options, is_cubin)
        del held
    return data


def reads_twice(ptx: bytes) -> bool:
    """Is there a read of four elements, not all of which are used, beside one that reads some of them again?"""
    lines = [line.strip() for line in ptx.splitlines()]
    found = [n for n, line in enumerate(lines[:-2]) if line.startswith(_PARTLY)]
    return any(_overlap(lines[n + 1], lines[other]) for n in found for other in (n - 1, n + 2))


def _overlap(four: bytes, other: bytes) -> bool:
    wide, narrow = _READ.match(four), _READ.match(other)
    if wide is None or narrow is None or wide["base"] != narrow["base"]:
        return False
    return 0 <= int(narrow["offset"] or 0) - int(wide["offset"] or 0) < 16


def _compiled(text: str, name: str, options: tuple[str, ...], is_cubin: bool) -> tuple[bytes, bytes]:
    """The PTX, and what was asked for."""
    library, program = _nvrtc(), ctypes.c_void_p()
    given = (*options, *(f"-I{_place(*include)}" for include in INCLUDES))
    words = (ctypes.c_char_p * len(given))(*(option.encode() for option in given))
    made = library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
    _check(made, b"")
    try:
        status = library.nvrtcCompileProgram(program, len(given), words)
        _check(status, _output(program, "ProgramLog") if status else b"")
        ptx = _output(program, "PTX").rstrip(b"\0")
        return ptx, _output(program, "CUBIN") if is_cubin else ptx
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
