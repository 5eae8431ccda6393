"""The interface between the loop and a device, and the table of devices: CPU and CUDA are two rows of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from attrs import frozen

from ..base import safetensors_io
from ..base.errors import DEVICE_DRIVER, DEVICE_NONE, TARGET_ARCH, TARGET_DEVICE, TARGET_NAME, RunError, shown
from ..format.manifest import Manifest, Target

Handle = Any  # a tensor on the device; only the device looks inside
Call = Callable[[Sequence[Handle]], tuple[Handle, ...]]
Outputs = dict[tuple[str, str], Handle]
Body = Callable[[], Outputs]
Look = Callable[[], None]
Env = Mapping[tuple[str, str], Handle]


class Device(Protocol):
    """Tensors are contiguous; ``tensor`` copies, so that the array given may be reused at once."""

    def tensor(self, array: np.ndarray) -> Handle:
        """A tensor with the values of ``array``."""
        ...

    def numpy(self, handle: Handle) -> np.ndarray:
        """The values of a tensor: valid until the tensor is written or dropped."""
        ...

    def write(self, handle: Handle, array: np.ndarray) -> None:
        """Give a tensor the values of ``array``, of its shape and dtype; the array may be reused at once."""
        ...

    def read(self, handles: Sequence[Handle]) -> list[np.ndarray]:
        """The values of several small tensors, as ``numpy`` gives them, with a single synchronization."""
        ...

    def zero(self, handles: Sequence[Handle]) -> None:
        """Fill tensors with zeros."""
        ...

    def phase(self, name: str) -> Call:
        """The phase's function: all inputs in order -> the outputs that are not in an in-place pair, in order."""
        ...

    def place(self, key: Hashable, array: np.ndarray) -> Handle:
        """A tensor with the values of ``array``. It may reuse the memory of the last one with that key, which the
        caller no longer uses."""
        ...

    def keep(self, old: Handle, new: Handle) -> Handle:
        """A tensor with the values of ``new`` that lives on. It may reuse ``old``, which the caller no longer uses."""
        ...

    def trip_numbers(self, count: int, carried: Sequence[tuple[int, int]]) -> Iterator[Handle]:
        """For each of ``count`` calls of a phase its number, from 0, as an i64 scalar, which is not used again once the
        next one is asked for. ``carried``: (output, input) of what a call makes for the next one; nobody else has
        it."""
        ...

    def repeat(
        self, key: Hashable, env: Mapping[tuple[str, str], Handle], look: Callable[[], None], body: Body
    ) -> Outputs:
        """What ``body`` makes: calls of phases on the tensors of ``env`` and nothing else, the same ones at each time
        for one ``key``, with ``look`` before each. What the last time for that key made is not used again."""
        ...

    def step_finished(self) -> None:
        """Called after the first step, when all memory of a step has been allocated."""
        ...

    def before_call(self) -> None:
        """Called between calls, when none is running: the device may prepare for the next one."""
        ...

    def notes(self) -> list[str]:
        """Lines about how the device ran, for people."""
        ...


class MovableTensors:
    """Default methods of a device whose tensors may move, which is all but those with CUDA graphs: ``place`` makes a
    new tensor, ``keep`` returns the new one."""

    def tensor(self, array: np.ndarray) -> Handle:
        raise NotImplementedError

    def numpy(self, handle: Handle) -> np.ndarray:
        raise NotImplementedError

    def write(self, handle: Handle, array: np.ndarray) -> None:
        raise NotImplementedError

    def read(self, handles: Sequence[Handle]) -> list[np.ndarray]:
        return [self.numpy(handle) for handle in handles]

    def trip_numbers(self, count: int, carried: Sequence[tuple[int, int]]) -> Iterator[Handle]:
        return (self.tensor(np.array(n, np.int64)) for n in range(count))

    def place(self, key: Hashable, array: np.ndarray) -> Handle:
        return self.tensor(array)

    def keep(self, old: Handle, new: Handle) -> Handle:
        return new

    def repeat(
        self, key: Hashable, env: Mapping[tuple[str, str], Handle], look: Callable[[], None], body: Body
    ) -> Outputs:
        return body()

    def step_finished(self) -> None:
        pass

    def before_call(self) -> None:
        pass

    def notes(self) -> list[str]:
        return []


