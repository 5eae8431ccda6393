"""The runner on a GPU: whole runs on the fake device, with graphs and without, stopped, lost and resumed. Every run
must leave the bits of the one that launched its kernels one by one and was never disturbed."""

from __future__ import annotations

import json
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("ziglang")

from artifacts.device import cuda
from artifacts.format import library_signature, tar_writer, tarball
from artifacts.format.manifest import Manifest
from tests.artifacts.support import checkpoint, contents, metrics, one_error, steps

from . import artifact as gpu

pytestmark = [
    pytest.mark.build,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the host code of a GPU's library is for x86-64"),
]

RUN = Path(__file__).parents[1] / "runs/device.sx"
CPU = "cpu-x86-64-v3"
STEPS = 6
Go = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def built(shared: Callable[..., Path]) -> Path:
    """A folder with the run, its data, and its artifact for a GPU and a CPU: three microbatches, two a call."""

    def make(folder: Path) -> None:
        folder.mkdir()
        row = np.random.default_rng(3).integers(0, 8, (30, 6)).astype("i4")
        np.savez(folder / "rows.npz", row=row)
        gpu.build(RUN, folder / "run.tar", "--stack", "2", target=f"nvidia-h100,{CPU}")

    return shared("device", make)


@pytest.fixture
def go(built: Path, tmp_path: Path) -> Go:
    """(name of the run's directory, options, settings of the fake device) -> a run, whose counters are kept."""

    def run(out: str, *more: object, **fake: object) -> subprocess.CompletedProcess[str]:
        where = ("--out", tmp_path / out, "--data", built)
        return gpu.run(built / "run.tar", *where, *more, counters=tmp_path / f"{out}.json", **fake)

    return run


@pytest.fixture(scope="session")
def undisturbed(built: Path, shared: Callable[..., Path]) -> Path:
    """The directory of a run without graphs, its counters beside it."""

    def make(folder: Path) -> None:
        where = ("--out", folder, "--data", built, "--graphs", "off", "-v")
        done = gpu.run(built / "run.tar", *where, counters=folder.with_suffix(".json"))
        assert done.returncode == 0 and "graphs of" not in done.stderr, done.stderr

    return shared("undisturbed", make)


def counted(out: Path) -> dict[str, Any]:
    found = json.loads(out.with_suffix(".json").read_text())
    assert not found["overwritten"]
    return found


def equal_runs(out: Path, other: Path, step: int = STEPS) -> bool:
    names = ("params.safetensors", "optim.safetensors")
    one, two = contents(out, step), contents(other, step)
    return [one[n] for n in names] == [two[n] for n in names] and metrics(out)[-1] == metrics(other)[-1]


@pytest.mark.parametrize("order", ["forward", "hashed"])
def test_graphs_change_no_bit_and_launch_the_same_kernels(
    go: Go, undisturbed: Path, tmp_path: Path, order: str
) -> None:
    done = go("out", "-v", order=order)
    assert done.returncode == 0, done.stderr
    assert "device cuda:0, Fake 9.0, kernels for sm_90" in done.stdout.splitlines()[0]
    assert equal_runs(tmp_path / "out", undisturbed) and metrics(tmp_path / "out") == metrics(undisturbed)
    with_graphs, without = counted(tmp_path / "out"), counted(undisturbed)
    assert without["graph_launches"] == 0
    assert with_graphs["launches"] + with_graphs["graph_launches_inside"] == without["launches"]
    said = {
        line.split(": ")[0]: line.split(": ")[1].split() for line in done.stderr.splitlines() if "graphs of" in line
    }
    assert set(said) == {"zero", "train 2", "train", "update", "eval held"}
    assert [said[name][0] for name in ("train 2", "train", "update", "eval held")] == ["5", "5", "1", "5"]
    # Steps 3 to 6 are all graphs, but that the first pass made all captures anew.
    assert with_graphs["graph_launches"] >= 4 * (1 + 6 + 6 + 1) > with_graphs["launches"] / 40
    assert with_graphs["pageable"] == without["pageable"] < 20  # TVM's own copies, of the library's constants


def rewritten(built: Path, path: Path, change: Callable[[Manifest], Manifest]) -> Path:
    """The artifact with another manifest."""
    with tarball.open(str(built / "run.tar")) as artifact:
        old, new = artifact.manifest, change(artifact.manifest)
        members = {file.path: artifact.read(file.path) for file in old.files}
        for target in old.targets:  # the library is that of the new manifest too
            before, after = (library_signature.of(m, target).encode() for m in (old, new))
            members[target.library] = members[target.library].replace(before, after)
        tar_writer.write(str(path), new, members)
    return path


