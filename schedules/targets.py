"""The table of targets: CPUs by instruction set level, GPUs by card or compute capability.

Never the builder's own machine: a target and all its figures are fixed here, so bytes are equal on every builder.
"""

from __future__ import annotations

import platform

import attrs

from . import gpu
from .cpu import RULES
from .target import LEVELS, Gpu, Rates, Target, level

# What /proc/cpuinfo calls the features of the x86-64 levels that a program may use ("abm" is lzcnt).
FLAGS_V3 = ("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")
FLAGS_V4 = (*FLAGS_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")


# v3: of the kernels and steps in docs/performance.md; cache and far such that training's part of the steps comes out.
# v4: a thread's best products do 116e9 on a Zen 4, which starts a multiply-add of 512 bits a cycle, and 159e9 on a
# Sapphire Rapids, which starts two. The row is their geometric mean, at most a sixth off on either; its other figures
# are those of v3. aarch64: the data sheet's 8 operations a cycle at 1.5 GHz, the rest scaled with the clock, and not
# measured.
_V3 = Rates(70e9, 20e9, 2, launch=0.5e-6, fork=1.3e-6, call=10e-6, port=0.3e-6, cache=8e6, far=5e9)
_V4 = attrs.evolve(_V3, flops=136e9)
_A72 = Rates(12e9, 6e9, 2, launch=1e-6, fork=3e-6, call=50e-6, port=0.7e-6, cache=1e6, far=2e9)


def _x86(level: str, flags: tuple[str, ...], lanes: int, registers: int, rates: Rates) -> Target:
    tvm = {"kind": "llvm", "mtriple": "x86_64-unknown-linux-gnu", "mcpu": f"x86-64-{level}"}
    return Target(f"cpu-x86-64-{level}", tvm, "x86_64", flags, lanes, registers, RULES, rates)


def _aarch64() -> Target:
    tvm = {"kind": "llvm", "mtriple": "aarch64-unknown-linux-gnu", "mcpu": "cortex-a72"}
    return Target("cpu-aarch64", tvm, "aarch64", ("asimd", "fp"), 4, 32, RULES, _A72)


# Compute capabilities that the pinned compiler of kernels knows. The least of a schedule set names it.
CAPABILITIES = (75, 80, 86, 87, 88, 89, 90, 100, 103, 107, 110, 120, 121)
GIB = 2**30

# Data sheets: float32 without tensor cores, memory's rate, second cache; the cache's rate is taken as 2.5 times the
# memory's, and launch, call and port are guesses: no GPU was there to measure. Every figure is of the whole card.
#   name              arch      processors memory   f32      bf16     bytes/s  cache
_CARDS = (
    ("nvidia-b200",    "sm_100", 148, 180 * GIB, 75e12,   2.25e15, 7.7e12,  126e6),
    ("nvidia-h200",    "sm_90",  132, 141 * GIB, 67e12,   0.989e15, 4.8e12,  50e6),
    ("nvidia-h100",    "sm_90",  132, 80 * GIB,  67e12,   0.989e15, 3.35e12, 50e6),
    ("nvidia-a100",    "sm_80",  108, 80 * GIB,  19.5e12, 0.312e15, 2.0e12,  40e6),
    ("nvidia-rtx4090", "sm_89",  128, 24 * GIB,  82.6e12, 0.165e15, 1.0e12,  72e6),
    ("nvidia-l4",      "sm_89",  58,  24 * GIB,  30.3e12, 0.121e15, 0.3e12,  48e6),
)  # fmt: skip


def _gpu(name: str, card: Gpu, f32: float, bf16: float, far: float, cache: float) -> Target:
    host = {"kind": "llvm", "mtriple": "x86_64-unknown-linux-gnu", "mcpu": "x86-64"}
    limits = {
        "max_threads_per_block": card.threads,
        "max_shared_memory_per_block": card.shared,
        "thread_warp_size": card.warp,
    }
    tvm = {"kind": "cuda", "arch": card.level.removeprefix("cuda-"), **limits, "host": host}
    units = bf16 if card.level != LEVELS[0] else 0.0
    rates = Rates(f32, 2.5 * far, 1, launch=2e-6, fork=0, call=20e-6, port=0.3e-6, cache=cache, far=far, halves=units)
    return Target(name, tvm, "x86_64", (), 1, 255, gpu.RULES, rates, gpu=card)


def _cards() -> tuple[Target, ...]:
    return tuple(
        _gpu(name, Gpu(level(int(arch[3:])), arch, count, memory, bf16), f32, bf16, far, cache)
        for name, arch, count, memory, f32, bf16, far, cache in _CARDS
    )


def _capability(capability: int, cards: tuple[Target, ...]) -> Target:
    """Any card of a compute capability, with the rates of its slowest named card, or else of the slowest of all."""
    arch = f"sm_{capability}"
    like = [t for t in cards if t.gpu is not None and t.gpu.arch == arch] or list(cards)
    rates = min((t.rates for t in like), key=lambda r: r.far)
    card = Gpu(level(capability), arch, 0, 0, 0.0)
    return _gpu(f"cuda-{arch}", card, rates.flops, rates.halves, rates.far, rates.cache)


def _gpus() -> tuple[Target, ...]:
    cards = _cards()
    return (*cards, *(_capability(c, cards) for c in reversed(CAPABILITIES)))


_CPUS = (_x86("v4", FLAGS_V4, 16, 32, _V4), _x86("v3", FLAGS_V3, 8, 16, _V3), _aarch64())
# Name -> target. Of several that a machine can load, the first is preferred.
TARGETS: dict[str, Target] = {target.name: target for target in (*_gpus(), *_CPUS)}


@attrs.frozen
class Library:
    """A library of an artifact: ``target`` is whose schedules it has, ``of`` the targets that it is for."""

    target: Target
    of: tuple[Target, ...]

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def archs(self) -> tuple[str, ...]:
        """What its kernels are compiled for: sm_90 is a cubin, compute_80 the PTX for GPUs that no cubin fits; () where
        they run on the CPU."""
        capabilities = sorted({t.gpu.capability for t in self.of if t.gpu is not None}, reverse=True)
        lowest = self.target.gpu
        return (*(f"sm_{n}" for n in capabilities), f"compute_{lowest.capability}") if lowest is not None else ()


def default(machine: str = platform.machine()) -> tuple[Target, ...]:
    """The targets of a build that names none: all of the architecture, so that bytes depend on no CPU model."""
    return tuple(t for t in _CPUS if t.machine == ("aarch64" if machine == "aarch64" else "x86_64"))


def libraries(targets: tuple[Target, ...]) -> tuple[Library, ...]:
    """The libraries of an artifact for ``targets``, the preferred first: GPUs of a level share a library."""
    sets = dict.fromkeys(t.gpu.level if t.gpu is not None else t.name for t in targets)
    return tuple(
        Library(TARGETS[name], tuple(t for t in targets if name == (t.gpu.level if t.gpu else t.name))) for name in sets
    )
