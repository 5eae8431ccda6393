"""Artifacts for GPUs, built on a machine that need not have one: what they hold, and that their bytes are one."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("tvm", reason="needs the extra `build`")

from artifacts.format import tarball
from schedules.cuda import nvrtc
from tests.conftest import EXAMPLES, build, sexpgpu
from tests.support import run_text

RUNS = Path(__file__).parents[1] / "runs"
ROOT = EXAMPLES.parent
pytestmark = [
    pytest.mark.build,
    pytest.mark.skipif(nvrtc.missing_package() is not None, reason="needs the extra `cuda`"),
]
NAMES = "cpu-x86-64-v3,nvidia-h100,cuda-sm_75,nvidia-a100"


@pytest.fixture(scope="module")
def cpu_and_gpu_artifact(shared: Callable[..., Path]) -> Path:
    """An artifact for a CPU and for cards of both levels."""

    return shared("several.tar", lambda output: build(RUNS / "long-sum.sx", output, target=NAMES))


def test_cards_of_a_level_share_a_library_and_each_has_its_kernels(cpu_and_gpu_artifact: Path) -> None:
    with tarball.open(str(cpu_and_gpu_artifact)) as artifact:
        targets = {t.name: t for t in artifact.manifest.targets}
        assert {n: (t.device, t.archs) for n, t in targets.items()} == {
            "cuda-sm_80": ("cuda", ("sm_90", "sm_80", "compute_80")),
            "cuda-sm_75": ("cuda", ("sm_75", "compute_75")),
            "cpu-x86-64-v3": ("cpu", ()),
        }
        assert artifact.manifest.runtime.cuda == "runtime/libtvm_runtime_cuda.so"
        members = {f.path for f in artifact.manifest.files}
        held = {n: keys(artifact.read(t.library)) for n, t in targets.items()}
        report = artifact.read("report.txt").decode()
    assert held["cpu-x86-64-v3"] == set() and held["cuda-sm_80"] and held["cuda-sm_75"]
    endings = {"sm_90": "cubin", "sm_80": "cubin", "sm_75": "cubin", "compute_80": "ptx", "compute_75": "ptx"}
    wanted = {f"kernels/{key}.{a}.{endings[a]}" for n, t in targets.items() for key in held[n] for a in t.archs}
    assert {m for m in members if m.startswith("kernels/")} == wanted
    assert re.search(r"^cuda-sm_80: \d+ kernels of \d+ CUDA texts .*\n  sm_90 [\d,]+ bytes, sm_80 ", report, re.M)
    assert max(map(len, report.splitlines())) <= 100
    rows = re.findall(r"^    (\S+) +(\d+) calls? of (\d+) launch(?:es)?$", report, re.M)
    said = re.findall(r"^  (\d+) launches a step in (\d+) calls, a CUDA graph each$", report, re.M)
    for n, (launches, calls) in enumerate(said):
        of = rows[n * len(rows) // len(said) : (n + 1) * len(rows) // len(said)]
        assert {"train", "update"} <= {name.partition("*")[0] for name, *_ in of}
        assert sum(int(c) for _, c, _ in of) == int(calls)
        assert sum(int(c) * int(k) for _, c, k in of) == int(launches)
    assert len(said) == 2


def keys(library: bytes) -> set[str]:
    return {key.decode() for key in re.findall(rb"sexpgpu-kernels:([0-9a-f]{64})", library)}


def test_nothing_of_the_text_the_machine_or_its_folders_is_in_it(cpu_and_gpu_artifact: Path) -> None:
    with tarball.open(str(cpu_and_gpu_artifact)) as artifact:
        paths = [f.path for f in artifact.manifest.files]
        made = {path: artifact.read(path) for path in paths if path.startswith(("code/", "kernels/"))}
    for path, data in made.items():
        for word in (
            b"__global__",
            b"blockIdx.x *",
            b"debug_line",
            b"kernels.cu",
            sys.prefix.encode(),
            b"/tmp",
            b"/home",
        ):
            assert word not in data, (path, word)
        assert data.startswith(b"/" if path.endswith(".ptx") else b"\x7fELF")


# A build that starts processes however little there is to do, and that compiles kernels only where it may.
BUILD = """
import sys
from schedules.cuda import nvrtc
from sexpgpu.build import compile
from sexpgpu.cli.main import main
compile.WORTH_IT = 0
def forbidden(*args):
    raise AssertionError("it should have been found")
if sys.argv.pop(1) == "warm":
    nvrtc.compile = forbidden
sys.exit(main(sys.argv[1:]))
"""


def test_builds_in_other_surroundings_and_with_any_cache_have_one_hash(tmp_path: Path) -> None:
    cache, digests = tmp_path / "cache", set()
    surroundings = (
        ("cold", "a", {"PYTHONHASHSEED": "1", "XDG_CACHE_HOME": str(cache)}, "2"),
        ("cold", "a longer name ö", {"PYTHONHASHSEED": "99", "XDG_CACHE_HOME": "/nonexistent", "LC_ALL": "C"}, "1"),
        ("warm", "b", {"PYTHONHASHSEED": "3", "XDG_CACHE_HOME": str(cache), "HOME": "/nonexistent"}, "1"),
    )
    for state, name, more, jobs in surroundings:
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(RUNS / "long-sum.sx", folder)
        env = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT), **more}
        options = ["-o", "x.tar", "--target", "nvidia-h100", "--jobs", jobs]
        command = [sys.executable, "-c", BUILD, state, "build", "long-sum.sx", *options]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        digests.add(hashlib.sha256((folder / "x.tar").read_bytes()).hexdigest())
    assert len(digests) == 1


def test_a_run_that_its_card_has_no_memory_for_is_refused(tmp_path: Path) -> None:
    run, output = tmp_path / "run.sx", tmp_path / "run.tar"
    run.write_text(run_text(model="(defmodel m (x) (linear (linear x :wide 600000000) :out 2))"))
    done = sexpgpu("build", run, "-o", output, "--target", "nvidia-h100,nvidia-l4", "--dump", tmp_path / "dump")
    assert done.returncode == 3 and not output.exists() and not (tmp_path / "dump").exists()
    start = rf"error\[E-MEM-001\]: {run}: the run takes about [34]\d\.\d GiB of memory, nvidia-l4 has 24.0 GiB; "
    assert re.match(start, done.stderr)


BROKEN = """
import sys, schedules
from schedules.rule import Scheduled
real = schedules.first
def first(func, target):
    mine = target.gpu and "sqrt" in str(func.attrs["global_symbol"])
    return Scheduled(None, "", ("maps: ValueError: odd",)) if mine else real(func, target)
schedules.first = first
from sexpgpu.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_kernel_that_no_rule_binds_to_threads_fails_the_build(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BROKEN, "build", str(RUNS / "long-sum.sx"), "-o", str(tmp_path / "x.tar")]
    done = subprocess.run(
        [*command, "--target", "cpu-x86-64-v3,nvidia-l4", "--jobs", "1"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, "") and not (tmp_path / "x.tar").exists()
    start = "error[E-TARGET-005]: no schedule rule of cuda-sm_80 bound to threads: "
    assert done.stderr.startswith(start) and done.stderr.count("\n") == 1
    assert re.search(r"\w*sqrt\w* \(maps: ValueError: odd\)", done.stderr)
