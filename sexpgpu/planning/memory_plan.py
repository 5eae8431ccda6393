"""The memory of a run: what it holds throughout, and what each phase adds to that.

``estimate`` goes by the graphs alone and needs no compiler; ``explain`` shows it. A build knows better: it takes the
figures of the compiled phases, goes through the loop that calls them, and writes what it finds into the artifact.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import frozen

from ..graph.core import Graph, Value
from ..language.codes import MEM_LIMIT
from ..language.diagnostics import UserError
from ..phases.plan import Phase, Plan, Port
from .fusion_model import is_view, kernels

HELD = ("param", "optimizer", "gradient")  # ports whose tensors outlive the call, counted once for the run
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@frozen
class Memory:
    """Bytes. ``phases``: what a call of each needs beside parameters, optimizer entries and gradients: its batch and
    state, what it makes on the way and what it returns. ``total``: all that the run's tensors take at once.
    ``thread``: what each thread takes more; ``estimated``: by the graphs alone."""

    parameters: int
    optimizer: int
    gradients: int
    phases: Mapping[str, int]
    total: int
    thread: int = 0
    estimated: bool = False

    @property
    def train(self) -> int:
        return self._largest("train") or 0

    @property
    def generation(self) -> int | None:
        """The largest phase of the generator; None where there is none."""
        return self._largest("generate.")

    @property
    def largest(self) -> str:
        """The phase that needs the most."""
        return max(self.phases, key=lambda name: self.phases[name])

    def _largest(self, prefix: str) -> int | None:
        return max((size for name, size in self.phases.items() if name.startswith(prefix)), default=None)


def lines(memory: Memory) -> list[str]:
    """The report's ``memory`` line, all sizes in one unit so that they compare; in two, to stay below 100 columns."""
    of = unit(memory.total)
    parts = [f"{name} {size(getattr(memory, name), of)}" for name in ("parameters", "optimizer", "gradients", "train")]
    if memory.generation is not None:
        parts.append(f"generation {size(memory.generation, of)}")
    about = "about " if memory.estimated else ""
    return [
        f"memory       {', '.join(parts[:3])},",
        f"             {', '.join(parts[3:])}; {about}{size(memory.total, of)} in all",
    ]


def data(memory: Memory) -> dict[str, int | None]:
    """The same in bytes, for ``--output-format json``."""
    names = ("parameters", "optimizer", "gradients", "train", "generation", "total")
    return {name: getattr(memory, name) for name in names}


