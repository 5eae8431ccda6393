"""Checks before the first step that the machine has the memory that a run takes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from attrs import frozen

from ..base.errors import MEM_MACHINE, RunError
from ..base.safetensors_io import DTYPES
from ..data.loaders import MAX_READY
from ..format.manifest import Manifest
from . import control_groups
from . import threads as cores

MAX_QUEUED_BATCHES = MAX_READY + 1  # batches of a training loader: those ready and one being made, beside those in use
OVERHEAD = 64 * 2**20  # bytes of everything else: Python, NumPy, the runtime, the library; measured: 50 to 55 MiB
GPU_HOST_BYTES = 256 * 2**20  # host memory of the GPU's driver: an estimate, no GPU was there to measure
MAPPED = "data in a directory of .npy files are mapped, and take no memory"
HINT = "a smaller :batch with more :microbatches, or fewer --threads, takes less"


@frozen
class Wanted:
    """Bytes of a run: the tensors of its phases, its threads' workspaces, the batches made ready for it, and its
    parameters and optimizer entries once more, when a checkpoint is read or written."""

    device: int
    threads: int
    batches: int
    checkpoint: int

    @property
    def total(self) -> int:
        return self.device + self.threads + self.batches + self.checkpoint


def wanted(manifest: Manifest, threads: int) -> Wanted:
    """The plan of a run on ``threads`` threads. The data of its loaders and OVERHEAD are beside it."""
    loaders = [manifest.loader(name) for name in manifest.training_loaders()]
    in_use = 1 if manifest.degree == 1 else 2 * manifest.degree  # several are put one behind the other first
    batch_bytes = sum(entry.batch * nbytes(f.shape, f.dtype) for entry in loaders for f in entry.fields)
    batches = (MAX_QUEUED_BATCHES + in_use) * batch_bytes
    device, thread = manifest.memory.device_bytes, manifest.memory.thread_bytes
    return Wanted(device, threads * thread, batches, checkpoint_bytes(manifest))


def checkpoint_bytes(manifest: Manifest) -> int:
    """Of the tensors of a checkpoint."""
    return sum(nbytes(t.shape, t.dtype) for t in (*manifest.parameters, *manifest.optimizer))


def nbytes(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of a dense tensor."""
    return math.prod(shape) * DTYPES[dtype][2]


def check(manifest: Manifest, threads: int | None, where: str, available: int | None = None, data: int = 0) -> None:
    """E-MEM-010, with want and have and the largest phase, unless the machine has the memory that the run takes.

    available: bytes; None: what ``free`` says
    data:      bytes that will be read into memory
    """
    have = free() if available is None else available
    want = wanted(manifest, threads or cores.available()).total + OVERHEAD + data
    if have is not None and want > have:
        raise _short(want, have, where, HINT, data, f"; its largest phase is {largest_phase(manifest)}")


def check_host(manifest: Manifest, where: str, available: int | None = None, data: int = 0) -> None:
    """``check`` for a run whose phases are on a GPU: batches, checkpoints and data are on the host all the same."""
    have, plan = free() if available is None else available, wanted(manifest, 0)
    want = plan.batches + plan.checkpoint + OVERHEAD + GPU_HOST_BYTES + data
    if have is not None and want > have:
        raise _short(want, have, where, "", data, "")


def _short(want: int, have: int, where: str, hint: str, data: int, more: str) -> RunError:
    hint = MAPPED if 2 * data > want else hint
    part = f", {size(data)} of them for data" if data else ""
    what = f"the run takes {size(want)} of memory{part}, {size(have)} are free{more}"
    return RunError(MEM_MACHINE, what, where, hint)


def largest_phase(manifest: Manifest) -> str:
    """``train with 1.5 GiB``"""
    largest = max(manifest.phases, key=lambda p: p.memory_bytes)
    return f"{largest.name} with {size(largest.memory_bytes)}"


def free(proc: str = control_groups.PROC, usual: str = control_groups.USUAL) -> int | None:
    """Bytes that this process may still take: the machine's, or what its control groups leave it, whichever is less;
    None where the system tells neither."""
    limits = [*_machine(f"{proc}/meminfo"), *_groups(proc, usual)]
    return min(limits, default=None)


def _machine(path: str) -> Iterator[int]:
    """What the kernel takes for available without swapping."""
    for line in control_groups.lines(path):
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _groups(proc: str, usual: str) -> Iterator[int]:
    """Of each control group of this process, and of each that it is in, the limit less what is in use. Cached files
    that were not read lately are in use, but make way."""
    for version, folder in control_groups.folders("memory", proc, usual):
        if version == 1:
            yield from _group(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            yield from _group(folder, "memory.max", "memory.current", "inactive_file")


def _group(folder: str, limit: str, used: str, cached: str) -> Iterator[int]:
    limits, uses = control_groups.lines(f"{folder}/{limit}"), control_groups.lines(f"{folder}/{used}")
    if not limits or not uses or not limits[0].isdigit():  # "max", or a group without a limit of its own
        return
    caches = [line.split()[1] for line in control_groups.lines(f"{folder}/memory.stat") if line.split()[:1] == [cached]]
    yield max(0, int(limits[0]) - int(uses[0]) + sum(map(int, caches)))


def size(n: int) -> str:
    """``n`` bytes in the unit that reads best."""
    value = float(n)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{n} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
