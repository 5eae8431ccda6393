"""What a compiled kernel takes, and the digest of what it writes: in this process, or on a node of TVM's RPC."""

from __future__ import annotations

import hashlib
import os
import socket
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import ml_dtypes
import numpy as np
import tvm

from ..tir.stages import stored

PATIENCE = 60  # seconds that a kernel may take in all, before it is given up
ANSWER = 10  # seconds in which a tracker takes a connection
REPEATS, LEAST = 5, 10  # rounds of a measurement, and the milliseconds that each lasts at least
SHIFT = 31  # of a word of 32 bits, at most
FILLS = 2  # sets of inputs whose outputs are digested: numbers of both signs, and numbers that no root or log refuses


class MeasureFault(RuntimeError):
    """Nothing can be measured: no tracker, no node, no device. The message is the user's."""


@attrs.frozen
class Arguments:
    """A kernel's parameters, (shape, dtype) each, and which of them it writes."""

    params: tuple[tuple[tuple[int, ...], str], ...]
    written: tuple[int, ...]


@attrs.frozen
class Measured:
    """``seconds`` is the median of a few rounds; ``digest`` is of all that the kernel wrote; ``error`` is why there is
    neither, in words."""

    seconds: float = 0.0
    digest: str = ""
    error: str = ""


def arguments(func: Any) -> Arguments:
    """Shapes and dtypes of ``func``'s parameters, and the numbers of those that it writes."""
    writes = stored(func.body)
    params = tuple((tuple(map(int, p.shape)), str(p.dtype)) for p in func.params)
    return Arguments(params, tuple(n for n, p in enumerate(func.params) if any(p.same_as(b) for b in writes)))


def inputs(wanted: Arguments, fill: int) -> list[np.ndarray]:
    """The same numbers wherever they are made. An index may be anything: programs clamp or test theirs. One unsigned
    number is what a draw shifts its words by: from 32 on nothing would be left of them, and of the kernel's work."""
    return [_numbers(np.random.default_rng((fill, n)), *param, fill) for n, param in enumerate(wanted.params)]


def _numbers(draw: np.random.Generator, shape: Sequence[int], dtype: str, fill: int) -> np.ndarray:
    if dtype == "bool":
        return draw.integers(0, 2, shape).astype("bool")
    if dtype.startswith("uint"):
        return draw.integers(0, np.iinfo(dtype).max if shape else SHIFT, shape, dtype, endpoint=True)
    if dtype.startswith("int"):
        return draw.integers(-2, 67, shape).astype(dtype)
    floats = draw.standard_normal(shape, "float32") if fill == 0 else draw.uniform(0.5, 1.5, shape)
    return np.asarray(floats).astype(np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else dtype)


def digest(outputs: Sequence[np.ndarray]) -> str:
    """Of the bits; any NaN is as good as another."""
    made = hashlib.sha256()
    for out in outputs:
        if out.dtype.kind == "f" or out.dtype == ml_dtypes.bfloat16:
            out = np.where(np.isnan(out), np.asarray(np.nan, out.dtype), out)
        made.update(np.ascontiguousarray(out).tobytes())
    return made.hexdigest()


def measured(module: Any, device: Any, wanted: Arguments) -> Measured:
    """What ``module``'s function ``main`` does on ``device``, which may be another machine's."""
    made = []
    tensors: list[Any] = []
    for fill in range(FILLS):
        tensors = [tvm.runtime.tensor(x, device) for x in inputs(wanted, fill)]
        module["main"](*tensors)
        made += [tensors[n].numpy() for n in wanted.written]
    timer = module.time_evaluator("main", device, number=1, repeat=REPEATS, min_repeat_ms=LEAST)
    return Measured(statistics.median(timer(*tensors).results), digest(made))


def here(library: bytes, wanted: Arguments, threads: int | None) -> Measured:
    """On this machine's CPU and in this process, which may be lost by it. ``threads`` counts at the first call: the
    runtime reads it, as a run's does, where it starts its own; by default one for each core."""
    if threads is not None:
        os.environ["TVM_NUM_THREADS"] = str(threads)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.so"
        path.write_bytes(library)
        return measured(tvm.runtime.load_module(str(path)), tvm.cpu(), wanted)


class Nodes:
    """Machines that run ``python -m tvm.exec.rpc_server`` for ``key``, asked for one by one of a tracker."""

    def __init__(self, host: str, port: int, key: str, device: str) -> None:
        """``device`` is cpu or cuda. Raises MeasureFault."""
        self._device, self._key = device, key
        self._place = f"{host}:{port}"
        try:
            socket.create_connection((host, port), timeout=ANSWER).close()  # TVM would try for a minute, and log it
            from tvm import rpc

            self._tracker = rpc.connect_tracker(host, port)
        except ImportError as fault:
            raise MeasureFault(f"{fault.name} is not installed") from None
        except (OSError, RuntimeError) as fault:
            raise MeasureFault(f"no tracker answers at {self._place}: {_line(fault)}") from None
        self._need_server()

    def _need_server(self) -> None:
        """Asked for a key that no server has, a tracker lets one wait without end."""
        try:
            there = self._tracker.summary()["server_info"]
        except (OSError, RuntimeError) as fault:
            raise MeasureFault(f"the tracker at {self._place} is gone: {_line(fault)}") from None
        if not any(str(one["key"]).partition(":")[2] == self._key for one in there):
            raise MeasureFault(f"the tracker at {self._place} has no server for the key {self._key}")

    def __call__(self, library: bytes, wanted: Arguments) -> Measured:
        """A node's error is the kernel's, as a kernel may bring a session down; no node at all is a MeasureFault."""
        self._need_server()
        try:
            session = self._tracker.request(self._key, session_timeout=PATIENCE)
            session.upload(bytearray(library), "kernel.so")
            return measured(session.load_module("kernel.so"), session.device(self._device, 0), wanted)
        except (OSError, RuntimeError, ValueError) as fault:
            return Measured(error=_line(fault))


def _line(fault: Exception) -> str:
    return " ".join(str(fault).split())[-200:] or type(fault).__name__
