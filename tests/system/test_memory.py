"""A run takes its memory in its first steps and no more afterwards, however many follow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import build
from tests.support import run_text

pytestmark = pytest.mark.build

STEPS, EVERY = 20_000, 2_000
# The allocators of Python and C fill their arenas (256 KiB and 132 KiB) in the first thousands of steps, as objects of
# other sizes meet: 256 to 576 KiB in 5,000 steps and no more than 724 KiB in 60,000 (13 runs). A leak of one tensor
# header a step (some 200 bytes) would be 4 MB.
BOUND = 1024 * 1024
GENERATE = """(defgenerate
  :trips 2
  :init (lambda (batch ctx) (list :x (field batch :x)))
  :step (lambda (state trip ctx) (list :x (+ (* (m (getf state :x)) 0.1) (cast trip :f32))))
  :finish (lambda (state ctx) (list :made (getf state :x))))"""


def small_run(folder: Path) -> Path:
    """An artifact with a generator, two microbatches and a counter, and its data. The first checkpoint, which imports
    a module, comes after the last step."""
    text = run_text(
        model="(defmodel m (x) (linear x :out 3))",
        generate=GENERATE,
        prepare="(defprepare (batch ctx) (counter :rows 4) (list :x (field batch :made) :y (field batch :y)))",
        run=f"(defrun r :model m :loader d :steps {STEPS} :microbatches 2 :log-every 2 :checkpoint-every {STEPS})",
    )
    (folder / "run.sx").write_text(text)
    r = np.random.default_rng(0)
    np.savez(folder / "d.npz", x=r.random((40, 3), np.float32), y=r.integers(0, 3, 40).astype("int32"))
    return build(folder / "run.sx", folder / "run.tar")


def resident(pid: int) -> int:
    """Bytes of the process ``pid`` in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_stays_flat(tmp_path: Path) -> None:
    artifact = small_run(tmp_path)
    command = [sys.executable, "-m", "artifacts.run", artifact, "--out", tmp_path / "out", "--data", tmp_path]
    seen: dict[int, int] = {}
    with subprocess.Popen([*map(str, command), "--output-format", "json"], stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout
        for line in p.stdout:
            step = json.loads(line).get("step")
            if step and step < STEPS and (step == 2 or step % EVERY == 0):  # a checkpoint follows the last
                seen.setdefault(step, resident(p.pid))
    assert p.returncode == 0 and set(seen) == {2, *range(EVERY, STEPS, EVERY)}
    assert max(seen.values()) - seen[2] <= BOUND, seen
