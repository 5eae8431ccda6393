"""The memory plan of an artifact is what its run takes, and a run that does not fit is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from artifacts.device import memory_check
from artifacts.format import tarball
from artifacts.format.manifest import Manifest
from tests.conftest import EXAMPLES, ONE, build, called
from tests.support import run_text

pytestmark = pytest.mark.build

STEPS = 2
# Beside the plan, once the data is read and the library loaded: modules that are imported later (those of a checkpoint,
# some 1.5 MiB), stacks and arenas of the threads, and Python's own objects. At most 1.7 MiB was seen.
OVERHEAD = 4 * 2**20
USED = 0.7  # of the plan, at least: 1.0 was seen; what is planned for a checkpoint is not all used by a save
# A run of the command line, which says by how much the process has grown since its library was loaded. HWM is the most
# that was resident; writing 5 sets it back to what is resident now.
MEASURE = """
import json, pathlib, sys
from artifacts import run, session
me = pathlib.Path("/proc/self")
def kib(key):
    return int(next(line.split()[1] for line in (me / "status").read_text().splitlines() if line.startswith(key)))
def device(artifact, threads):
    made = session.opened(artifact, threads)
    (me / "clear_refs").write_text("5")
    device.before = kib("VmRSS:")
    return made
assert run.main(sys.argv[1:], device) == 0
print(json.dumps({"growth": 1024 * (kib("VmHWM:") - device.before), "all": 1024 * kib("VmHWM:")}))
"""


@pytest.fixture(scope="session")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(EXAMPLES / "route-planner/run.sx", tmp_path_factory.mktemp("planner") / "planner.tar")


def manifest(artifact: Path) -> Manifest:
    with tarball.open(str(artifact)) as opened:
        return opened.manifest


def measure(artifact: Path, data: Path, out: Path, threads: int, *more: str) -> dict[str, int]:
    options = ("--out", out, "--data", data, "--threads", threads, "--steps", STEPS, "-q", *more)
    done = subprocess.run([sys.executable, "-c", MEASURE, artifact, *map(str, options)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "example, fixture, threads",  # two wait for each other and for the machine: short runs have them
    [("tiny-generate", "tiny", 2), ("characters", "characters", 1), ("route-planner", "planner", 2)],
)
def test_a_run_takes_what_is_planned(
    example: str, fixture: str, threads: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    artifact = request.getfixturevalue(fixture)
    plan = memory_check.wanted(manifest(artifact), threads).total
    seen = measure(artifact, EXAMPLES / example, tmp_path / "out", threads)
    assert USED * plan <= seen["growth"] <= plan + OVERHEAD, (seen, plan)
    assert seen["all"] <= plan + memory_check.OVERHEAD
    again = measure(artifact, EXAMPLES / example, tmp_path / "out", threads, "--resume", "--steps", str(STEPS + 1))
    assert again["growth"] <= plan + OVERHEAD, (again, plan)


def test_the_plan_names_its_phases(characters: Path) -> None:
    """What explain tells of the graphs alone is near what was compiled."""
    made = manifest(characters)
    kept, phases = made.memory, {p.name: p.memory_bytes for p in made.phases}
    assert kept.train_bytes == phases["train"] == max(phases.values())
    assert kept.generation_bytes == max(n for name, n in phases.items() if name.startswith("generate."))
    held = kept.parameters_bytes + kept.optimizer_bytes + kept.gradients_bytes
    assert held + kept.train_bytes <= kept.device_bytes <= held + sum(phases.values()) + 2 * kept.generation_bytes
    text = called("inspect", characters).stdout
    assert "generation  4.1 MiB" in text and "in all" in text


def test_a_run_over_the_limit_is_refused_at_build(tmp_path: Path) -> None:
    run, output = tmp_path / "run.sx", tmp_path / "run.tar"
    run.write_text(run_text(model="(defmodel m (x) (linear (linear x :wide 100) :out 2))"))
    command = ("build", run, "-o", output, "--target", ONE, "--memory-limit")
    early = called(*command, "4KiB", "--dump", tmp_path / "dump")
    assert early.returncode == 3 and not output.exists() and not (tmp_path / "dump").exists()
    assert early.stderr.startswith(f"error[E-MEM-001]: {run}: the run takes about ")
    assert "--memory-limit is 4.0 KiB; its largest phase is train with " in early.stderr
    late = called(*command, "60MiB")
    assert late.returncode == 3 and not output.exists()
    assert late.stderr.startswith(f"error[E-MEM-001]: {run}: the run takes 64.")
    assert called(*command, "65MiB").returncode == 0 and output.exists()
    usage = called(*command, "65MB")
    assert usage.returncode == 2 and "65MB is not a size such as 512MiB or 4GiB" in usage.stderr
