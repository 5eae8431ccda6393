"""What a step costs, from its graphs alone: flops, bytes, kernels, calls and, at a target's rates, seconds.

A kernel takes its work at the peak rate and its bytes at the cache's rate, one after the other, shared among threads
where that pays, and its launch. Where a phase keeps more alive than the cache holds, the rest of its bytes come from
far. A call of a phase takes its kernels, and what the virtual machine and the loop cost around them. It is a model:
good for comparing ways to run one file on one target, and for telling where a step's time goes; a measured step on
another machine has other figures.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from ..graph.core import Graph, Value
from ..ops import OPS
from ..ops.work import Work
from ..phases.plan import Phase
from ..phases.run_settings import Settings
from .fusion_model import Kernel, kernels
from .memory_plan import beside


@frozen
class Rates:
    """What a target does in a second, and what it takes for less; the figures are in schedules/targets.py.

    ``flops``, ``bytes``: a second, of one thread; ``threads``: how many share a kernel
    ``cache``: bytes that a phase may keep alive and find at that rate; ``far``: bytes a second of what it does not find
    ``launch``: seconds of one kernel on one thread; ``fork``: seconds more where threads share it
    ``call``: seconds of one call of a phase, with what the loop does around it; ``port``: more for each in- and output
    ``halves``: as ``flops``, of products of bf16 and f16 on matrix units; 0 where there are none
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


@frozen
class Cost:
    """One call of a phase: its flops, as ``flops`` counts them, bytes that its kernels read and write, kernels, and
    seconds by the model."""

    flops: int
    bytes: int
    kernels: int
    seconds: float


UNIT_DEPTH = 16  # of an instruction of a matrix unit: a shorter product does not run there


def phase_cost(phase: Phase, rates: Rates, known: int | None = None) -> Cost:
    """One call of ``phase``; ``known``: its kernels, where a compiler has counted them."""
    made = kernels(phase.graph, phase.in_place)
    count = len(made) if known is None else known
    ports = len(phase.inputs) + len(phase.outputs)
    around = rates.call + ports * rates.port + (count - len(made)) * rates.launch
    missed = max(0.0, 1 - rates.cache / max(beside(phase), 1))
    seconds = around + sum(kernel_seconds(k, rates, missed) for k in made)
    return Cost(flops(phase.graph), sum(k.reads + k.writes for k in made), count, seconds)


def kernel_seconds(kernel: Kernel, rates: Rates, missed: float = 0) -> float:
    """One launch, on one thread or shared, whichever is less. ``missed``: the share of its bytes that come from far."""
    byte = (1 - missed) / rates.bytes + missed / rates.far
    busy = sum(work_seconds(v, rates) for v in kernel.values) + (kernel.reads + kernel.writes) * byte
    return rates.launch + min(busy, busy / rates.threads + rates.fork)


def work_seconds(v: Value, rates: Rates) -> float:
    """Of one thread, without the bytes: products on matrix units at their rate, all else at that of ``flops``."""
    made = work(v)
    rate = rates.halves if rates.halves and on_matrix_units(v, made) else rates.flops
    return made.products / rate + made.other / rates.flops


def on_matrix_units(v: Value, made: Work) -> bool:
    """Are the products of ``v``, of the work ``made``, of halves, and as deep as one instruction?"""
    floats = [a.type.dtype for a in v.args if a.type.kind == "float"][-3:]  # of a gradient of attention: not dy
    return made.depth >= UNIT_DEPTH and all(dtype in ("bf16", "f16") for dtype in floats)


def work(v: Value) -> Work:
    """The work of ``v``, which is no input, by its row."""
    return OPS[v.op].work(v.type, *(a.type for a in v.args), **v.attrs)


def flops(graph: Graph) -> int:
    """Multiplications and additions: 2 m n k of each product, attention's too; else one an element, none of moves."""
    return sum(work(v).flops for v in graph.values() if v.op)


def calls(phase: Phase, phases: Iterable[Phase], settings: Settings, trips: int | None) -> int:
    """Calls of ``phase`` in a step of training: 0 of init and passes. Where ``phases`` holds it stacked and single, the
    single one runs what the degree leaves over."""
    m, role = settings.microbatches, phase.role
    if role == "update":
        return 1
    if role != "train" and not role.startswith("generate."):
        return 0
    most = max(p.stack for p in phases if p.role == role)
    count = m // phase.stack if phase.stack == most else m % most
    return count * (trips or 0) if role == "generate.step" else count


def step_seconds(phases: Iterable[Phase], settings: Settings, rates: Rates, trips: int | None) -> float:
    """Seconds of a training step that runs ``phases``: generation and training together, and the update."""
    phases = tuple(phases)
    count = {p.function: calls(p, phases, settings, trips) for p in phases}
    return sum(count[p.function] * phase_cost(p, rates).seconds for p in phases if count[p.function])
