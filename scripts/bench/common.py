"""What the benchmarks share: children that are timed from outside, in alternated order; tables; the machine.

A child prints a line of JSON for each step that it finished, with "loss" and "seconds" in it, as the runner does; its
other lines are notes. This module imports no NumPy, so that a child's peak memory is the child's own: the kernel counts
what a process had before it became another program.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent.parent
PEERS = ROOT / ".venv-peers/bin/python"
WARM = 4  # steps left out of the times: compilation, first touch of memory, clocks
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TVM_NUM_THREADS")


@frozen
class Run:
    """One child. ``seconds`` and ``losses`` of every step; ``start_s``: from its start to the end of its first step;
    ``rss_mb``: its peak; ``notes``: what else it said."""

    who: str
    target: str
    seconds: tuple[float, ...]
    losses: tuple[float, ...]
    start_s: float
    rss_mb: float
    notes: Mapping[str, Any]

    @property
    def ms(self) -> list[float]:
        return [1e3 * s for s in self.seconds[WARM:]]

    def row(self) -> dict[str, Any]:
        """The row of ``--json``."""
        return {
            "who": self.who,
            "target": self.target,
            "ms_min": round(min(self.ms), 3),
            "ms_median": round(statistics.median(self.ms), 3),
            "start_s": round(self.start_s, 3),
            "rss_mb": round(self.rss_mb, 1),
        }


def environment(threads: int | None = None, **more: str) -> dict[str, str]:
    """For a child: this source tree, and ``threads`` for every library that takes the number from here."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **more}
    return env if threads is None else {**env, **dict.fromkeys(THREADS, str(threads))}


def run(who: str, target: str, command: Sequence[Any], env: Mapping[str, str]) -> Run:
    """Run ``command`` to its end. SystemExit with its last words if it fails."""
    steps: list[dict[str, Any]] = []
    notes: dict[str, Any] = {}
    first = math.nan
    began = time.perf_counter()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*map(str, command)], env=env, **pipes) as p:
        assert p.stdout and p.stderr
        for line in p.stdout:
            said = json.loads(line)
            if "seconds" in said and "loss" in said and "step" in said and "done" not in said:
                first = first if steps else time.perf_counter() - began
                steps.append(said)
            else:
                notes.update(said)
        words = p.stderr.read()
        _, status, usage = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
    if p.returncode:
        raise SystemExit(f"{who} ended with {p.returncode}:\n{words[-2000:]}")
    seconds, losses = (tuple(s[key] for s in steps) for key in ("seconds", "loss"))
    return Run(who, target, seconds, losses, first, usage.ru_maxrss / 1024, notes)


def alternated(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """(round, name): every name once a round, each round beginning with another and every second one backwards."""
    for r in range(rounds):
        turn = [*names[r % len(names) :], *names[: r % len(names)]] if names else []
        yield from ((r, name) for name in (turn[::-1] if r % 2 else turn))


def talk(command: Sequence[Any], env: Mapping[str, str]) -> dict[str, Any]:
    """The one JSON object that ``command`` prints last."""
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, text=True, env=env)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def finish(command: Sequence[Any], env: Mapping[str, str]) -> None:
    """Run ``command``, which has nothing to say; SystemExit if it fails."""
    if subprocess.run([*map(str, command)], env=env).returncode:
        raise SystemExit(f"{command[0]} {command[1]} failed")


def build(run_file: Path, output: Path, target: str | None, *more: Any) -> None:
    command = [sys.executable, "-m", "sexpgpu", "build", run_file, "-o", output, "--force", *more]
    told = subprocess.run([*map(str, command), *(["--target", target] if target else [])], env=environment(), stdout=2)
    if told.returncode:
        raise SystemExit(f"{run_file} was not built")


def runner(artifact: Path, out: Path, data: Path, steps: int) -> list[Any]:
    """The command that a user would give."""
    options = ["--out", out, "--data", data, "--steps", steps, "--output-format", "json"]
    return [sys.executable, "-m", "artifacts.run", artifact, *options]


# The machine

SGEMM = """
import json, time, numpy as np
best = 0.0
for n in (512, 1024, 2048):
    a, b = (np.random.default_rng(i).random((n, n), np.float32) for i in range(2))
    out = np.empty_like(a)
    for _ in range(24 if n < 2048 else 8):
        start = time.perf_counter()
        np.matmul(a, b, out=out)
        best = max(best, 2e-9 * n**3 / (time.perf_counter() - start))
print(json.dumps({"gflops": best}))
"""


def sgemm_peak(threads: int) -> float:
    """GF/s of NumPy's best of three sizes of square f32 products, on ``threads`` threads."""
    return talk([sys.executable, "-c", SGEMM], environment(threads))["gflops"]


BEST_TARGET = """
import json, platform
from artifacts.device.cpu import cpu_flags
from schedules import TARGETS
fit = [t for t in TARGETS.values() if t.machine == platform.machine() and cpu_flags() >= set(t.cpu_flags)]
print(json.dumps({"target": max(fit, key=lambda t: len(t.cpu_flags)).name}))
"""


def best_target() -> str:
    """The most demanding target that this machine can run; asked of a child, as TVM would stay in our memory."""
    return talk([sys.executable, "-c", BEST_TARGET], environment())["target"]


def machine() -> str:
    """The processor and how many cores this process may use."""
    model = platform.machine()
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        lines = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in file)}
    name, family = lines.get("model name", model), lines.get("cpu family")
    more = f" (family {family}, model {lines.get('model')})" if family else ""
    level = "AVX-512" if "avx512f" in lines.get("flags", "") else "AVX2" if "avx2" in lines.get("flags", "") else model
    return f"{name}{more}, {level}, {len(os.sched_getaffinity(0))} cores"


# Tables


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Markdown."""
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * len(head), *rows))


@frozen
class Summary:
    """All rounds of one: the least of the minima, each round's median, the middle of start and the greatest memory."""

    who: str
    target: str
    least: float
    medians: tuple[float, ...]
    start_s: float
    rss_mb: float

    @property
    def median(self) -> float:
        return statistics.median(self.medians)


def summaries(rows: Sequence[Mapping[str, Any]]) -> dict[str, Summary]:
    """By name, in the order of first appearance."""
    out = {}
    for who in dict.fromkeys(row["who"] for row in rows):
        own = [row for row in rows if row["who"] == who]
        least, starts = min(r["ms_min"] for r in own), statistics.median(r["start_s"] for r in own)
        medians = tuple(r["ms_median"] for r in own)
        out[who] = Summary(who, own[0]["target"], least, medians, starts, max(r["rss_mb"] for r in own))
    return out