class HostDevice(MovableTensors):
    """Phases as Python functions over NumPy arrays: ``functions[phase](*arrays)`` returns all outputs in order.

    The function need not write in place: what the manifest pairs in place is copied into the input's memory here.
    """

    def __init__(self, manifest: Manifest, functions: Mapping[str, Callable[..., Sequence[np.ndarray]]]) -> None:
        self._manifest, self._functions = manifest, functions

    def tensor(self, array: np.ndarray) -> np.ndarray:
        out = safetensors_io.aligned(array.shape, safetensors_io.dtype_name(array))
        out[...] = array
        return out

    def numpy(self, handle: np.ndarray) -> np.ndarray:
        return handle

    def write(self, handle: np.ndarray, array: np.ndarray) -> None:
        handle[...] = array

    def zero(self, handles: Sequence[np.ndarray]) -> None:
        for handle in handles:
            handle[...] = 0

    def phase(self, name: str) -> Call:
        phase = self._manifest.phase(name)
        assert phase is not None
        pairs, function = dict(phase.in_place), self._functions[name]

        def call(inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
            outputs = function(*inputs)
            returned = []
            for i, (value, port) in enumerate(zip(outputs, phase.outputs, strict=True)):
                value = np.asarray(value, safetensors_io.dtype(port.dtype)).reshape(port.shape)
                if i in pairs:
                    inputs[pairs[i]][...] = value
                else:
                    returned.append(self.tensor(value))
            return tuple(returned)

        return call


@frozen
class Choice:
    """A target that this machine can run.

    row:    of which device it is
    number: which of the machine's devices of that kind
    has:    what the row found out about it
    description:  which device and kernels, for people; "" where there is nothing to choose from
    """

    target: Target
    row: Row
    number: int = 0
    has: Any = None
    description: str = ""


@frozen
class Row:
    """A kind of device, by the functions of ``module`` that serve it; no module is loaded before it is asked.

    fit(targets, number, where) -> Choice   the first target that this machine can run, before any code of the artifact
                                            is loaded; RunError with want and have
    room(manifest, threads, choice, where, data)
                                            RunError unless memory is there for a run; data: bytes still to be read
    open(artifact, choice, threads) -> Device
                                            loads the runtime and the library
    """

    name: str
    module: str

    def _of(self, function: str) -> Callable[..., Any]:
        return getattr(import_module(f".{self.module}", __package__), function)

    def fit(self, targets: Sequence[Target], number: int, where: str) -> Choice:
        return self._of("fit")(self, targets, number, where)

    def check_memory(self, manifest: Manifest, threads: int | None, choice: Choice, where: str, data: int = 0) -> None:
        self._of("check_memory")(manifest, threads, choice, where, data)

    def open(self, artifact: Any, choice: Choice, threads: int | None) -> Device:
        return self._of("open_device")(artifact, choice, threads)


ROWS = {row.name: row for row in (Row("cuda", "cuda"), Row("cpu", "cpu"))}  # the one to prefer first
# The GPUs that sexpgpu build --target has names for, and their compute capabilities: what a library is called follows
# from its schedules, and a user knows what he built for.
GPU_NAMES = {
    "nvidia-b200": 100, "nvidia-h200": 90, "nvidia-h100": 90, "nvidia-a100": 80, "nvidia-rtx4090": 89, "nvidia-l4": 89
}  # fmt: skip
# What is no reason to refuse a run where the artifact has a library for another device: this machine has no such GPU.
SKIPPED = (DEVICE_DRIVER, DEVICE_NONE, TARGET_ARCH)


def choose(manifest: Manifest, where: str, target: str | None = None, device: str | None = None) -> Choice:
    """The library to run and the device for it.

    target: a name in the manifest, E-TARGET-011 for another one; None: any
    device: "cpu", "cuda" or "cuda:N"; None: the GPU where a library of the artifact can use it, else the CPU
    """
    offered = targets_named(manifest, target, where)
    kind, _, number = (device or "").partition(":")
    if kind and not any(t.device == kind for t in offered):
        have = " ".join(f"{t.name} ({t.device})" for t in offered)
        raise RunError(TARGET_DEVICE, f"there is no library for {kind}", where, f"it has {have}")
    skipped_error: RunError | None = None
    for row in ROWS.values():
        targets = [t for t in offered if t.device == row.name and kind in ("", row.name)]
        if targets:
            try:
                choice = row.fit(targets, int(number or 0), where)
            except RunError as error:
                if error.code not in SKIPPED or all(t.device == row.name for t in offered):
                    raise
                skipped_error = error
                continue
            return choice if skipped_error is None else _with_reason(choice, skipped_error)
    raise skipped_error or AssertionError("the offered targets have a row")


def _with_reason(choice: Choice, error: RunError) -> Choice:
    from attrs import evolve

    return evolve(choice, description=f"{choice.target.name}, on the CPU, since {error.what} ({error.code.name})")


def targets_named(manifest: Manifest, name: str | None, where: str) -> list[Target]:
    """The target of ``name``, or all; E-TARGET-011 for a name that is not in the artifact. A library for GPUs goes by
    the names of those that it has kernels for, too."""
    offered = [t for t in manifest.targets if name in (None, t.name, *gpu_names(t))]
    if not offered:
        hint = f"it has {' '.join(_with_gpu_names(t) for t in manifest.targets)}"
        raise RunError(TARGET_NAME, f"there is no target {shown(str(name))} in the artifact", where, hint)
    return offered


def gpu_names(target: Target) -> list[str]:
    """What --target calls the GPUs for which a library was built: cuda-sm_XX, and the cards of these capabilities."""
    exact = [arch for arch in target.archs if arch.startswith("sm_")]
    return [*(name for name, n in GPU_NAMES.items() if f"sm_{n}" in exact), *(f"cuda-{arch}" for arch in exact)]


def _with_gpu_names(target: Target) -> str:
    others = [name for name in gpu_names(target) if name != target.name]
    return f"{target.name} ({' '.join(others)})" if others else target.name
