"""What some steps of an artifact come to, tensor by tensor, and how long each phase takes: on any device, through the
runner's own loop. Imports the runner's package alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from attrs import evolve

from artifacts.data.loaders import Training, open_records
from artifacts.device.interface import Device, choose
from artifacts.format import tarball
from artifacts.loop.step import Loop

WARM = 3  # steps left out of the times: first touch of memory, the capture of graphs

KINDS = ("state", "generated")  # what a trip hands on, and what finish made of it


def opened(artifact: tarball.Artifact, device: str, graphs: bool) -> Device:
    """``device``: "cpu" or "cuda". ``graphs``: whether what is repeated may be captured."""
    choice = choose(artifact.manifest, artifact.path, None, device)
    target = choice.target if graphs else evolve(choice.target, graphs=False)
    return choice.row.open(artifact, evolve(choice, target=target), None)


def words(path: str, device: str) -> str:
    """The device and the kernels that a run takes, as the runner says it."""
    with tarball.open(path) as artifact:
        return choose(artifact.manifest, path, None, device).words


class Watched(Loop):
    """A loop that keeps what the last generation made; of no use where calls are captured."""

    rows: dict[str, np.ndarray]

    def _generate(self, env: dict[Any, Any], *more: Any) -> None:
        super()._generate(env, *more)
        self.rows = {f"{k} {n}": np.array(self.device.numpy(v)) for (k, n), v in env.items() if k in KINDS}


class Run:
    """An artifact opened for some steps. A context manager."""

    def __init__(self, path: str, data: str, device: str, graphs: bool, watch: bool) -> None:
        self.artifact = tarball.open(path)
        manifest = self.artifact.manifest
        self.device = opened(self.artifact, device, graphs)
        records = {loader.name: open_records(loader, data, self.artifact) for loader in manifest.loaders}
        self.training = Training(manifest, records)
        self.loop = (Watched if watch else Loop)(manifest, self.device, self.training, records, lambda: None)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: Any) -> None:
        self.training.close()
        self.artifact.close()


def record(path: str, data: str, device: str, steps: int, graphs: bool = False) -> dict[str, np.ndarray]:
    """Of each of ``steps`` steps the loss, the metrics and the gradient's norm; of the last one the gradients, the
    parameters and the optimizer's entries, and without ``graphs`` the generated rows."""
    with Run(path, data, device, graphs, not graphs) as run:
        loop, out = run.loop, {}
        now = loop.initial()
        for n in range(steps):
            result = loop.step(now)
            told = {"loss": result.loss, "norm": result.grad_norm, **result.metrics}
            out |= {f"step {n} {name}": np.array(value) for name, value in told.items()}
        out |= getattr(loop, "rows", {})
        out |= {f"gradient {n}": np.array(run.device.numpy(t)) for n, t in loop._gradients.items()}
        for kind, tensors in zip(("param", "optimizer"), loop.arrays(now), strict=True):
            out |= {f"{kind} {name}": np.array(value) for name, value in tensors.items()}
        return out


def times(path: str, data: str, device: str, steps: int) -> dict[str, float]:
    """Milliseconds, medians over ``steps`` steps: of a step as it runs (``step``) and without graphs (``plain``), and
    of its phases, the device's queue emptied after each call."""
    with Run(path, data, device, True, False) as run:
        whole = _steps(run.loop, run.loop.initial(), steps)
    with Run(path, data, device, False, False) as run:
        now, spent, parts = run.loop.initial(), {}, []
        plain = _steps(run.loop, now, steps)
        _instrument(run, spent)
        for _ in range(steps):
            spent.clear()
            run.loop.step(now)
            parts.append(dict(spent))
    return {"step": whole, "plain": plain, **{n: 1e3 * statistics.median(p[n] for p in parts) for n in parts[0]}}


def _steps(loop: Loop, now: Any, steps: int) -> float:
    taken = []
    for _ in range(WARM + steps):
        start = time.perf_counter()
        loop.step(now)
        taken.append(time.perf_counter() - start)
    return 1e3 * statistics.median(taken[WARM:])


class Timed:
    """A phase of a loop whose calls, and whose trips as a whole, add their seconds to ``spent``."""

    def __init__(self, bound: Any, wait: Callable[[], None], spent: dict[str, float]) -> None:
        self._bound, self._wait, self._spent = bound, wait, spent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bound, name)

    def __call__(self, *args: Any) -> Any:
        return self._timed(self._bound, *args)

    def repeat(self, *args: Any) -> Any:
        return self._timed(self._bound.repeat, *args)

    def _timed(self, call: Callable[..., Any], *args: Any) -> Any:
        start = time.perf_counter()
        made = call(*args)
        self._wait()
        name = self._bound.phase.name
        self._spent[name] = self._spent.get(name, 0.0) + time.perf_counter() - start
        return made


def _instrument(run: Run, spent: dict[str, float]) -> None:
    """Have every phase add its seconds to ``spent``, the device's queue emptied first."""
    stream = getattr(run.device, "_stream", None)
    wait = stream.wait if stream is not None else lambda: None
    run.loop._phases = {name: Timed(bound, wait, spent) for name, bound in run.loop._phases.items()}


def compare(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> dict[str, Any]:
    """Of the names that both have: how many there are, which differ in bits, and the largest difference of each kind
    (``gradient``, ``param`` ...), relative to the kind's largest number; of integers, the share that differs."""
    own = [n for n in want if n in got]
    unequal = sorted(n for n in own if got[n].tobytes() != want[n].tobytes())
    scale: dict[str, float] = {}
    worst: dict[str, float] = {}
    for name in own:
        scale[_kind(name)] = max(scale.get(_kind(name), 1e-30), _largest(want[name]))
    for name in own:
        if got[name].dtype.kind in "iub":
            gap = float((got[name] != want[name]).mean())
        else:
            gap = _largest(got[name].astype("f8") - want[name].astype("f8")) / scale[_kind(name)]
        worst[_kind(name)] = max(worst.get(_kind(name), 0.0), gap if gap == gap else float("inf"))
    return {"unequal": unequal, "worst": dict(sorted(worst.items())), "compared": len(own)}


def _kind(name: str) -> str:
    """The first word; of a step's numbers each name is a kind."""
    first, *rest = name.split()
    return rest[-1] if first == "step" else first


def _largest(array: np.ndarray) -> float:
    return float(np.abs(array.astype("f8")).max(initial=0.0))
