"""An artifact driven step by step in this process, to see what the runner does not print.

ours.py initial ARTIFACT DATA OUT.npz            the parameters before the first step
ours.py parts ARTIFACT DATA STEPS [--kernels N]  the median ms a step of each phase; the N slowest kernels
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, field, frozen

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from artifacts import session  # noqa: E402
from artifacts.data.loaders import Training, open_records  # noqa: E402
from artifacts.device.cpu import CpuDevice  # noqa: E402
from artifacts.device.interface import Device  # noqa: E402
from artifacts.format import tarball  # noqa: E402
from artifacts.loop.step import Loop  # noqa: E402


@frozen
class Timed:
    """A device whose phases add the seconds of each call to ``spent``, and name themselves in ``now`` meanwhile."""

    device: Device
    spent: dict[str, list[float]] = field(factory=lambda: defaultdict(list))
    now: list[str] = field(factory=lambda: [""])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)

    def phase(self, name: str) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
        call, spent = self.device.phase(name), self.spent[name]

        def timed(inputs: Sequence[Any]) -> tuple[Any, ...]:
            self.now[0] = name
            start = time.perf_counter()
            made = call(inputs)
            spent.append(time.perf_counter() - start)
            return made

        return timed


@define
class Kernels:
    """An instrument of the virtual machine: (phase, function, shapes) -> the seconds of each of its calls.

    It runs Python before and after every call, so the times contain some 0.5 us of it, and the whole is slower.
    """

    now: list[str]
    spent: dict[tuple[str, str, tuple], list[float]] = field(factory=lambda: defaultdict(list))
    began: list[float] = field(factory=list)

    def __call__(self, func: Any, symbol: Any, before: bool, returned: Any, *args: Any) -> int:
        if before:
            self.began.append(time.perf_counter())
        else:
            seconds = time.perf_counter() - self.began.pop()
            shapes = tuple(tuple(a.shape) for a in args if hasattr(a, "shape"))
            self.spent[self.now[0], str(symbol), shapes].append(seconds)
        return 0

    def clear(self) -> None:
        self.spent.clear()


def instrument(device: CpuDevice, call: Callable[..., int]) -> None:
    import tvm_ffi

    device._machine["set_instrument"](tvm_ffi.convert(call))


@contextmanager
def opened(path: str, data: str, wrap: Callable[[CpuDevice], Any] = lambda device: device, kind: type[Loop] = Loop):
    """(loop, device) of the artifact at ``path``."""
    with tarball.open(path) as artifact:
        device = wrap(session.opened(artifact, None))
        manifest = artifact.manifest
        records = {n: open_records(manifest.loader(n), data, artifact) for n in manifest.loaders_used()}
        training = Training(manifest, records)
        try:
            yield kind(manifest, device, training, records, lambda: None), device
        finally:
            training.close()


def initial(path: str, data: str, out: str) -> None:
    with opened(path, data) as (loop, _):
        params, _ = loop.arrays(loop.initial())
        np.savez(out, **params)
    print(json.dumps({"parameters": len(params), "numbers": int(sum(p.size for p in params.values()))}))


def parts(path: str, data: str, steps: int, kernels: int) -> None:
    """Prints {"parts": phase -> ms a step}; with ``kernels``, a profile before it."""
    with opened(path, data, Timed) as (loop, device):
        seen = Kernels(device.now)
        if kernels:
            instrument(device.device, seen)
        now, rounds = loop.initial(), []
        for n in range(steps):
            for times in device.spent.values():
                times.clear()
            if n == min(4, steps - 1):
                seen.clear()
            loop.step(now)
            rounds.append({name: 1e3 * sum(times) for name, times in device.spent.items()})
    measured = rounds[min(4, steps - 1) :]
    if kernels:
        profile(seen, len(measured), kernels)
    print(json.dumps({"parts": {name: round(statistics.median(r[name] for r in measured), 3) for name in measured[0]}}))


def profile(seen: Kernels, steps: int, count: int) -> None:
    rows = []
    for (phase, name, shapes), seconds in seen.spent.items():
        ms = 1e3 * statistics.median(seconds) * len(seconds) / steps
        least, middle = (1e6 * f(seconds) for f in (min, statistics.median))
        rows.append((ms, phase, len(seconds) / steps, least, middle, name, " ".join(str(list(s)) for s in shapes)))
    print("| ms a step | phase | calls | us, min | us, median | what | shapes |\n|---|---|---|---|---|---|---|")
    for ms, phase, calls, least, middle, name, shapes in sorted(rows, reverse=True)[:count]:
        print(f"| {ms:.3f} | {phase} | {calls:.0f} | {least:.1f} | {middle:.1f} | {name[:70]} | {shapes[:110]} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["initial", "parts"])
    parser.add_argument("artifact")
    parser.add_argument("data")
    parser.add_argument("last", help="OUT.npz, or the number of steps")
    parser.add_argument("--kernels", type=int, default=0)
    args = parser.parse_args()
    if args.what == "initial":
        initial(args.artifact, args.data, args.last)
    else:
        parts(args.artifact, args.data, int(args.last), args.kernels)


if __name__ == "__main__":
    main()
