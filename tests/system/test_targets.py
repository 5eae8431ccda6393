"""One artifact for all levels of an architecture: what its libraries have in common, and that their bits are equal."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from artifacts.device import cpu
from artifacts.format import tarball
from tests.conftest import EXAMPLES, gone
from tests.system.test_reproducible import digest, runner

V3, V4 = "cpu-x86-64-v3", "cpu-x86-64-v4"
HAS_V4 = "avx512vl" in cpu.cpu_flags()
pytestmark = [
    pytest.mark.build,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 is the architecture with two levels"),
]
TINY = EXAMPLES / "tiny-generate/run.sx"


def weights(artifact: Path, out: Path, target: str) -> tuple[str, str]:
    done = subprocess.run(runner(artifact, out, "--target", target), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return digest(out), digest(out, "optim.safetensors")


def test_the_default_artifact_has_a_library_a_level_the_best_first(tiny: Path) -> None:
    with tarball.open(str(tiny)) as artifact:
        manifest = artifact.manifest
        assert [(t.name, t.library) for t in manifest.targets] == [(n, f"code/{n}.so") for n in (V4, V3)]
        wide, narrow = (artifact.read(t.library) for t in manifest.targets)
    assert wide[:4] == narrow[:4] == b"\x7fELF" and wide != narrow
    for level, name in ((manifest.targets[0], V4), (manifest.targets[1], V3)):
        assert cpu.choose(manifest, "x86_64", frozenset(level.cpu_flags)).name == name


def test_the_report_has_the_phases_of_a_step_and_a_rule_for_each_kernel(tiny: Path) -> None:
    with tarball.open(str(tiny)) as artifact:
        text, k = artifact.read("report.txt").decode(), max(p.stack for p in artifact.manifest.phases)
    lowered = text[text.index(f"lowered for {V4} and {V3}: ") :].splitlines()
    heads = ["calls", *["kernels"] * 2, "Mflop", "moved", "MiB", "ms", "v4", "ms", "v3", "memory", "MiB"]
    assert lowered[1].split() == heads
    at = "" if k == 1 else f"*{k}"  # what --stack auto found to cost least
    first = "generate" if k == 1 else "generate stacked"
    rows = {line[: len(first)].strip(): line[len(first) :].split() for line in lowered[3:6]}
    rows |= {line.split()[0]: line.split()[1:] for line in lowered[4 : lowered.index("")]}
    calls = [rows[n][0] for n in (first, f"generate.step{at}", f"train{at}", "update", "step", "init", "eval.held-out")]
    assert calls == [*map(str, (16 // k, 12 // k, 2 // k, 1, 18 // k + 1)), "once", "pass"]
    launches = [int(rows[first][1]), *(int(rows[n][2]) for n in (f"train{at}", "update"))]
    assert int(rows["step"][1]) == sum(launches) > 90 < int(rows[f"train{at}"][1]) * 2 // k == launches[1]
    rules = [line.split()[0] for line in lowered if re.match(r"  [a-zA-Z-]+ +\d+  \d", line)]
    assert {"matmul", "elementwise", "row-reduction"} <= set(rules) and "NONE" not in rules
    assert "no schedule rule" not in text and max(map(len, text.splitlines())) <= 100


# The schedules for sixteen lanes in instructions of eight: what a machine without AVX-512 can hold of that target. It
# has to be built in one process, which is the one that is told so.
IN_V3 = f"""
import attrs, sys, schedules
v3, v4 = (schedules.TARGETS[name] for name in ("{V3}", "{V4}"))
schedules.TARGETS[v4.name] = attrs.evolve(v4, tvm=v3.tvm, cpu_flags=v3.cpu_flags)
from sexpgpu.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_the_schedules_of_both_levels_leave_the_same_weights(tiny: Path, tmp_path: Path) -> None:
    tar = tmp_path / "wide.tar"
    command = [sys.executable, "-c", IN_V3, "build", str(TINY), "-o", str(tar), "--target", V4, "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with tarball.open(str(tar)) as wide, tarball.open(str(tiny)) as both:
        assert [t.name for t in wide.manifest.targets] == [V4]
        assert wide.read(f"code/{V4}.so") != both.read(f"code/{V3}.so")
    assert weights(tar, tmp_path / "wide", V4) == weights(tiny, tmp_path / "narrow", V3)


@pytest.mark.skipif(not HAS_V4, reason="this CPU has no AVX-512")
def test_both_libraries_leave_the_same_weights(tiny: Path, tmp_path: Path) -> None:
    assert weights(tiny, tmp_path / "wide", V4) == weights(tiny, tmp_path / "narrow", V3)


@pytest.mark.skipif(HAS_V4, reason="this CPU has AVX-512")
def test_a_library_that_this_machine_cannot_run_is_refused(tiny: Path, tmp_path: Path) -> None:
    done = subprocess.run(runner(tiny, tmp_path / "o", "--target", V4), capture_output=True, text=True)
    assert done.returncode == 3 and done.stderr.startswith("error[E-TARGET-010]: ") and done.stderr.count("\n") == 1
    assert "avx512vl" in done.stderr


def children(pid: int) -> list[int]:
    return [int(p) for task in Path(f"/proc/{pid}/task").glob("*") for p in (task / "children").read_text().split()]


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder for temporary files whose path is short enough for a socket in it."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR2, signal.SIGXCPU])
def test_a_signal_ends_a_build_and_all_of_its_processes(
    tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """``kill`` and a closed terminal tell this process alone, Ctrl-C all of them."""
    monkeypatch.setenv("TMPDIR", str(short))
    command = [sys.executable, "-m", "sexpgpu", "build", str(TINY), "-o", str(tmp_path / "x.tar"), "--jobs", "2"]
    build = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    workers: list[int] = []
    while len(workers) < 2 and build.poll() is None:  # until the server has forked both
        time.sleep(0.05)
        workers = [p for server in children(build.pid) for p in children(server)]
    assert build.poll() is None
    os.killpg(build.pid, number) if number == signal.SIGINT else build.send_signal(number)
    out, err = build.communicate(timeout=60)
    assert (build.returncode, out, err) == (128 + number, "", f"stopped by {number.name}\n")
    assert not list(tmp_path.iterdir()) and not list(short.iterdir())
    assert gone(workers)


def test_the_runner_knows_the_cards_that_a_build_has_names_for() -> None:
    import schedules
    from artifacts.device import interface

    named = {name: t.gpu.capability for name, t in schedules.TARGETS.items() if t.gpu and name.startswith("nvidia-")}
    assert named == interface.GPU_NAMES
