"""The examples and a stacked run, built for nvidia-h100 and run by the runner on the fake device."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("ziglang")

from artifacts.format import tarball
from tests.conftest import EXAMPLES, ONE
from tests.system.test_bf16_runs import narrow
from tests.system.test_stacking import RUN, final_state

from . import artifact

pytestmark = [pytest.mark.build, pytest.mark.timeout(900)]  # a test may be the one that builds, some 45 s of processor

HALVES = "characters:bf16"  # products are sums in the order of the matrix units, and no bits of a CPU's
ON_UNITS = ("matmul", "attend")  # what the names of such kernels have in them
KINDS = ("tiny-generate", "route-planner", "characters", HALVES)
SEQ, PROMPT = 24, 13  # of a row of the narrow characters: as few trips as there are characters, half of them given
SHORT = {
    "(def batch-size 16)": "(def batch-size 2)",
    "(def seq 64)": f"(def seq {SEQ})",
    "(def prompt 33)": f"(def prompt {PROMPT})",
    "(def run-of 8)": "(def run-of 4)",
}
OWN = {"tiny-generate": "tiny", "route-planner": "small"}  # whose artifact for this CPU other tests have too
NEAR = 1.05  # the plan, of what the device's allocator was asked for, and that of the plan
Made = tuple[Path, Path, Path, Path]  # the run file, its data's folder, the artifacts for the GPU and for this CPU
# A sum of 256 products of bfloat16, the longest here, is off by less than 2^-14 of their absolute sum (bound() of
# schedules/gpu/test_matmul_tensor_core.py). That seldom makes the rounding to bfloat16 another one, which is 2^-7 of
# the number at most. A loss is a mean over rows and moves less: by 4.2e-4 of itself at most in these steps.
APART, LOSS = 2.0**-7, 2.0**-10
# From the interpreter, whose phases are in f64. f32 sums of a few hundred products are off by a few roundings of 2^-24
# of the largest part: 2^-19.4 of a number was the most (a gradient's norm). bfloat16 rounds each intermediate by 2^-9
# of it, and 2^-9.1 of a number was the most. Integers, the generated ones too, are the same.
WIDE, WIDE_HALVES = 2.0**-18, 2.0**-8


def copied(kind: str, folder: Path) -> Path:
    """The run file of a small example in ``folder``, which has its data too."""
    example, _, precision = kind.partition(":")
    if example != "characters":
        shutil.copytree(EXAMPLES / example, folder)
        return folder / {"tiny-generate": "run.sx", "route-planner": "small.sx"}[example]
    wide = {"(def width 128)": "(def width 64)"} if precision else {}  # heads of 16, which matrix units take
    run = narrow(folder, f":{precision or 'f32'}", SHORT | wide)
    for data in ("train.npz", "held-out.npz"):
        with np.load(folder / data) as rows:
            cut = rows["text"][:, : SEQ + 1]
        np.savez(folder / data, text=cut)
    return run


@pytest.fixture(scope="session")
def artifacts_of(shared: Callable[..., Path], request: pytest.FixtureRequest) -> Callable[[str], Made]:
    """Example -> what it is run from. That for the GPU has as many microbatches a call as that for the CPU."""

    def make(folder: Path, kind: str, cpu: Path | None) -> None:
        folder.mkdir()
        run = copied(kind, folder / "run").rename(folder / "run/main.sx")
        if cpu is None:
            artifact.build(run, folder / "run.tar", target=f"nvidia-h100,{ONE}")
            return
        with tarball.open(str(cpu)) as built:
            degree = built.manifest.degree
        artifact.build(run, folder / "run.tar", "--stack", str(degree))

    def get(kind: str) -> Made:
        cpu = request.getfixturevalue(OWN[kind]) if kind in OWN else None
        folder = shared(f"cuda-{kind}", lambda folder: make(folder, kind, cpu))
        return folder / "run/main.sx", folder / "run", folder / "run.tar", cpu or folder / "run.tar"

    return get


def run_module(module: str, *arguments: object, **fake: object) -> str:
    """The output of a module of this folder, in a process that has the fake driver."""
    command = [sys.executable, "-m", f"tests.cuda_on_cpu.{module}", *map(str, arguments)]
    env = artifact.preloaded() if module == "compare_kernels" else artifact.environment(**fake)
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=artifact.REPO)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_every_kernel_is_the_cpus_in_every_order(kind: str, artifacts_of: Callable[[str], Made]) -> None:
    run, _, gpu, cpu = artifacts_of(kind)
    rows = [json.loads(line) for line in run_module("compare_kernels", run, gpu, cpu).splitlines()]
    assert len(rows) > 100
    assert [row["kernel"] for row in rows if row["orders"] != 1] == []
    exact = [row for row in rows if kind != HALVES or not any(name in row["kernel"] for name in ON_UNITS)]
    assert [row["kernel"] for row in exact if not row["equal"]] == []
    assert [(row["kernel"], row["apart"]) for row in rows if not row["apart"] <= APART] == []


def stepped(made: Made, out: Path, kind: str, **fake: object) -> dict[str, np.ndarray]:
    _, data, gpu, cpu = made
    run_module("training_steps", cpu if kind == "cpu" else gpu, data, out, kind, **fake)
    with np.load(out) as found:
        return dict(found)


def unequal(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> list[str]:
    assert got.keys() == want.keys()
    return [name for name, value in want.items() if got[name].tobytes() != value.tobytes()]


@pytest.mark.parametrize("kind", KINDS)
def test_whole_steps(kind: str, artifacts_of: Callable[[str], Made], tmp_path: Path) -> None:
    """The same bits in every order, with and without graphs, whether work is done at once or late; the CPU's rows, and
    the interpreter's. The memory of the plan."""
    of, counts = artifacts_of(kind), tmp_path / "counts"
    got = stepped(of, tmp_path / "a.npz", "cuda", order="forward", counters=counts)
    counted = json.loads(counts.read_text())
    assert counted["graph_launches"] > 10
    with tarball.open(str(of[2])) as artifact:
        plan = artifact.manifest.memory.device_bytes
    assert counted["most"] <= NEAR * plan and plan <= NEAR * counted["most"]
    assert unequal(stepped(of, tmp_path / "b.npz", "plain", order="reverse", eager=1), got) == []
    assert unequal(stepped(of, tmp_path / "c.npz", "cuda", order="hashed"), got) == []
    want = stepped(of, tmp_path / "d.npz", "cpu")
    if kind != HALVES:
        assert unequal(got, want) == []
    losses = [name for name in want if name.endswith(" loss")]
    assert len(losses) >= 4
    for name in losses:
        np.testing.assert_allclose(got[name], want[name], rtol=LOSS, err_msg=name)
    oracle = stepped(of, tmp_path / "e.npz", "numpy")
    assert {name.split()[0] for name in oracle} >= {"generated", "gradient", "param", "optimizer"}
    assert beyond(got, oracle, WIDE_HALVES if kind == HALVES else WIDE, kind == HALVES) == []


