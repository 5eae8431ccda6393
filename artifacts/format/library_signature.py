"""The signature of a library: a digest of the manifest that it was built for, stored in the library and checked.

Kernels check none of their arguments: they would read and write past the end of an array that is shorter than they were
compiled for. So a manifest that differs in anything kernels rely on, by a mix-up of files or an edit by hand, is
refused before the library is loaded.
"""

from __future__ import annotations

import hashlib
from typing import Any

from ..base import canonical_json, elf
from ..base.errors import ART_CUT, ART_VERSION, ENV_LIBRARY, RunError
from ..base.json_classes import plain
from .manifest import Manifest, Target
from .tarball import Artifact

RUNTIME, CUDA_RUNTIME = "libtvm_runtime.so", "libtvm_runtime_cuda.so"
SYMBOL = "_binary_signature_start"  # as the linker names what it takes from a file called ``signature``
SIZE = 64  # bytes of a digest in hexadecimal digits

# The keys of each part of a manifest that kernels rely on and the runner does not check again. The memory plan,
# cadences, the seed and the run's name are not among them: one library serves runs that differ in these.
PHASE = ("name", "function", "stack", "inputs", "outputs", "in_place")
LOADER = ("name", "kind", "count", "batch", "fields")
TARGET = ("name", "machine", "cpu_flags", "device")
TOOLCHAIN = ("tvm", "tvm_ffi")


def of(manifest: Manifest, target: Target) -> str:
    """The digest that the library of ``target`` must hold: over all ports in order, the tensors of a checkpoint, the
    ranges of fields, the numbers of trips and microbatches, and the machine."""
    record = plain(manifest)
    trusted = {
        "toolchain": _select(record["toolchain"], TOOLCHAIN),
        "microbatches": manifest.run.microbatches,
        "parameters": record["parameters"],
        "optimizer": record["optimizer"],
        "phases": [_select(phase, PHASE) for phase in record["phases"]],
        "trips": manifest.step.trips,
        "generated": manifest.step.generated,
        "passes": [_select(entry, ("name", "loader", "generate")) for entry in record["step"]["passes"]],
        "stages": [stage.loader for stage in manifest.step.stages],
        "loaders": [_select(loader, LOADER) for loader in record["loaders"]],
        "target": _select(plain(target), TARGET),
    }
    return hashlib.sha256(canonical_json.dumps(plain(trusted))).hexdigest()


def _select(record: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: record[key] for key in keys}


def checked(artifact: Artifact, target: Target) -> bytes:
    """The bytes of the target's library, complete and with the manifest's signature.

    E-ART-002 if they are truncated, E-ENV-011 if they are no library, E-ART-009 if it is another manifest's library.
    """
    data = _read_whole(artifact, target.library)
    signature = elf.constant(data, SYMBOL, SIZE)
    if signature != of(artifact.manifest, target).encode():
        what = "is of another manifest" if signature else "does not say what its phases take"
        raise RunError(ART_VERSION, f"{target.library} {what}", artifact.path, "build it again, and mix no files")
    return data


def runtime(artifact: Artifact, member: str, name: str) -> bytes:
    """The bytes of the runtime's library ``name``, whole; E-ART-009 for another one, which might be loaded already."""
    data = _read_whole(artifact, member)
    if elf.name(data) != name:
        raise RunError(ART_VERSION, f"{member} is not {name}", artifact.path, "build it again, and mix no files")
    return data


def check_kernels(artifact: Artifact, member: str) -> None:
    """E-ART-002 where compiled kernels end before their headers say: a driver is given no length of them."""
    data = artifact.read(member)
    if data.startswith(elf.MAGIC) or len(data) < elf.HEADER:
        _check_whole(artifact, member, data)


def _read_whole(artifact: Artifact, member: str) -> bytes:
    """The bytes of a library that ends where its headers say; E-ART-002 or E-ENV-011."""
    data = artifact.read(member)
    _check_whole(artifact, member, data)
    return data


def _check_whole(artifact: Artifact, member: str, data: bytes) -> None:
    try:
        elf.check_whole(data)
    except elf.Cut as fault:
        raise RunError(ART_CUT, f"{member} is cut short: {fault}", artifact.path) from None
    except elf.NotElf as fault:
        what = f"the library cannot be loaded: {member} is {fault}"
        raise RunError(ENV_LIBRARY, what, artifact.path, "copy or build it again") from None
