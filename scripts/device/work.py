"""One job of the check on a device, in a process of its own: a JSON object of words in, one out on the last line.

work.py '{"job": "record", ...}'
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any


def record(job: dict[str, Any]) -> dict[str, Any]:
    """Steps, compared with the file ``want`` and kept in the file ``keep``."""
    import numpy as np
    import record as r

    got = r.record(job["tar"], job["data"], job["device"], job["steps"], job["graphs"])
    np.savez(job["keep"], **got)
    with np.load(job["want"]) as want:
        return {**r.compare(got, dict(want)), "device": r.words(job["tar"], job["device"])}


def times(job: dict[str, Any]) -> dict[str, Any]:
    import record as r

    return r.times(job["tar"], job["data"], job["device"], job["timed"])


def torch_gemm(job: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds of a bfloat16 product of n x n in PyTorch, as the trips of ours: each on the one before."""
    import torch

    n, trips = job["n"], job["trips"]
    x = torch.randn(n, n, device="cuda").bfloat16()
    w = (torch.randn(n, n, device="cuda") / n**0.5).bfloat16()
    taken = []
    for _ in range(3 + job["timed"]):
        torch.cuda.synchronize()
        start = time.perf_counter()
        y = x
        for _ in range(trips):
            y = y @ w
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - start) / trips)
    return {"ms": 1e3 * statistics.median(taken[3:]), "version": torch.__version__}


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps({"record": record, "times": times, "torch_gemm": torch_gemm}[asked["job"]](asked)))
