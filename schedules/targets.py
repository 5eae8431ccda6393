"""The machines a library can be made for, by instruction set level. Never the builder's own machine."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from .cpu import RULES
from .rule import Rule

# What /proc/cpuinfo calls the features of the x86-64 levels that a program may use ("abm" is lzcnt).
FLAGS_V3 = ("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")
FLAGS_V4 = (*FLAGS_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")


@attrs.frozen
class Rates:
    """What a nominal machine of the target does. It has two threads: no artifact's bytes depend on the builder's.

    ``flops``    multiplications and additions a second, of one thread, in our best products
    ``bytes``    a second that a kernel of one thread reads and writes, of tensors in the cache
    ``threads``  how many share a kernel
    ``launch``   seconds of a kernel that does nothing, on one thread
    ``fork``     seconds more where threads share it
    ``call``     seconds of a call of a phase without kernels, and of what the runner's loop does around it
    ``port``     seconds more for each input and output
    ``cache``    bytes that a phase may keep alive and still find at that rate
    ``far``      bytes a second, of one thread, of what it does not
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


@attrs.frozen(eq=False)  # one of a name, or evolved from one: it is a key of what was worked out for it
class Target:
    """One kind of machine.

    ``tvm``        the dictionary for ``tvm.target.Target``: code generator, triple and level, all fixed
    ``machine``    what ``platform.machine()`` says there
    ``cpu_flags``  words that must stand in /proc/cpuinfo before the library may be loaded
    ``lanes``      f32 values in one vector register
    ``registers``  vector registers
    ``rules``      schedule rules, in the order in which they are tried
    ``rates``      what sexpgpu/cost.py reckons with
    ``functions``  f32 functions, by TVM's name, that a kernel writes out step by step: call -> (named steps, value)
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


# v3: of the kernels and steps in docs/performance.md; cache and far such that training's part of the steps comes out.
# v4 has twice the lanes; its other figures are those of v3, as it could not be measured. aarch64: the data sheet's 8
# operations a cycle at 1.5 GHz, the rest scaled with the clock; not measured either.
_V3 = Rates(70e9, 20e9, 2, launch=0.5e-6, fork=1.3e-6, call=10e-6, port=0.3e-6, cache=8e6, far=5e9)
_V4 = attrs.evolve(_V3, flops=140e9)
_A72 = Rates(12e9, 6e9, 2, launch=1e-6, fork=3e-6, call=50e-6, port=0.7e-6, cache=1e6, far=2e9)


def _x86(level: str, flags: tuple[str, ...], lanes: int, registers: int, rates: Rates) -> Target:
    tvm = {"kind": "llvm", "mtriple": "x86_64-unknown-linux-gnu", "mcpu": f"x86-64-{level}"}
    return Target(f"cpu-x86-64-{level}", tvm, "x86_64", flags, lanes, registers, RULES, rates)


def _aarch64() -> Target:
    tvm = {"kind": "llvm", "mtriple": "aarch64-unknown-linux-gnu", "mcpu": "cortex-a72"}
    return Target("cpu-aarch64", tvm, "aarch64", ("asimd", "fp"), 4, 32, RULES, _A72)


_ALL = (_x86("v4", FLAGS_V4, 16, 32, _V4), _x86("v3", FLAGS_V3, 8, 16, _V3), _aarch64())
TARGETS: dict[str, Target] = {target.name: target for target in _ALL}  # of one machine, the one to prefer first


def default(machine: str = platform.machine()) -> tuple[Target, ...]:
    """The targets of a build that names none: all of the architecture, so that bytes depend on no CPU model."""
    return tuple(t for t in _ALL if t.machine == ("aarch64" if machine == "aarch64" else "x86_64"))
