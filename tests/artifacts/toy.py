"""A tiny run whose phases are NumPy functions: sensitive to the order of data, the trip, ctx, counters and the seed.

The model is ``loss = mean((sample @ w - y)**2)``; ``sample`` is made by the generator from the field ``x``.
"""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from artifacts.device.interface import HostDevice
from artifacts.format import manifest as m
from artifacts.format import tar_writer, tarball

B, W, MICRO, TRIPS, STEPS = 4, 3, 2, 3, 6
N, N_HELD = 22, 9  # records; neither is a multiple of the batch
LIBRARY, RUNTIME = "code/phases.so", "runtime/libtvm_runtime.so"

f32, i32, i64, u32 = "f32", "i32", "i64", "u32"


def port(kind: str, name: str, shape: tuple[int, ...] = (), dtype: str = f32) -> m.Port:
    return m.Port(kind, name, shape, dtype)


def ctx(name: str) -> m.Port:
    return port("ctx", name, (), i64)


w, m_, t = port("param", "net/w", (W,)), port("optimizer", "net/w/m", (W,)), port("param", "net/t", (1,))
seed, trip = port("seed", "", (2,), u32), port("trip", "", (), i64)
x, y = port("field", "x", (B, W), i32), port("field", "y", (B,))
row, sample = port("state", "row", (B, W), i32), port("generated", "sample", (B, W))
grad, tokens = port("gradient", "net/w", (W,)), port("counter", "tokens", (), i64)
loss, error = port("metric", "loss"), port("metric", "error")
rows = port("diagnostic", "rows", (B, W))


def phase(
    name: str, inputs: list[m.Port], outputs: list[m.Port], in_place: tuple[tuple[int, int], ...] = ()
) -> m.Phase:
    return m.Phase(name, name.replace(".", "_"), 1, tuple(inputs), tuple(outputs), in_place, 1024)


PHASES = (
    phase("init", [seed], [w, t, m_]),
    phase("generate.init", [x, ctx("step"), ctx("microbatch")], [row]),
    phase("generate.step", [w, row, trip], [row]),
    phase("generate.finish", [row, t], [sample]),
    phase("train", [w, y, sample, ctx("records"), tokens, grad], [loss, error, tokens, grad, rows], ((3, 5),)),
    phase(
        "update",
        [w, m_, grad, ctx("step"), tokens],
        [w, m_, port("metric", "grad_norm"), port("metric", "lr")],
        ((0, 0), (1, 1)),
    ),
    phase("eval.held", [w, y, sample], [loss, error, rows]),
)


def init(seed: np.ndarray) -> tuple[Any, ...]:
    start = (np.arange(W) + 1 + int(seed[0]) % 7).astype(np.float32) / 10
    return start, np.array([0.25], np.float32), np.zeros(W, np.float32)


def generate_init(x: np.ndarray, step: np.ndarray, microbatch: np.ndarray) -> tuple[Any, ...]:
    return ((x + step * 5 + microbatch).astype(np.int32),)


def generate_step(w: np.ndarray, row: np.ndarray, trip: np.ndarray) -> tuple[Any, ...]:
    return ((row * 3 + trip + (w[0] > 0.5)).astype(np.int32) % 97,)


def generate_finish(row: np.ndarray, t: np.ndarray) -> tuple[Any, ...]:
    return (row.astype(np.float32) / 97 + t,)


def train(w, y, sample, records, tokens, grad) -> tuple[Any, ...]:
    off = (sample @ w - y + records * 1e-4).astype(np.float32)
    slope = (2 * off[:, None] * sample).mean(0, dtype=np.float32)
    return np.mean(off**2), np.mean(np.abs(off)), tokens + y.size, grad + slope, sample


def update(w, m_, grad, step, tokens) -> tuple[Any, ...]:
    g = grad / np.float32(MICRO)
    norm = np.sqrt(np.sum(g * g))
    rate = np.float32(0.05 / (1 + step) + 1e-6 * tokens)
    if not np.isfinite(norm):
        return w, m_, norm, rate
    m_ = (np.float32(0.9) * m_ + g).astype(np.float32)
    return w - rate * m_, m_, norm, rate


def evaluate(w, y, sample) -> tuple[Any, ...]:
    off = sample @ w - y
    return np.mean(off**2), np.mean(np.abs(off)), sample


FUNCTIONS = {
    "init": init,
    "generate.init": generate_init,
    "generate.step": generate_step,
    "generate.finish": generate_finish,
    "train": train,
    "update": update,
    "eval.held": evaluate,
}

FIELDS = (m.Field("x", (W,), i32, 0, 100), m.Field("y", (), f32, None, None))


def loader(name: str, source: str, **changes: Any) -> m.Loader:
    made = m.Loader(name, "files", (source,), (), None, B, True, None, FIELDS)
    return attrs.evolve(made, **changes)


