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
from ..phases.plan import Phase
from ..phases.run_settings import Settings
from .fusion_model import FREE, VIEWS, Kernel, kernels
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


# Free of arithmetic: elements are moved, or stand in the program.
MOVES = {
    *VIEWS,
    *FREE,
    "transpose",
    "broadcast",
    "slice",
    "concat",
    "pad",
    "flip",
    "iota",
    "cast",
    "gather",
    "take-along",
}

# Multiplications and additions at the peak rate that take as long as one element of an operator, rounded: of the
# kernels' times in docs/performance.md. Most of them are long chains, integer work, or divisions.
WORK = {
    **dict.fromkeys(("/", "sqrt", "rsqrt", "mod", "quot", "floordiv"), 10),
    **dict.fromkeys(("exp", "expm1", "log", "log1p"), 40),
    **dict.fromkeys(("tanh", "sigmoid", "sin", "cos", "erf"), 60),
    **dict.fromkeys(("gelu", "gelu-slope", "silu", "silu-slope"), 70),
    **dict.fromkeys(("softmax", "log-softmax", "softmax-grad", "log-softmax-grad"), 60),
    **dict.fromkeys(("normalize", "rms-normalize", "normalize-grad", "rms-normalize-grad"), 30),
    **dict.fromkeys(("argmax", "argmin", "cumsum", "gather", "take-along", "transpose"), 15),
    **dict.fromkeys(("scatter-add", "scatter-rows", "scatter-along"), 60),
    "pow": 150,
    "philox": 90,
}
# Of the scores of attention: products of a key's depth and of a value's that an operator makes, softmaxes and their
# gradients, and elements of other operators. The gradients are one kernel; the first makes what they share.
ATTENTION = {
    "attend": (1, 1, 1, 1),
    "attend-grad-q": (2, 1, 2, 2),
    "attend-grad-k": (1, 0, 0, 0),
    "attend-grad-v": (0, 1, 0, 0),
}
ENDS = 8  # multiplications that beginning and ending a sum of a product costs: short ones reach less of the peak
UNIT_DEPTH = 16  # of an instruction of a matrix unit: a shorter product does not run there
PLAIN = 2  # any other element: an addition takes the place of a multiplication and an addition


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
    products, rest = work(v)
    return products / (rates.halves if rates.halves and on_matrix_units(v) else rates.flops) + rest / rates.flops


def on_matrix_units(v: Value) -> bool:
    """Are the products of ``v`` of halves, and as deep as one instruction?"""
    floats = [a.type for a in v.args if a.type.kind == "float"][-3:]
    if not all(t.dtype in ("bf16", "f16") for t in floats):
        return False
    return v.op in ATTENTION or (v.op == "matmul" and inner(v) >= UNIT_DEPTH)


def work(v: Value) -> tuple[float, float]:
    """Multiplications and additions at the peak rate that take as long as the products of ``v``, and as all else."""
    if v.op == "matmul":
        return 2 * v.type.size * (inner(v) + ENDS), 0
    if v.op in FREE or v.op in VIEWS:
        return 0, 0
    if v.op in ATTENTION:
        scores, depth, (keys, values, rows, others) = attention(v)
        products = scores * 2 * (depth + ENDS * (keys + values))
        return products, scores * (rows * WORK["softmax"] + others * PLAIN)
    return 0, WORK.get(v.op, PLAIN) * elements(v)


def elements(v: Value) -> int:
    """Of the result or the largest argument, for what is reduced or looked at one by one; else of the result."""
    whole = v.op in ("sum", "prod", "reduce-max", "reduce-min", "argmax", "argmin", "scatter-add")
    return max((v.type.size, *(a.type.size for a in v.args))) if whole else v.type.size


def flops(graph: Graph) -> int:
    """Multiplications and additions: 2 m n k of each product, attention's too; else one an element, none of moves."""
    return sum(own_flops(v) for v in graph.values() if v.op and v.op not in MOVES)


def own_flops(v: Value) -> int:
    """Of one value. Attention has, beside its products, one a score for each of ATTENTION's other counts."""
    if v.op in ATTENTION:
        scores, depth, (_, _, rows, others) = attention(v)
        return scores * (2 * depth + rows + others)
    return 2 * v.type.size * inner(v) if v.op == "matmul" else v.type.size


def attention(v: Value) -> tuple[int, int, tuple[int, int, int, int]]:
    """How many scores the attention of ``v`` has, the depths of its products together, and its row of ATTENTION."""
    q, k, values = [a.type for a in v.args if a.type.kind == "float"][-3:]
    counts = ATTENTION[v.op]
    return q.size // q.shape[-1] * k.shape[-2], counts[0] * q.shape[-1] + counts[1] * values.shape[-1], counts


def inner(v: Value) -> int:
    """The summed dimension of a matmul."""
    return v.args[0].type.shape[-2 if v.attrs.get("ta") else -1]


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
