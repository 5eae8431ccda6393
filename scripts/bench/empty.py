"""`sexpgpu build` with kernels that do nothing: what is left of a step is what lies outside kernels.

    empty.py RUN.sx OUT.tar [TARGET]

A kernel keeps its name and parameters. It writes 0 into a result that is one number, because the runner looks at the
loss and at the norm of the gradients; all other memory stays as the allocator gave it.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tvm import tirx  # noqa: E402

import schedules  # noqa: E402
from lowering.passes.block_accesses import outputs  # noqa: E402
from schedules.rule import Scheduled  # noqa: E402
from sexpgpu.cli import main  # noqa: E402


def empty(func: Any, target: Any) -> Scheduled:
    """``func`` without its work."""
    results = (func.params[k] for k in outputs(func))
    numbers = [b for b in results if math.prod(int(n) for n in b.shape) == 1]
    stores = [tirx.BufferStore(b, tirx.const(0, b.dtype), [0] * len(b.shape)) for b in numbers]
    body = tirx.SeqStmt([*stores, tirx.Evaluate(0)]) if stores else tirx.Evaluate(0)
    return Scheduled(func.with_body(body), "empty", ())


if __name__ == "__main__":
    schedules.first = empty
    run_file, output, *target = sys.argv[1:]
    options = ["--target", *target] if target else []
    sys.exit(main.main(["build", run_file, "-o", output, "--force", "--strict-schedules", "--jobs", "1", *options]))
