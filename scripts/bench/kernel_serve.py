"""One contestant of scripts/bench/kernels in a process of its own: reads lines {"case": N, "seconds": S}, answers
{"seconds": the best time}.

    kernel_serve.py ours LIBRARY | numpy | check LIBRARY

``check`` answers {"wrong": TEXT or null} instead: whether ours is NumPy's result.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent.parent)]

from kernel_cases import CASES, numpy_call  # noqa: E402
from kernel_timing import best  # noqa: E402


def main() -> None:
    answer = {"ours": ours, "numpy": numpy, "check": check}[sys.argv[1]](*sys.argv[2:])
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(answer(asked["case"], asked["seconds"])), flush=True)


def ours(library: str) -> Callable[[int, float], dict[str, Any]]:
    import kernel_ours

    loaded = kernel_ours.Loaded(Path(library))

    def answer(n: int, seconds: float) -> dict[str, Any]:
        function, given = loaded.call(n, CASES[n])
        return {"seconds": best(lambda: function(*given), seconds)}

    return answer


def numpy() -> Callable[[int, float], dict[str, Any]]:
    def answer(n: int, seconds: float) -> dict[str, Any]:
        function, given = numpy_call(CASES[n]), CASES[n].inputs()
        return {"seconds": best(lambda: function(*given), seconds)}

    return answer


def check(library: str) -> Callable[[int, float], dict[str, Any]]:
    import kernel_ours

    loaded = kernel_ours.Loaded(Path(library))

    def answer(n: int, seconds: float) -> dict[str, Any]:
        case = CASES[n]
        if case.what.endswith("draw"):
            return {"wrong": None}
        function, given = loaded.call(n, case)
        made = function(*given)
        results = [kernel_ours.array(y) for y in made]
        results = results or [kernel_ours.array(given[i]) for i in (0, 2, 3)]  # adamw writes into what it is given
        wanted = numpy_call(case)(*case.inputs())
        return {"wrong": difference(results, wanted if isinstance(wanted, list) else [wanted])}

    return answer


def difference(results: Sequence[Any], wanted: Sequence[Any]) -> str | None:
    """None if they are equal, to what sums of some thousand f32 in another order may differ by."""
    import numpy as np

    for have, want in zip(results, wanted, strict=True):
        scale = max(1e-6, float(np.abs(want).max()))
        if not np.allclose(have, want, rtol=1e-3, atol=1e-4 * scale):
            return f"ours differs from NumPy's by {np.abs(have - want).max()} (of {scale})"
    return None


if __name__ == "__main__":
    main()
