"""One hash: of an artifact however it is built, and of the trained weights however they are run."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import EXAMPLES

pytestmark = pytest.mark.build

STEPS = "30"


def digest(folder: Path, name: str = "params.safetensors") -> str:
    newest = max((folder / "checkpoints").glob("step-*"))
    return hashlib.sha256((newest / name).read_bytes()).hexdigest()


def runner(artifact: Path, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "artifacts.run", str(artifact), "--out", str(out), "--steps", STEPS, *more]


def test_two_builds_in_other_surroundings_have_one_hash(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "another place ö"
    shutil.copytree(EXAMPLES / "tiny-generate", folder)
    (tmp_path / "t").mkdir()
    env = {
        **os.environ,
        "PYTHONHASHSEED": "99",
        "TMPDIR": str(tmp_path / "t"),
        "LC_ALL": "C",
        "TZ": "Asia/Tokyo",
        "HOME": "/nonexistent",
        "PYTHONPATH": str(EXAMPLES.parent),
    }
    command = [sys.executable, "-m", "sexpgpu", "build", "run.sx", "-o", "x.tar", "--jobs", "1"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, umask=0o077)
    assert done.returncode == 0, done.stderr
    assert (folder / "x.tar").read_bytes() == tiny.read_bytes()


def test_threads_and_reruns_leave_the_same_weights(tiny: Path, tmp_path: Path) -> None:
    found = set()
    for n, threads in enumerate(("1", "2", "2")):
        done = subprocess.run(runner(tiny, tmp_path / str(n), "--threads", threads), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.add((digest(tmp_path / str(n)), digest(tmp_path / str(n), "optim.safetensors")))
    assert len(found) == 1


# A runner whose machine is busy at every other look: one of its two threads rests, and comes back.
UNSTEADY = """
import sys
from artifacts.device import cpu
from artifacts.run import main

class Crew:
    min_active = max_threads = 2
    told = 0
    def __init__(self, max_threads, tell):
        self.tell = tell
    def look(self):
        Crew.told += 1
        self.tell(1 + Crew.told % 2)

cpu.ActiveThreads = Crew
status = main(sys.argv[1:])
print(Crew.told)
sys.exit(status)
"""


def test_threads_that_come_and_go_leave_the_same_weights(tiny: Path, uninterrupted: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", UNSTEADY, *runner(tiny, tmp_path / "out", "--threads", "2", "-q")[3:]]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and int(done.stdout) > 10, done.stderr
    for name in ("params.safetensors", "optim.safetensors"):
        assert digest(tmp_path / "out", name) == digest(uninterrupted, name)


# A runner that is told to rest a thread, and says how many there then are.
RESTING = """
import sys
from artifacts.format import tarball
from artifacts.device.cpu import CpuDevice

device = CpuDevice(tarball.open(sys.argv[1]), 2)
threads = device._ffi.get_global_func("runtime.NumThreads")
found = [threads()]
for count in (1, 2):
    device._active_threads.tell(count)
    found.append(threads())
print(found)
"""


def test_the_runtime_does_as_it_is_told(tiny: Path) -> None:
    done = subprocess.run([sys.executable, "-c", RESTING, str(tiny)], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[2, 1, 2]\n", "")


# A runner that says at its end on how many cores its threads may run, its process when it began, and how many they are.
PLACES = """
import os, sys
from artifacts.run import main
before = os.sched_getaffinity(0)
status = main(sys.argv[1:])
tasks = [os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")]
print(all(cores == before for cores in tasks), len(tasks))
sys.exit(status)
"""


@pytest.mark.parametrize("threads", ["1", "2"])
def test_the_scheduler_places_threads(tiny: Path, tmp_path: Path, threads: str) -> None:
    """Bound to a core each, they would wait for whoever else is on it, and for one another at each kernel."""
    command = [sys.executable, "-c", PLACES, *runner(tiny, tmp_path / "out", "--threads", threads, "-q")[3:]]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    free, tasks = done.stdout.split()
    assert free == "True" and int(tasks) >= int(threads)


# A runner that gets SIGTERM at its Nth look for a signal: looks stand before every microbatch, trip, train and batch.
STOPPED = """
import os, signal, sys
from artifacts.signals import Stop
from artifacts.run import main
real, left = Stop.look, [int(sys.argv.pop(1))]
def look(self):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGTERM)
    real(self)
Stop.look = look
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="session")
def uninterrupted(tiny: Path, shared: Callable[..., Path]) -> Path:
    """The folder of a run that nothing stopped."""
    return shared("whole", lambda out: subprocess.run(runner(tiny, out), check=True, capture_output=True))


@pytest.mark.parametrize("look", [10, 123, 235])
def test_a_run_stopped_at_a_trip_and_resumed_leaves_the_same_weights(
    tiny: Path, uninterrupted: Path, tmp_path: Path, look: int
) -> None:
    command = [sys.executable, "-c", STOPPED, str(look), *runner(tiny, tmp_path / "cut")[3:]]
    stopped = subprocess.run(command, capture_output=True, text=True)
    assert stopped.returncode == 128 + signal.SIGTERM, stopped.stderr
    assert "resume" in stopped.stderr + stopped.stdout
    done = subprocess.run(runner(tiny, tmp_path / "cut", "--resume"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("params.safetensors", "optim.safetensors"):
        assert digest(tmp_path / "cut", name) == digest(uninterrupted, name)


def test_the_weights_are_plain_safetensors(uninterrupted: Path) -> None:
    from safetensors.numpy import load_file

    weights = load_file(max((uninterrupted / "checkpoints").glob("step-*")) / "params.safetensors")
    assert "student/head/weight" in weights
