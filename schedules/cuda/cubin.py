"""CUDA text to a cubin for one compute capability, or to PTX, which the driver of a newer GPU compiles; with a cache.

Output is reproducible: options are fixed, the compiler comes from a pinned wheel, and no path, name or line number of
the text enters the bytes. Results are cached in the user's cache folder under the digest of all that they depend on. An
entry is used only if its own digest holds; a cache that cannot be read or written only costs time. After a build,
``prune`` evicts the least recently used entries.
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
# 1 GiB; an example takes about a million bytes for each architecture. Chosen: a smaller cache compiles again more
# often.
CACHE_BYTES = 2**30
# Seconds. A temporary file older than this was left by a build that was killed; no build takes so long to write an
# entry.
DAY = 24 * 3600
# TVM's prelude of type traits takes 20 times as long to parse as all else, and only kernels of 8-bit floats use it. So
# it is removed from text that does not name std::.
_TRAITS = re.compile(r"  #include <cuda/std/type_traits>\n  namespace std \{\n(?:    using cuda::std::\w+;\n)*  \}\n")
# A vector copy is rewritten as a copy of an integer of the same width. NVRTC splits a copied struct into elements and
# merges loads again in an order that depends on addresses in its own memory: it gave a dozen different cubins for
# attention's gradients. The cast is safe: the compiler assumes no strict aliasing (tests/schedules/test_cubin.py).
_INTEGER_OF_VECTOR: dict[str, str] = dict.fromkeys(("float2", "int2", "uint2"), "long long")
_INTEGER_OF_VECTOR |= dict.fromkeys(("float4", "int4", "uint4", "double2", "longlong2", "ulonglong2"), "__int128")
_COPY = re.compile(rf"\*\(({'|'.join(_INTEGER_OF_VECTOR)})\*\)\(([^;]*)\) = \*\(\1\*\)\(([^;]*)\);")
_BF16 = "#include <cuda_bf16.h>\n"  # TVM asks for it from compute capability 8.0 on, and it serves older ones too


class KernelMissing(RuntimeError):
    """A function that the library launches is not in what the compiler made: our bug."""


def kernels(source: str, arch: str, names: tuple[str, ...]) -> bytes:
    """The kernels ``names`` of the CUDA text ``source`` for ``arch``: sm_90 gives a cubin, compute_80 PTX."""
    text, options = _text(source), (f"--gpu-architecture={arch}", *OPTIONS)
    key = _key(text, options)
    data = _cached(key)
    if data is None:
        data = nvrtc.compile(text, NAME, options, not arch.startswith(PTX))
        _check(data, arch, names)
        _store_cached(key, data)
    return data


def _text(source: str) -> str:
    without_traits = _TRAITS.sub("", source)
    text = source if re.search(r"(?<!cuda::)\bstd::", without_traits) else without_traits
    return (_BF16 if "nv_bfloat16" in text else "") + _COPY.sub(_copy, text)


def _copy(match: re.Match[str]) -> str:
    kind, to, source = match.groups()
    return f"*({_INTEGER_OF_VECTOR[kind]}*)({to}) = *({_INTEGER_OF_VECTOR[kind]}*)({source});"


def _check(data: bytes, arch: str, names: tuple[str, ...]) -> None:
    """KernelMissing unless ``data`` has a function of each name."""
    form = b".entry %s(" if arch.startswith(PTX) else b"\0.text.%s\0"
    for name in names:
        if form % name.encode() not in data:
            raise KernelMissing(f"{name} is not in the kernels for {arch}")


def _key(text: str, options: tuple[str, ...]) -> str:
    parts = [*(f"{p}=={v}" for p, v in nvrtc.PACKAGES.items()), *options, NAME, text]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def folder() -> Path | None:
    """The cache: ``sexpgpu/kernels`` in the user's cache folder, None without such a folder. It may be deleted."""
    xdg_cache = os.environ.get("XDG_CACHE_HOME", "")
    home = os.environ.get("HOME", "")
    root = Path(xdg_cache) if os.path.isabs(xdg_cache) else Path(home) / ".cache" if os.path.isabs(home) else None
    return root and root / "sexpgpu" / "kernels"


def _cached(key: str) -> bytes | None:
    """The cached result of ``key``; None if there is none, or if its digest does not hold."""
    cache = folder()
    if cache is None:
        return None
    path = cache / key[:2] / key
    try:
        entry = path.read_bytes()
    except OSError:
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # time of last use, by which ``prune`` evicts
    digest, data = entry[:32], entry[32:]
    return data if hashlib.sha256(data).digest() == digest else None


def _store_cached(key: str, data: bytes) -> None:
    """Write an entry atomically: other builds may read and write the same entry at the same time."""
    cache = folder()
    if cache is None:
        return
    name = None
    try:
        (cache / key[:2]).mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=cache / key[:2], delete=False) as file:
            name = file.name
            file.write(hashlib.sha256(data).digest() + data)
        os.replace(name, cache / key[:2] / key)
    except OSError:
        if name is not None:
            with contextlib.suppress(OSError):
                os.unlink(name)


def _entries(cache: Path) -> list[Path]:
    with contextlib.suppress(OSError):  # a name that is too long, a link to itself
        return list(cache.glob("*/*"))
    return []


def prune(max_bytes: int = CACHE_BYTES) -> None:
    """Evict the least recently used entries until ``max_bytes`` bytes remain at most, and what killed builds left.
    Other builds may run at the same time: a build that misses an entry compiles it again."""
    cache = folder()
    if cache is None:
        return
    now, entries = time.time(), []
    for path in _entries(cache):
        with contextlib.suppress(OSError):
            stat = path.stat()
            finished = re.fullmatch("[0-9a-f]{64}", path.name) is not None
            if finished or stat.st_mtime < now - DAY:
                entries.append((stat.st_mtime if finished else 0.0, path.name, stat.st_size, path))
    remaining = sum(size for _, _, size, _ in entries)
    for used, _, size, path in sorted(entries):
        if remaining <= max_bytes and used:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        remaining -= size
