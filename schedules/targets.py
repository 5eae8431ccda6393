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


@attrs.frozen(eq=False)  # one of a name, or evolved from one: it is a key of what was worked out for it
class Target:
    """One kind of machine.

    ``tvm``        the dictionary for ``tvm.target.Target``: code generator, triple and level, all fixed
    ``machine``    what ``platform.machine()`` says there
    ``cpu_flags``  words that must stand in /proc/cpuinfo before the library may be loaded
    ``lanes``      f32 values in one vector register
    ``registers``  vector registers
    ``rules``      schedule rules, in the order in which they are tried
    ``functions``  f32 functions, by TVM's name, that a kernel writes out step by step: call -> (named steps, value)
    """

    name: str
    tvm: Mapping[str, Any]
    machine: str
    cpu_flags: tuple[str, ...]
    lanes: int
    registers: int
    rules: tuple[Rule, ...]
    functions: Mapping[str, Callable[[Any], Any]] = {}


def _x86(level: str, flags: tuple[str, ...], lanes: int, registers: int) -> Target:
    tvm = {"kind": "llvm", "mtriple": "x86_64-unknown-linux-gnu", "mcpu": f"x86-64-{level}"}
    return Target(f"cpu-x86-64-{level}", tvm, "x86_64", flags, lanes, registers, RULES)


def _aarch64() -> Target:
    tvm = {"kind": "llvm", "mtriple": "aarch64-unknown-linux-gnu", "mcpu": "cortex-a72"}
    return Target("cpu-aarch64", tvm, "aarch64", ("asimd", "fp"), 4, 32, RULES)


_ALL = (_x86("v4", FLAGS_V4, 16, 32), _x86("v3", FLAGS_V3, 8, 16), _aarch64())
TARGETS: dict[str, Target] = {target.name: target for target in _ALL}  # of one machine, the one to prefer first


def default(machine: str = platform.machine()) -> tuple[Target, ...]:
    """The targets of a build that names none: all of the architecture, so that bytes depend on no CPU model."""
    return tuple(t for t in _ALL if t.machine == ("aarch64" if machine == "aarch64" else "x86_64"))
