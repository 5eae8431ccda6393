"""Memory in pages of 2 MiB: which areas, when, and that the kernel makes them where it can."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from artifacts import run
from artifacts.device import huge_pages
from artifacts.device.interface import HostDevice
from artifacts.format import tarball
from tests.artifacts import toy
from tests.artifacts.support import environment

MIB = 2**20


def area(start: int, size: int, full: int, words: str) -> list[str]:
    """What smaps says of ``size`` MiB from ``start`` MiB on, of which ``full`` are in memory."""
    return [
        f"{start * MIB:x}-{(start + size) * MIB:x} {words}\n",
        f"Size: {size * 1024:>20} kB\n",
        f"Rss: {full * 1024:>20} kB\n",
        "VmFlags: rd wr mr mw me ac sd\n",
    ]


@pytest.mark.parametrize(
    "start, size, full, words, expected",
    [
        (64, 8, 8, "rw-p 00000000 00:00 0", [(64, 72)]),
        (64, 8, 6, "rw-p 00000000 00:00 0     [heap]", [(64, 72)]),
        (65, 8, 8, "rw-p 00000000 00:00 0", [(66, 72)]),  # whole pages of 2 MiB
        (65, 2, 2, "rw-p 00000000 00:00 0", []),
        (64, 8, 5, "rw-p 00000000 00:00 0", []),  # a thread's stack, say
        (64, 8, 8, "rw-p 00000000 00:00 0     [stack]", []),
        (64, 8, 8, "rw-p 00000000 fe:00 123   /data/x.npy", []),
        (64, 8, 8, "rw-s 00000000 00:00 0", []),
        (64, 8, 8, "r--p 00000000 00:00 0", []),
    ],
)
def test_areas_that_are_the_process_s_own_and_full(
    start: int, size: int, full: int, words: str, expected: list[tuple[int, int]]
) -> None:
    lines = iter([*area(1, 1, 1, "r-xp 00000000 fe:00 9   /bin/x"), *area(start, size, full, words)])
    assert [(a // MIB, b // MIB) for a, b in huge_pages._areas(lines)] == expected


MADE = """
import mmap
from artifacts.device import huge_pages as pages
memory = mmap.mmap(-1, 32 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
memory.write(b"x" * (32 << 20))
memory.madvise(mmap.MADV_HUGEPAGE)
joined = pages.collapse()
with open("/proc/self/smaps") as file:
    print(joined >> 20, sum(int(line.split()[1]) for line in file if line.startswith("AnonHugePages")) >> 10)
"""


def has_huge_pages() -> bool:
    """Whether the kernel of this machine joins pages when it is asked."""
    version = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2]))
    enabled = Path(huge_pages.ENABLED)
    return version >= (6, 1) and enabled.exists() and "[never]" not in enabled.read_text()


@pytest.mark.skipif(not has_huge_pages(), reason="needs Linux 6.1, and large pages that are not turned off")
def test_the_kernel_joins_what_it_is_asked_to() -> None:
    done = subprocess.run([sys.executable, "-c", MADE], env=environment(), capture_output=True, text=True, check=True)
    joined, large = map(int, done.stdout.split())
    assert joined >= 30 and large >= 30


def test_where_large_pages_are_turned_off_nothing_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "enabled").write_text("always madvise [never]\n")
    monkeypatch.setattr(huge_pages, "ENABLED", str(tmp_path / "enabled"))
    monkeypatch.setattr(huge_pages, "_areas", None)  # would be called next
    assert huge_pages.collapse() == 0


def test_a_machine_without_them_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "ENABLED", "/nowhere")
    assert huge_pages.collapse() == 0


@pytest.mark.parametrize("resumed", [False, True])
def test_a_run_settles_once_after_its_first_step(tmp_path: Path, resumed: bool) -> None:
    toy.write_data(tmp_path)
    artifact, out, seen = toy.write(tmp_path), tmp_path / "out", []

    class Watched(HostDevice):
        def phase(self, name: str):
            call = super().phase(name)

            def noted(inputs):
                seen.append(name)
                return call(inputs)

            return noted

        def step_finished(self) -> None:
            seen.append("settled")

    def device(artifact: tarball.Artifact, threads: int | None) -> HostDevice:
        return Watched(artifact.manifest, toy.device(artifact, threads)._functions)

    def go(*more: str) -> int:
        return run.main([artifact, "--out", str(out), "--data", str(tmp_path), "-q", *more], device=device)

    assert go("--steps", "2") == 0
    if resumed:
        seen.clear()
        assert go("--resume", "--steps", "6") == 0
    updates = [name for name in seen if name in ("update", "settled")]
    assert updates[:2] == ["update", "settled"] and updates.count("settled") == 1 and updates.count("update") > 1
