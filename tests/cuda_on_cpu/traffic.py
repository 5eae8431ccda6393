"""What the kernels of an artifact ask of memory (counts.h): the sectors of global memory and the turns of the banks of
shared memory that the requests of their warps take, beside the least that the same bytes could take.

python -m tests.cuda_on_cpu.traffic RUN.sx GPU.tar [--sites N] [--only TEXT]: the kernels whose names have TEXT in them,
each run once on drawn numbers, those that waste most first, each with its N worst accesses. Of a launch eight blocks
are looked at, spread over it, and stand for all. A process that has the fake driver preloaded starts itself."""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs

from . import artifact
from . import compile as cuda

FAKE = "SEXPGPU_TRAFFIC"  # set where the fake driver is loaded


class Row(ctypes.Structure):
    """counts.h's Count."""

    _fields_ = (("kernel", ctypes.c_char_p), ("line", ctypes.c_int), ("shared", ctypes.c_bool),
                ("write", ctypes.c_bool), ("bytes", ctypes.c_uint),
                *((name, ctypes.c_double) for name in ("requests", "moved", "units", "least")))  # fmt: skip


@attrs.frozen
class Access:
    """A load or store of a kernel's text, of all warps.

    ``text``      its line
    ``bytes``     of a thread
    ``requests``  of warps
    ``moved``     different bytes of each request, summed
    ``units``     sectors of 32 bytes, or of shared memory turns of the banks
    ``least``     such, without waste
    """

    kernel: str
    text: str
    shared: bool
    write: bool
    bytes: int
    requests: float
    moved: float
    units: float
    least: float

    @property
    def wasted(self) -> float:
        """128 bytes each that pass a multiprocessor's cache for nothing: a turn of the banks, or four sectors."""
        return (self.units - self.least) / (1 if self.shared else 4)


@attrs.frozen
class Total:
    """All accesses of a kernel, those that waste most first."""

    kernel: str
    accesses: tuple[Access, ...]

    @property
    def wasted(self) -> float:
        return sum(a.wasted for a in self.accesses)

    def moved(self, shared: bool = False) -> float:
        """Bytes."""
        return sum(a.moved for a in self.accesses if a.shared == shared)

    def ratio(self, shared: bool) -> float:
        """Sectors, or turns of the banks, over the least; 1 if there are none."""
        of = [a for a in self.accesses if a.shared == shared]
        return sum(a.units for a in of) / sum(a.least for a in of) if of else 1.0


def counted(library: Any, sources: Iterable[str]) -> list[Total]:
    """What the launches of "counted" kernels of the CUDA texts ``sources`` asked since the last call."""
    room = 1 << 16
    rows = (Row * room)()
    library.cuda_on_cpu_counts.restype = ctypes.c_ulong
    n = library.cuda_on_cpu_counts(rows, ctypes.c_ulong(room))
    assert n <= room, n
    lines: dict[str, list[str]] = {}
    for source in sources:
        lines |= dict.fromkeys((k.name for k in cuda.kernels(source)), cuda.translated(source).splitlines())
    found: dict[tuple[Any, ...], list[float]] = {}
    for row in rows[:n]:  # copies that a compiler made of one access are one again
        name = row.kernel.decode()
        key = (name, lines[name][row.line - 1].strip() if row.line else "", row.shared, row.write, row.bytes)
        sums = found.setdefault(key, [0.0] * 4)
        for i, value in enumerate((row.requests, row.moved, row.units, row.least)):
            sums[i] += value
    return _totals([Access(*key, *sums) for key, sums in found.items()])


def _totals(accesses: Sequence[Access]) -> list[Total]:
    by_kernel: dict[str, list[Access]] = {}
    for access in accesses:
        by_kernel.setdefault(access.kernel, []).append(access)
    made = [Total(k, tuple(sorted(a, key=lambda x: (-x.wasted, -x.units)))) for k, a in by_kernel.items()]
    return sorted(made, key=lambda t: (-t.wasted, t.kernel))


def table(totals: Sequence[Total], sites: int) -> str:
    """For people: MiB that warps ask of global memory, sectors over the least, MiB of shared memory, turns of the banks
    over the least, and MiB that pass for nothing; below each its ``sites`` worst accesses."""
    lines = [f"{'global':>9} {'sectors':>8} {'shared':>9} {'banks':>7} {'wasted':>9}  kernel"]
    for t in totals:
        figures = (t.moved() / 2**20, t.ratio(False), t.moved(True) / 2**20, t.ratio(True), t.wasted / 2**13)
        lines.append("{:9.2f} {:7.2f}x {:9.2f} {:6.2f}x {:9.2f}  ".format(*figures) + t.kernel)
        for a in [a for a in t.accesses if a.wasted > 0][:sites]:
            what = f"{'shared' if a.shared else 'global'} {'store' if a.write else 'load'} of {a.bytes}"
            lines.append(f"{'':12}{what:20} {a.requests:12.0f} x {a.units / a.least:5.2f}  {a.text[:150]}")
    return "\n".join(lines)


def measured(run: str, path: str, only: str) -> list[Total]:
    """Of the kernels of an artifact of ``run``, in a process that has the fake driver."""
    import tvm
    import tvm_ffi

    from artifacts.device.cuda import _kernel_server
    from artifacts.format import tarball

    from .compare_kernels import called, draws, programs

    texts: list[str] = []
    with tarball.open(path) as opened:
        target = next(t for t in opened.manifest.targets if t.device == "cuda")
        served = _kernel_server(opened, target.archs[0])

        def serve(key: str) -> bytes:
            texts.append(artifact.text(served(key)))
            return artifact.recompiled(served(key), "counted")

        tvm_ffi.register_global_func("tvm_callback_cuda_compile", serve, override=True)
        file = Path(f"/dev/shm/traffic-{os.getpid()}.so")
        file.write_bytes(opened.read(target.library))
        library = tvm_ffi.load_module(str(file))
        file.unlink()
        for name, kinds in programs(run, opened.manifest.degree).items():
            if only in name:
                arrays = [draws(name, n, *kind) for n, kind in enumerate(kinds)]
                called(library.imports[0][name], arrays, tvm.cuda())
    return counted(ctypes.CDLL("libcuda.so.1"), texts)


def main() -> int:
    if FAKE not in os.environ:
        command = [sys.executable, "-m", __spec__.name, *sys.argv[1:]]
        return subprocess.run(command, env={**artifact.preloaded(alignment=256), FAKE: "1"}).returncode
    parser = argparse.ArgumentParser(prog="traffic")
    parser.add_argument("run")
    parser.add_argument("artifact")
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    print(table(measured(given.run, given.artifact, given.only), given.sites))
    return 0


if __name__ == "__main__":
    sys.exit(main())