def as_f64(value: np.ndarray) -> np.ndarray:
    """Floats as f64; 16 bits are a bfloat16's."""
    return (
        (value.astype("uint32") << 16).view("float32").astype("f8") if value.dtype == "uint16" else value.astype("f8")
    )


def beyond(got: dict[str, np.ndarray], want: dict[str, np.ndarray], near: float, halves: bool) -> list[str]:
    """What is further than ``near`` from the interpreter: of a report as such; of a gradient and of what Adam keeps of
    it, in parts of the gradient's norm. Adam makes a step of the rate of any gradient, in either direction if that is
    mere rounding: in f32 a key's bias, which softmax does not see; in bfloat16 others too."""
    assert got.keys() == want.keys()
    norm, steps = float(want["3 norm"]), 2 * sum(float(want[f"{n} rate"]) for n in range(4))
    far = []
    for name, value in want.items():
        if value.dtype.kind in "ib" or value.dtype == "uint32":
            far += [name] * (got[name].tobytes() != value.tobytes())
            continue
        a, b = as_f64(got[name]), as_f64(value)
        if name.startswith(("gradient", "optimizer")):
            a, b = (np.sqrt(x) if name.endswith("/v") else x for x in (a, b))  # a mean of squares
            bound = near * norm
        elif name.startswith("param"):
            bound = steps if halves or name.endswith("key/bias") else near
        else:
            bound = near * np.abs(b).max()
        far += [name] * (not np.abs(a - b).max() <= bound)
    return far


@pytest.fixture(scope="session")
def stacked(shared: Callable[..., Path]) -> Path:
    """A folder with a run of five microbatches, its data, and an artifact of degree 1 and of 4."""

    def make(folder: Path) -> None:
        folder.mkdir()
        draws = np.random.default_rng(3)
        row, weight = draws.integers(0, 16, (60, 8)).astype("i4"), draws.uniform(0.5, 1.5, 60).astype("f4")
        np.savez(folder / "rows.npz", row=row, weight=weight)
        (folder / "run.sx").write_text(RUN.read_text().replace(":microbatches 4", ":microbatches 5"))
        for degree in (1, 4):
            artifact.build(folder / "run.sx", folder / f"{degree}.tar", "--stack", str(degree))

    return shared("cuda-stacked", make)


def test_stacked_by_four_the_bits_are_those_of_one_at_a_time(stacked: Path, tmp_path: Path) -> None:
    tars = {n: stacked / f"{n}.tar" for n in (1, 4)}
    one, four = (stepped((stacked, stacked, tar, tar), tmp_path / f"{n}.npz", "cuda") for n, tar in tars.items())
    made = [name for name in one if name.startswith("generated")]  # of a microbatch, and of four
    assert (
        unequal({k: v for k, v in four.items() if k not in made}, {k: v for k, v in one.items() if k not in made}) == []
    )


def test_stopped_and_resumed_at_another_degree_on_another_gpu_with_and_without_graphs(
    stacked: Path, tmp_path: Path
) -> None:
    def trained(out: str, degree: int, *more: object, **fake: object) -> None:
        command = (stacked / f"{degree}.tar", "--out", tmp_path / out, "--data", stacked, "-q", *more)
        done = artifact.run(*command, **fake)
        assert done.returncode == 0, done.stderr

    trained("whole", 1)
    trained("parts", 1, "--steps", 1, order="reverse")
    trained("parts", 4, "--steps", 3, "--resume", "--graphs", "off", cc="12.0")  # the artifact's PTX
    trained("parts", 1, "--resume", order="hashed")
    assert final_state(tmp_path, "parts")[:2] == final_state(tmp_path, "whole")[:2]
