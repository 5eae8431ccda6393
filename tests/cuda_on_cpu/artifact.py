"""Artifacts for a GPU, built without NVIDIA's compiler and run without a GPU: the kernels in them are this CPU's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from . import compile as cuda

REPO = Path(__file__).parents[2]
TEXT = b"\n// CUDA text\n"  # what it was made of stands behind it, which nobody loads


def kernels(source: str, arch: str, names: tuple[str, ...]) -> tuple[bytes, float]:
    """What stands for sexpgpu.build.compile_kernel: the fake driver's cubin or PTX, and the seconds it took."""
    started = time.monotonic()
    head = f"/PTX {arch}\n" if arch.startswith("compute_") else f"CUBIN {arch}\n"
    data = head.encode() + cuda.library(source) + TEXT + source.encode()
    missing = set(names) - {kernel.name for kernel in cuda.kernels(source)}
    assert not missing, missing
    return data, time.monotonic() - started


def image(source: str, arch: str, names: tuple[str, ...]) -> bytes:
    """What stands for schedules.cubin.kernels."""
    return kernels(source, arch, names)[0]


def recompiled(image: bytes, mode: str) -> bytes:
    """A fake cubin or PTX compiled anew, in a mode of compile.MODES."""
    head, _, _ = image.partition(b"\n")
    return head + b"\n" + cuda.library(text(image), mode)


def text(image: bytes) -> str:
    """The CUDA text that a fake cubin or PTX was made of."""
    return image.rpartition(TEXT)[2].decode()


def preloaded(**fake: object) -> dict[str, str]:
    """``environment`` for a process that imports TVM, whose wheel finds NVIDIA's own library beside it."""
    return {**environment(**fake), "LD_PRELOAD": str(cuda.driver() / cuda.WHEEL / "libcudart.so.13")}


def environment(**fake: object) -> dict[str, str]:
    """The environment of a process that finds the fake driver; ``devices=2`` is FAKE_CUDA_DEVICES=2."""
    folder = cuda.driver()
    paths = [str(folder / "site"), str(REPO), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        **{f"FAKE_CUDA_{name.upper()}": str(value) for name, value in fake.items()},
    }


def build(run: Path, output: Path, *more: str, target: str = "nvidia-h100") -> Path:
    """The artifact of a run file. The command line in a process of its own, with another compiler of kernels."""
    command = [sys.executable, "-m", __name__, "build", run, "-o", output, "--target", target, "--jobs", 1, *more]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=REPO)
    assert done.returncode == 0, done.stderr
    return output


def run(artifact: Path, *arguments: object, **fake: object) -> subprocess.CompletedProcess[str]:
    """The runner on the fake device."""
    command = [sys.executable, "-m", "artifacts.run", str(artifact), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment(**fake))


def main() -> int:
    """The command line ``sexpgpu`` with the kernels of this module."""
    from schedules.cuda import cubin
    from sexpgpu.build import compile, targets
    from sexpgpu.cli.main import main

    ours = sys.modules["tests.cuda_on_cpu.artifact"]
    compile.compile_kernel, cubin.kernels = ours.kernels, ours.image
    targets.need_cuda = lambda targets: None
    return main(sys.argv[1:])


if __name__ == "__main__":
    import tests.cuda_on_cpu.artifact as named  # workers look for the function there

    sys.exit(named.main())