@pytest.mark.parametrize("trips", [1, 2, 4, 41])
def test_trips_are_two_graphs_however_many_there_are(built: Path, tmp_path: Path, trips: int) -> None:
    """The same phases, called as often as another manifest says."""
    path = rewritten(built, tmp_path / "run.tar", lambda m: attrs.evolve(m, step=attrs.evolve(m.step, trips=trips)))
    found = []
    for graphs in ("auto", "off"):
        where = ("--out", tmp_path / graphs, "--data", built, "--graphs", graphs, "--steps", "4", "-v")
        done = gpu.run(path, *where, counters=tmp_path / f"{graphs}.json")
        assert done.returncode == 0, done.stderr
        found.append(counted(tmp_path / graphs))
        if graphs == "auto":
            said = [line.split(": ")[1].split()[0] for line in done.stderr.splitlines() if "graphs of" in line]
            assert sorted(said) == sorted(["1", "1"] + 3 * [str(3 + min(trips, 2))])
    assert equal_runs(tmp_path / "auto", tmp_path / "off", 4)
    assert found[0]["launches"] + found[0]["graph_launches_inside"] == found[1]["launches"]
    assert found[0]["nodes"] < 500  # of all graphs that were ever made, some 450 from 4 trips on


def test_what_a_call_reports_is_one_copy(built: Path, tmp_path: Path) -> None:
    """Of three microbatches, two of them in one call, and of the update; each is waited for once."""

    def plain(m: Manifest) -> Manifest:
        run = attrs.evolve(m.run, checkpoint_every=100, log_every=100)
        seldom = tuple(attrs.evolve(one, every=100) for one in m.step.passes)
        return attrs.evolve(m, run=run, step=attrs.evolve(m.step, passes=seldom, diagnostics=()))

    path, found = rewritten(built, tmp_path / "run.tar", plain), []
    for count in (3, 5):
        where = ("--out", tmp_path / str(count), "--data", built, "--steps", count, "--graphs", "off")
        assert gpu.run(path, *where, counters=tmp_path / f"{count}.json").returncode == 0
        found.append(counted(tmp_path / str(count)))
    few, more = found
    assert more["to_host"] - few["to_host"] == 2 * (2 + 1)
    # The host also waits, two calls later, for each call: generate.init, trips, generate.finish, train; update.
    assert more["syncs"] - few["syncs"] == 2 * (2 + 1) + 2 * (2 * (1 + 3 + 1 + 1) + 1)