def manifest(**run: Any) -> m.Manifest:
    """The toy's manifest; keywords change its ``run`` part."""
    identity = m.Identity(**{name: hashlib.sha256(name.encode()).hexdigest() for name in attrs.fields_dict(m.Identity)})
    made = m.Run("toy", 7, STEPS, MICRO, "f32", 2, 2, identity)
    return m.Manifest(
        toolchain=m.Toolchain("0.1.0", "0.27.0.post1", "0.1.14.post1", "lld 22"),
        run=attrs.evolve(made, **run),
        parameters=(m.Parameter("net/w", (W,), f32, False), m.Parameter("net/t", (1,), f32, True)),
        optimizer=(m.Tensor("net/w/m", (W,), f32),),
        phases=PHASES,
        step=m.Step(
            TRIPS,
            ("sample",),
            (m.Pass("held", "held", 3, None, True),),
            (m.Stage("main", None, None, "rows"),),
            ("rows",),
        ),
        loaders=(loader("rows", "rows.npz"), loader("held", "held.npz", shuffle=False)),
        memory=m.Memory(16, 12, 12, 4096, 1024, 8192, 0),
        targets=(m.Target("cpu-any", LIBRARY, os.uname().machine, (), "cpu", (), False),),
        runtime=m.Runtime(RUNTIME, None),
    )


CARRIED = ("gradient", "counter")


def is_own(port: m.Port) -> bool:
    """Does each copy of a stacked call have its own?"""
    moving = port.kind == "ctx" and port.name in m.MOVING
    return moving or port.kind in ("field", "state", "generated", "metric")


def stacked(made: m.Manifest, k: int) -> m.Manifest:
    """``made`` with k microbatches a call: the phases that its loop then calls, as a build writes them."""
    own = lambda p: attrs.evolve(p, shape=(k, *p.shape)) if is_own(p) else p  # noqa: E731
    phases: list[m.Phase] = []
    for p in made.phases:
        once = p.name in ("init", "update") or p.name.startswith("eval.")
        if once or p.name != "train" or made.run.microbatches % k:
            phases.append(p)  # the pass of the toy writes, so that the generator stays
        if not once:
            ports = tuple(map(own, p.inputs)), tuple(map(own, p.outputs))
            phases.append(m.Phase(f"{p.name}*{k}", f"{p.function}_{k}", k, *ports, p.in_place, 1024))
    return attrs.evolve(made, phases=tuple(phases))


def copies(phase: m.Phase, function: Any) -> Any:
    """``function`` for ``phase.stack`` microbatches: one after the other."""

    def call(*inputs: np.ndarray) -> list[Any]:
        carried: dict[tuple[str, str], Any] = {}
        each: list[Any] = []
        for c in range(phase.stack):
            pairs = list(zip(phase.inputs, inputs, strict=True))
            each.append(function(*(carried.get(p.key, x[c] if is_own(p) else x) for p, x in pairs)))
            carried = {p.key: y for p, y in zip(phase.outputs, each[-1], strict=True) if p.kind in CARRIED}
        made = zip(phase.outputs, zip(*each, strict=True), strict=True)
        return [np.stack(ys) if is_own(p) else ys[-1] for p, ys in made]

    return call


MEMBERS = {
    LIBRARY: b"\x7fELF not really",
    RUNTIME: b"\x7fELF neither" * 100,
    "source/toy.sx": b"(defrun toy)\n",
    "report.txt": b"",
}


def records(count: int, salt: int) -> dict[str, np.ndarray]:
    r = np.random.default_rng(salt)
    return {"x": r.integers(0, 100, (count, W), np.int32), "y": r.random(count, np.float32)}


def write_data(folder: Path) -> None:
    np.savez(folder / "rows.npz", **records(N, 1))
    np.savez(folder / "held.npz", **records(N_HELD, 2))


def write(folder: Path, made: m.Manifest | None = None, name: str = "toy.tar") -> str:
    """The toy's artifact and data in ``folder``; the artifact's path."""
    write_data(folder)
    path = str(folder / name)
    tar_writer.write(path, made or manifest(), MEMBERS, force=True)
    return path


def device(artifact: tarball.Artifact, threads: int | None) -> HostDevice:
    """The toy on NumPy. TOY_SIGNAL="phase:k:SIGNAL[:again]" sends this process a signal in the phase's k-th call."""
    functions = {
        p.name: copies(p, FUNCTIONS[p.role]) if p.stack > 1 else FUNCTIONS[p.name] for p in artifact.manifest.phases
    }
    if plan := os.environ.get("TOY_SIGNAL"):
        name, k, number, *again = plan.split(":")
        functions[name] = _signalling(functions[name], int(k), getattr(signal, number), 1 + len(again))
    return HostDevice(artifact.manifest, functions)


def _signalling(function: Any, k: int, number: int, times: int) -> Any:
    calls = 0

    def call(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == k:
            for _ in range(times):
                os.kill(os.getpid(), number)
        return function(*args)

    return call
