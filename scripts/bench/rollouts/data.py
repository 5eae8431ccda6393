"""The uniform draws of our first steps, as the interpreter makes them, so that a peer can begin with the same ones.

maps f32 [steps batch cities 2], choices f32 [steps trips batch starts cities]. Ours reads no rows.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np

from sexpgpu.language.diagnostics import Report
from sexpgpu.language.runfile import load
from sexpgpu.ops.random import UNIT, bits_ref
from sexpgpu.phases.trace_run import trace_run

STEPS = 5  # those whose losses are compared
SEED = np.array([3, 0], "uint32")  # of run.sx


def main(path: str) -> None:
    report = Report()
    run = load(str(Path(__file__).with_name("run.sx")), report)
    plan = trace_run(run, report) if run else None
    assert plan, report.errors
    sites = {p.name: next((v for v in p.graph.values() if v.op == "philox"), None) for p in plan.phases}
    trips = plan.trips
    assert trips and math.prod(sites["generate.init"].type.shape) % 4 == 0

    def uniform(phase: str, salt: int) -> np.ndarray:
        words = bits_ref(np, SEED, salt, **sites[phase].attrs)
        return (words >> 8).astype("f4") * np.float32(UNIT)

    salts = [n * 65536 for n in range(STEPS)]
    maps = [uniform("generate.init", salt) for salt in salts]
    choices = [[uniform("generate.step", salt * 256 + trip) for trip in range(trips)] for salt in salts]
    np.savez(path, maps=np.stack(maps), choices=np.array(choices))


if __name__ == "__main__":
    main(sys.argv[1])
