"""CUDA text to what a GPU loads: a cubin for one compute capability, or PTX, which the driver of a newer GPU compiles.

The same text gives the same bytes on any machine: options are fixed, the compiler is that of a pinned wheel, and no
path, name or line of the text is left in them. Results are kept in the user's cache folder by the digest of all that
they depend on; an entry is used only if its own digest holds, and a cache that cannot be read or written is no fault.
After a build, ``prune`` leaves those that were used last.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import time
from pathlib import Path

from . import nvrtc

NAME = "kernels.cu"
# -fmad=false: a product that is added is fused where the text says so, as on the CPU, and nowhere else.
OPTIONS = ("-default-device", "-fmad=false", "--device-int128")
PTX = "compute_"
ROOM = 2**30  # bytes of results that are kept; an example takes about one million for each architecture
DAY = 24 * 3600  # seconds after which a file that was not finished is nobody's
# What TVM writes before its kernels for the traits of types, which takes 20 times as long to read as all else, and is
# used by kernels of 8-bit floats alone.
_TRAITS = re.compile(r"  #include <cuda/std/type_traits>\n  namespace std \{\n(?:    using cuda::std::\w+;\n)*  \}\n")
# A vector that is copied is one integer here. As a struct of elements the compiler takes it apart and puts reads
# together again, in an order that follows from addresses in its own memory: of attention's gradients it made a dozen
# results. It does not take numbers of two types for different places (tests/schedules/cuda/test_cubin.py).
_WHOLE: dict[str, str] = dict.fromkeys(("float2", "int2", "uint2"), "long long")
_WHOLE |= dict.fromkeys(("float4", "int4", "uint4", "double2", "longlong2", "ulonglong2"), "__int128")
_COPY = re.compile(rf"\*\(({'|'.join(_WHOLE)})\*\)\(([^;]*)\) = \*\(\1\*\)\(([^;]*)\);")
_BF16 = "#include <cuda_bf16.h>\n"  # TVM asks for it from compute capability 8.0 on, and it serves older ones too


class KernelMissing(RuntimeError):
    """A function that the library launches is not in what the compiler made: our bug."""


def kernels(source: str, arch: str, names: tuple[str, ...]) -> bytes:
    """The kernels ``names`` of the CUDA text ``source`` for ``arch``: sm_90 gives a cubin, compute_80 PTX."""
    text, options = _text(source), (f"--gpu-architecture={arch}", *OPTIONS)
    key = _key(text, options)
    data = _kept(key)
    if data is None:
        data = nvrtc.compile(text, NAME, options, not arch.startswith(PTX))
        _check(data, arch, names)
        _keep(key, data)
    return data


def _text(source: str) -> str:
    short = _TRAITS.sub("", source)
    text = source if re.search(r"(?<!cuda::)\bstd::", short) else short
    return (_BF16 if "nv_bfloat16" in text else "") + _COPY.sub(_copy, text)


def _copy(found: re.Match[str]) -> str:
    kind, to, source = found.groups()
    return f"*({_WHOLE[kind]}*)({to}) = *({_WHOLE[kind]}*)({source});"


def _check(data: bytes, arch: str, names: tuple[str, ...]) -> None:
    """KernelMissing unless ``data`` has a function of each name."""
    form = b".entry %s(" if arch.startswith(PTX) else b"\0.text.%s\0"
    for name in names:
        if form % name.encode() not in data:
            raise KernelMissing(f"{name} is not in the kernels for {arch}")


def _key(text: str, options: tuple[str, ...]) -> str:
    of = [*(f"{p}=={v}" for p, v in nvrtc.PACKAGES.items()), *options, NAME, text]
    return hashlib.sha256("\0".join(of).encode()).hexdigest()


def folder() -> Path | None:
    """Where results are kept: ``sexpgpu/kernels`` of the user's cache folder. It may be deleted at any time."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    home = os.environ.get("HOME", "")
    root = Path(given) if os.path.isabs(given) else Path(home) / ".cache" if os.path.isabs(home) else None
    return root and root / "sexpgpu" / "kernels"


def _kept(key: str) -> bytes | None:
    """The kept result of ``key``; None if there is none, or not as it was written."""
    place = folder()
    if place is None:
        return None
    path = place / key[:2] / key
    try:
        found = path.read_bytes()
    except OSError:
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # when it was used last
    digest, data = found[:32], found[32:]
    return data if hashlib.sha256(data).digest() == digest else None


def _keep(key: str, data: bytes) -> None:
    """Whole or not at all: other builds may read and write the same entry now."""
    place = folder()
    if place is None:
        return
    name = None
    try:
        (place / key[:2]).mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place / key[:2], delete=False) as file:
            name = file.name
            file.write(hashlib.sha256(data).digest() + data)
        os.replace(name, place / key[:2] / key)
    except OSError:
        if name is not None:
            with contextlib.suppress(OSError):
                os.unlink(name)


def _entries(place: Path) -> list[Path]:
    with contextlib.suppress(OSError):  # a name that is too long, a link to itself
        return list(place.glob("*/*"))
    return []


def prune(room: int = ROOM) -> None:
    """Delete the results that were used longest ago until those that are left have ``room`` bytes at most, and what
    builds that were killed left. Other builds may run: one that misses an entry now makes it anew."""
    place = folder()
    if place is None:
        return
    now, kept = time.time(), []
    for path in _entries(place):
        with contextlib.suppress(OSError):
            found = path.stat()
            finished = re.fullmatch("[0-9a-f]{64}", path.name) is not None
            if finished or found.st_mtime < now - DAY:
                kept.append((found.st_mtime if finished else 0.0, path.name, found.st_size, path))
    left = sum(size for _, _, size, _ in kept)
    for used, _, size, path in sorted(kept):
        if left <= room and used:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        left -= size