def test_stopped_by_a_signal_and_resumed(built: Path, go: Go, undisturbed: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "artifacts.run", built / "run.tar", "--out", tmp_path / "out", "--data", built]
    with subprocess.Popen(command, env=gpu.environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        next(line for line in process.stdout if line.startswith("step 3/"))
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
    assert process.returncode == 128 + signal.SIGTERM
    assert max(steps(tmp_path / "out")) >= 3
    assert go("out", "--resume").returncode == 0
    assert equal_runs(tmp_path / "out", undisturbed)


def test_row_71_a_lost_device_leaves_the_last_checkpoint(go: Go, undisturbed: Path, tmp_path: Path) -> None:
    """Past the checkpoint of step 4 the device fails: nothing of steps 5 and 6 is kept, and nothing of it aborts."""
    kernels = counted(undisturbed)["launches"]
    done = go("out", lost_after=kernels * 5 // 6)
    assert done.returncode == 3
    line = done.stderr.splitlines()[-1]
    assert line.startswith("error[E-DEVICE-016]: ") and "cudaErrorIllegalAddress" in line
    assert f"the last checkpoint is {checkpoint(tmp_path / 'out', 4)}" in line
    assert steps(tmp_path / "out") == [2, 4] and same_weights(tmp_path / "out", undisturbed, 4)
    assert go("out", "--resume").returncode == 0 and equal_runs(tmp_path / "out", undisturbed)


def same_weights(out: Path, other: Path, step: int) -> bool:
    return all(contents(out, step)[n] == contents(other, step)[n] for n in ("params.safetensors", "optim.safetensors"))


# A runner that expects too little memory, one that does not look again either, and one whose captures may not allocate.
CHANGED = {
    "memory": "from artifacts.device import cuda; cuda.wanted = lambda *_: 0",
    "spare": "from artifacts.device import cuda; cuda.wanted = lambda *_: 0; cuda.MIN_FREE = 0",
    "capture": "from artifacts.device import cuda_runtime as cudart; cudart.RELAXED = 0",
}


def changed(what: str, built: Path, out: Path, *more: object, **fake: object) -> subprocess.CompletedProcess[str]:
    code = f"{CHANGED[what]}; import sys; from artifacts.run import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, built / "run.tar", "--out", out, "--data", built, *more]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, env=gpu.environment(**fake))


@pytest.mark.parametrize(
    "what, words",
    [
        ("memory", "phase init finds"),
        ("spare", " failed: CUDA Runtime Error: cudaErrorMemory"),
    ],
)
def test_row_71_memory_that_runs_out_in_the_run(
    built: Path, undisturbed: Path, tmp_path: Path, what: str, words: str
) -> None:
    done = changed(what, built, tmp_path / "out", free=counted(undisturbed)["most"] * 6 // 10)
    assert done.returncode == 3
    assert words in one_error(done.stderr.splitlines()[-1], "E-DEVICE-015")


def test_what_cannot_be_captured_runs_call_by_call(built: Path, undisturbed: Path, tmp_path: Path) -> None:
    done = changed("capture", built, tmp_path / "out", "-v", counters=tmp_path / "out.json")
    assert done.returncode == 0 and equal_runs(tmp_path / "out", undisturbed), done.stderr
    assert "not captured, " in done.stderr and "cudaErrorStreamCapture" in done.stderr


# What keeps host and GPU apart, and a replay whole: the runner without it, by file of the package, what stands there,
# and what stands there instead.
SMALL = ("pinned_staging.py", "CHUNK = 4 * 2**20", "CHUNK = 64")  # page-locked memory that is soon used again
EMPTIED = "        self.stream.wait_for(event)\n"
BREAKAGES = {
    "the host waits for what it reads": [("pinned_staging.py", EMPTIED, "")],
    "a chunk is used again when its copies are over": [
        SMALL,
        ("pinned_staging.py", "        if chunk.is_full:\n            self.stream.wait_for(chunk.event)\n", ""),
    ],
    "a chunk is emptied before it is filled again": [SMALL, ("pinned_staging.py", "== CHUNKS:", "== 9 * CHUNKS:")],
    "the library's constants are waited for": [("cuda.py", "        self._stream.wait_for_default()\n", "")],
    "a trip has its number": [("cuda_runtime.py", "            if number is not None:\n", "            if False:\n")],
    "the state is where the first trip's graph reads it": [("paired_graphs.py", "if i in held_inputs:", "if False:")],
}


@pytest.mark.parametrize("what", ["nothing", *BREAKAGES])
def test_a_runner_that_lacks_what_keeps_it_from_the_gpus_work_is_seen(
    what: str, built: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """The device's work is late enough to show it. Only with what it lacks is the run right."""
    package = Path(cuda.__file__).parents[1]
    shutil.copytree(package, tmp_path / "artifacts", ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in [SMALL] if what == "nothing" else BREAKAGES[what]:
        file = tmp_path / "artifacts/device" / name
        text = file.read_text()
        assert text.count(old) == 1
        file.write_text(text.replace(old, new))
    command = [sys.executable, "-m", "artifacts.run", built / "run.tar", "--out", tmp_path / "out", "--data", built]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=tmp_path, env=gpu.environment())
    assert (done.returncode == 0 and equal_runs(tmp_path / "out", undisturbed)) == (what == "nothing"), done.stderr


@pytest.mark.parametrize("graphs", ["auto", "off"])
def test_a_run_takes_no_more_memory_than_its_plan(go: Go, built: Path, tmp_path: Path, graphs: str) -> None:
    """Nor does one that starts from another one's weights."""
    for out, more in (("out", ()), ("fork", ("--fork", tmp_path / "out"))):
        done = go(out, "--graphs", graphs, *more)
        assert done.returncode == 0, done.stderr
    with tarball.open(str(built / "run.tar")) as artifact:
        target = attrs.evolve(artifact.manifest.targets[0], graphs=graphs == "auto")
        plan = cuda.wanted(artifact.manifest, target) - cuda.OVERHEAD
    for out in ("out", "fork"):
        most = counted(tmp_path / out)["most"]
        assert most == plan if graphs == "auto" else plan / 1.15 < most < plan  # without what captures hold


def test_a_gpus_checkpoint_goes_on_on_the_cpu(go: Go, tmp_path: Path) -> None:
    """And the CPU stands in for a GPU that is not there, which is said."""
    assert go("out", "--steps", "2").returncode == 0
    done = go("out", "--resume", "--steps", "4", devices=0)
    assert done.returncode == 0, done.stderr
    first = f"device {CPU}, on the CPU, since the NVIDIA driver sees no GPU (E-DEVICE-011)"
    assert done.stdout.splitlines()[0] == first
    assert go("out", "--resume", "--device", "cuda", devices=0).returncode == 3
    assert go("out", "--resume", "--device", "cpu").returncode == 0 and steps(tmp_path / "out") == [2, 4, 6]


def test_another_gpu_by_its_number_and_by_ptx(go: Go, undisturbed: Path, tmp_path: Path) -> None:
    done = go("out", "--device", "cuda:1", devices=2, cc="10.0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "device cuda:1, Fake 10.0, kernels for compute_80"
    assert equal_runs(tmp_path / "out", undisturbed)