def unit(n: int) -> str:
    """The unit that ``n`` bytes read best in."""
    return UNITS[min(max(n, 1).bit_length() - 1, 49) // 10]


def size(n: int, of: str = "") -> str:
    """``n`` bytes in the unit ``of``, or in the one that reads best: ``0.4 GiB``."""
    of = of or unit(n)
    return f"{n} B" if of == "B" else f"{n / 1024 ** UNITS.index(of):.1f} {of}"


def estimate(plan: Plan) -> Memory:
    """The plan as the graphs tell it. The compiled one takes a fifth to a third more: kernels have workspaces, values
    share memory only as far as their sizes fit, and what one phase gave back is not always of use to the next."""
    parameters = sum(p.type.nbytes for p in plan.parameters)
    optimizer = sum(e.type.nbytes for e in plan.optimizer)
    train = next(p for p in plan.phases if p.role == "train")
    gradients = sum(port.type.nbytes for port in train.outputs if port.kind == "gradient")
    phases = {p.name: beside(p) for p in plan.phases}
    total = parameters + optimizer + gradients + max(phases.values())
    return Memory(parameters, optimizer, gradients, phases, total, estimated=True)


def check_limit(
    memory: Memory, limit: int | None, where: str, total: int | None = None, whose: str = "--memory-limit is"
) -> None:
    """E-MEM-001 if the run takes more than ``limit`` bytes. ``total``: all that it takes, if that is known better;
    ``whose``: the words before the limit."""
    total = memory.total if total is None else total
    if limit is not None and total > limit:
        what = f"the run takes {'about ' * memory.estimated}{size(total)} of memory, {whose} {size(limit)}; "
        what += f"its largest phase is {memory.largest} with {size(memory.phases[memory.largest])}"
        raise UserError(MEM_LIMIT, None, what, hint="a smaller :batch with more :microbatches takes less", where=where)


def check_room(
    memory: Memory, targets: Iterable[Any], limit: int | None, where: str, asked: Mapping[str, int] | None = None
) -> None:
    """E-MEM-001 if the run takes more than ``limit``, or than the card of one of the targets has. ``asked``: what
    a runner asks for, if that is known: of its machine by "", of a card by the name of its level."""
    asked = asked or {}
    check_limit(memory, limit, where, asked.get(""))
    for name, card in _cards(targets):
        check_limit(memory, card.memory, where, asked.get(card.level), f"{name} has")


def room_of(targets: Iterable[Any], limit: int | None) -> int | None:
    """Bytes that a run may take to fit into ``limit`` and each target's card; None where all have no end."""
    return min((n for n in (limit, *(card.memory for _, card in _cards(targets))) if n is not None), default=None)


def _cards(targets: Iterable[Any]) -> list[tuple[str, Any]]:
    return [(t.name, t.gpu) for t in targets if t.gpu is not None and t.gpu.memory]


def parse_size(text: str) -> int:
    """Bytes of ``4GiB``; ValueError unless it is a number with one of UNITS."""
    match = re.fullmatch(r"([0-9]{1,15}(?:[.][0-9]{1,3})?)([KMGT]iB|B)", text)
    if not match:
        raise ValueError(text)
    return int(float(match[1]) * 1024 ** UNITS.index(match[2]))


def measured(plan: Plan, calls: Mapping[str, int], total: int, thread: int) -> Memory:
    """The plan of compiled phases: ``calls``: function -> bytes of its intermediates and its kernels' workspace."""
    held = estimate(plan)
    phases = {p.name: calls[p.function] + ports(p) for p in plan.phases}
    return Memory(held.parameters, held.optimizer, held.gradients, phases, total, thread)


def ports(phase: Phase) -> int:
    """Bytes of the inputs and results of a call that the run does not hold anyway."""
    return sum(port.type.nbytes for port in (*phase.inputs, *returned(phase)) if port.kind not in HELD)


def returned(phase: Phase) -> list[Port]:
    """The outputs but those that take an input's place."""
    pairs = dict(phase.in_place)
    return [port for o, port in enumerate(phase.outputs) if o not in pairs]


def beside(phase: Phase) -> int:
    """Bytes of a call beside what the run holds: its other inputs, and the most alive at once."""
    held = sum(port.type.nbytes for port in phase.outputs if port.kind in HELD)
    given = sum(port.type.nbytes for port in phase.inputs if port.kind not in HELD)
    return given + max(0, live_bytes(phase.graph) + copied_bytes(phase) - held)


def copied_bytes(phase: Phase) -> int:
    """Of outputs that nothing makes: inputs, and values returned twice, are copied."""
    made = {v for _, v in phase.graph.outputs if v.op}
    pairs = dict(phase.in_place)
    all_of_them = [v.type.nbytes for o, (_, v) in enumerate(phase.graph.outputs) if v.op or o not in pairs]
    return sum(all_of_them) - sum(v.type.nbytes for v in made)


def live_bytes(graph: Graph) -> int:
    """The largest sum of values alive at once, of those that one kernel makes for another, or that are returned."""
    steps = [k for k in kernels(graph) if k.values]
    home = {v: n for n, k in enumerate(steps) for v in k.values}
    outputs = {source(v) for _, v in graph.outputs}
    last: dict[Value, int] = {}  # of each value that is kept: the last kernel that reads it
    for n, k in enumerate(steps):
        last.update((source(a), n) for v in k.values for a in v.args if home.get(source(a), n) != n)
    last.update((v, len(steps)) for v in outputs if v in home)
    alive = [0] * (len(steps) + 1)  # by how much more is alive from a kernel on
    for v, end in last.items():
        alive[home[v]] += v.type.nbytes
        if end < len(steps):
            alive[end + 1] -= v.type.nbytes
    return max(itertools.accumulate(alive))


def source(v: Value) -> Value:
    """The value whose memory ``v`` is in: itself, or what it is a view of."""
    while is_view(v):
        v = v.args[0]
    return v
