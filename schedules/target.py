"""Types of a target machine: its code generator, nominal rates, a GPU's limits, and its schedule rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs
from tvm import tirx


class Rule(Protocol):
    """A way to schedule some kernels. ``apply`` returns None for a kernel that is not of its kind."""

    @property
    def name(self) -> str: ...

    def apply(self, func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc | None: ...


@attrs.frozen
class Rates:
    """Rates of a nominal machine of the target, the same on every builder, so that no artifact's bytes depend on it.

    ``flops``    multiplications and additions a second, of a thread, in our best products
    ``bytes``    a second that a kernel of a thread reads and writes, of tensors in the cache
    ``threads``  how many share a kernel
    ``launch``   seconds of a kernel that does nothing, on a single thread
    ``fork``     seconds more where threads share it
    ``call``     seconds of a call of a phase without kernels, and of what the runner's loop does around it
    ``port``     seconds more for each input and output
    ``cache``    bytes that a phase may keep alive and still find at that rate
    ``far``      bytes a second, of a thread, of what it does not
    ``halves``   as ``flops``, of products of bf16 and f16 on matrix units; 0 where there are none
    """

    flops: float
    bytes: float
    threads: int
    launch: float
    fork: float
    call: float
    port: float
    cache: float
    far: float
    halves: float = 0.0


@attrs.frozen
class Gpu:
    """A kind of GPU. Schedules may look at ``level``, ``threads``, ``shared`` and ``warp`` only, which all GPUs of a
    level have in common: a library serves them all.

    ``level``            the schedule set, by the name of its least target: cuda-sm_80 (asynchronous copies to shared
                         memory, matrix products of bfloat16) or cuda-sm_75 (neither)
    ``arch``             what its kernels are compiled for: sm_XX, for compute capability X.X
    ``threads``          most threads a block
    ``shared``           bytes of shared memory that a block may declare
    ``warp``             threads that go in step
    ``multiprocessors``  how many; 0 where the name does not say
    ``memory``           bytes of the card's memory; 0 where the name does not say
    ``bf16``             multiplications and additions a second of its matrix units: operands bfloat16, sums float32
    """

    level: str
    arch: str
    multiprocessors: int
    memory: int
    bf16: float
    threads: int = 1024
    shared: int = 48 * 1024
    warp: int = 32

    @property
    def capability(self) -> int:
        """90 of sm_90."""
        return int(self.arch.removeprefix("sm_"))


@attrs.frozen(eq=False)  # compared by identity, as it is a key of memoized plans
class Target:
    """A kind of machine.

    ``tvm``        the dictionary for ``tvm.target.Target``: code generator, triple and level, all fixed
    ``machine``    what ``platform.machine()`` says there
    ``cpu_flags``  words that must stand in /proc/cpuinfo before the library may be loaded
    ``lanes``      f32 values in a vector register; 1 of a GPU, whose threads are its lanes
    ``registers``  vector registers; of a GPU, those of a thread
    ``rules``      schedule rules, in the order in which they are tried
    ``rates``      what sexpgpu/planning/cost_model.py reckons with
    ``functions``  f32 functions, by TVM's name, that a kernel writes out step by step: call -> (named steps, value)
    ``gpu``        None where kernels run on the CPU
    """

    name: str
    tvm: Mapping[str, Any]
    machine: str
    cpu_flags: tuple[str, ...]
    lanes: int
    registers: int
    rules: tuple[Rule, ...]
    rates: Rates
    functions: Mapping[str, Callable[[Any], Any]] = {}
    gpu: Gpu | None = None


LEVELS = ("cuda-sm_75", "cuda-sm_80")


def level(capability: int) -> str:
    """The schedule set of a compute capability: the highest level that it reaches."""
    return next(name for name in reversed(LEVELS) if capability >= int(name.rpartition("_")[2]))
