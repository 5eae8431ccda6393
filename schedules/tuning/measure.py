"""Time of a compiled kernel and digest of its outputs: in this process, or on a machine of TVM's RPC.

The time is the median of a few rounds of ``time_evaluator``. The digest is the sha256 of all that the kernel writes for
fixed inputs: two schedules are exchangeable only if their digests are equal.
"""

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

# Seconds for a kernel with all its rounds, after which a node ends the session; a slower kernel counts as failed.
# Chosen.
MAX_KERNEL_SECONDS = 60
# Seconds to connect to a tracker. Beyond, it is reported as absent. Chosen.
TRACKER_TIMEOUT = 10
# Rounds, of which the median counts, and their least length: 10 ms hide the clock's resolution. Chosen; fewer or
# shorter rounds are noisier, and a record may then be kept for a kernel that is not faster.
REPEATS, MIN_ROUND_MS = 5, 10
# Of a 32-bit word: a shift by 32 or more is undefined in C and in LLVM.
MAX_SHIFT = 31
# Sets of inputs: numbers of both signs, and numbers in 0.5 .. 1.5, for which roots and logs are finite. With the first
# alone such kernels would write NaNs, which compare equal whatever the schedule.
FILLS = 2


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


def inputs(signature: Arguments, fill: int) -> list[np.ndarray]:
    """The same numbers on every machine. Signed integers may be any index: programs clamp or test theirs. An unsigned
    scalar is the count by which a draw shifts its words, so it stays below the width of a word."""
    return [_numbers(np.random.default_rng((fill, n)), *param, fill) for n, param in enumerate(signature.params)]


def _numbers(rng: np.random.Generator, shape: Sequence[int], dtype: str, fill: int) -> np.ndarray:
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype("bool")
    if dtype.startswith("uint"):
        return rng.integers(0, np.iinfo(dtype).max if shape else MAX_SHIFT, shape, dtype, endpoint=True)
    # Some of them out of a small tensor's range, some within, so that clamps and tests are exercised. Chosen.
    if dtype.startswith("int"):
        return rng.integers(-2, 67, shape).astype(dtype)
    floats = rng.standard_normal(shape, "float32") if fill == 0 else rng.uniform(0.5, 1.5, shape)
    return np.asarray(floats).astype(np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else dtype)


def digest(outputs: Sequence[np.ndarray]) -> str:
    """sha256 of the bits, in hex. All NaNs count as equal, since their payload depends on the order of operands."""
    hasher = hashlib.sha256()
    for out in outputs:
        if out.dtype.kind == "f" or out.dtype == ml_dtypes.bfloat16:
            out = np.where(np.isnan(out), np.asarray(np.nan, out.dtype), out)
        hasher.update(np.ascontiguousarray(out).tobytes())
    return hasher.hexdigest()


def measured(module: Any, device: Any, signature: Arguments) -> Measured:
    """Run and time ``module``'s function ``main`` on ``device``, which may be another machine's."""
    outputs = []
    tensors: list[Any] = []
    for fill in range(FILLS):
        tensors = [tvm.runtime.tensor(x, device) for x in inputs(signature, fill)]
        module["main"](*tensors)
        outputs += [tensors[n].numpy() for n in signature.written]
    timer = module.time_evaluator("main", device, number=1, repeat=REPEATS, min_repeat_ms=MIN_ROUND_MS)
    return Measured(statistics.median(timer(*tensors).results), digest(outputs))


def measure_in_process(library: bytes, signature: Arguments, threads: int | None) -> Measured:
    """On this machine's CPU, in this process, which a faulty kernel may bring down. ``threads``: by default one a core;
    only the first call's counts, since TVM's runtime reads it once, when it starts its threads."""
    if threads is not None:
        os.environ["TVM_NUM_THREADS"] = str(threads)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.so"
        path.write_bytes(library)
        return measured(tvm.runtime.load_module(str(path)), tvm.cpu(), signature)


class Nodes:
    """Machines that run ``python -m tvm.exec.rpc_server`` for ``key``, requested from a tracker one at a time."""

    def __init__(self, host: str, port: int, key: str, device: str) -> None:
        """``device`` is cpu or cuda. Raises MeasureFault."""
        self._device, self._key = device, key
        self._address = f"{host}:{port}"
        try:
            # TVM itself would retry for a minute, and log each time
            socket.create_connection((host, port), timeout=TRACKER_TIMEOUT).close()
            from tvm import rpc

            self._tracker = rpc.connect_tracker(host, port)
        except ImportError as fault:
            raise MeasureFault(f"{fault.name} is not installed") from None
        except (OSError, RuntimeError) as fault:
            raise MeasureFault(f"no tracker answers at {self._address}: {_one_line(fault)}") from None
        self._need_server()

    def _need_server(self) -> None:
        """A tracker blocks for ever on a request for a key that no server has, so that is tested first."""
        try:
            servers = self._tracker.summary()["server_info"]
        except (OSError, RuntimeError) as fault:
            raise MeasureFault(f"the tracker at {self._address} is gone: {_one_line(fault)}") from None
        if not any(str(server["key"]).partition(":")[2] == self._key for server in servers):
            raise MeasureFault(f"the tracker at {self._address} has no server for the key {self._key}")

    def __call__(self, library: bytes, signature: Arguments) -> Measured:
        """A node's error is the kernel's, as a kernel may bring a session down; no node at all is a MeasureFault."""
        self._need_server()
        try:
            session = self._tracker.request(self._key, session_timeout=MAX_KERNEL_SECONDS)
            session.upload(bytearray(library), "kernel.so")
            return measured(session.load_module("kernel.so"), session.device(self._device, 0), signature)
        except (OSError, RuntimeError, ValueError) as fault:
            return Measured(error=_one_line(fault))


def _one_line(fault: Exception) -> str:
    return " ".join(str(fault).split())[-200:] or type(fault).__name__
