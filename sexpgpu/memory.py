"""The memory of a run: what it holds throughout, and what each phase adds to that.

``estimate`` goes by the graphs alone and needs no compiler; ``explain`` shows it. A build knows better: it takes the
figures of the compiled phases, goes through the loop that calls them, and writes what it finds into the artifact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from attrs import frozen

from .graph import Graph, Value
from .phases import Phase, Plan, Port

HELD = ("param", "optimizer", "gradient")  # ports whose tensors outlive the call, counted once for the run
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@frozen
class Memory:
    """Bytes. ``phases``: what a call of each needs beside parameters, optimizer entries and gradients: its batch and
    state, what it makes on the way and what it returns. ``total``: all that the run's tensors take at once."""

    parameters: int
    optimizer: int
    gradients: int
    phases: Mapping[str, int]
    total: int

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
    return [
        f"memory       {', '.join(parts[:3])},",
        f"             {', '.join(parts[3:])}; {size(memory.total, of)} in all",
    ]


def unit(n: int) -> str:
    """The unit that ``n`` bytes read best in."""
    return UNITS[min(max(n, 1).bit_length() - 1, 49) // 10]


def size(n: int, of: str = "") -> str:
    """``n`` bytes in the unit ``of``, or in the one that reads best: ``0.4 GiB``."""
    of = of or unit(n)
    return f"{n} B" if of == "B" else f"{n / 1024 ** UNITS.index(of):.1f} {of}"


def estimate(plan: Plan) -> Memory:
    """The plan as the graphs tell it: the largest sum of values alive at once, in the order they are written."""
    parameters = sum(p.type.nbytes for p in plan.parameters)
    optimizer = sum(e.type.nbytes for e in plan.optimizer)
    gradients = sum(port.type.nbytes for port in plan.phase("train").outputs if port.kind == "gradient")
    phases = {p.name: beside(p) for p in plan.phases if p.name != "init"}
    return Memory(parameters, optimizer, gradients, phases, parameters + optimizer + gradients + max(phases.values()))


def beside(phase: Phase) -> int:
    """Bytes of a call beside what the run holds: its other inputs, and the most alive at once."""
    held = sum(port.type.nbytes for port in phase.outputs if port.kind in HELD)
    given = sum(port.type.nbytes for port in phase.inputs if port.kind not in HELD)
    return given + max(0, live_bytes(phase.graph) + copied_bytes(phase) - held)


def least(plan: Plan) -> int:
    """Bytes that the run takes whatever the compiler makes of it: its parameters, optimizer entries and gradients, and
    one phase's batch, state and results."""
    memory = estimate(plan)
    ports = [sum(port.type.nbytes for port in (*p.inputs, *returned(p)) if port.kind not in HELD) for p in plan.phases]
    return memory.parameters + memory.optimizer + memory.gradients + max(ports)


def returned(phase: Phase) -> list[Port]:
    """The outputs, without the state's entries that are inputs left where they are."""
    kept = {o for o, _ in phase.in_place if phase.outputs[o].kind == "state"}
    return [port for o, port in enumerate(phase.outputs) if o not in kept]


def copied_bytes(phase: Phase) -> int:
    """Of outputs that nothing makes: inputs, and values returned twice, are copied."""
    made = {v for _, v in phase.graph.outputs if v.op}
    return sum(port.type.nbytes for port in returned(phase)) - sum(v.type.nbytes for v in made)


def live_bytes(graph: Graph) -> int:
    """The largest sum of values alive at once, in definition order, nothing fused: an upper estimate without inputs."""
    values = graph.values()
    last: dict[Value, float] = {}
    for at, v in enumerate(values):
        for a in v.args:
            last[a] = at
    for _, v in graph.outputs:
        last[v] = math.inf
    alive = peak = 0
    dying: dict[float, list[Value]] = {}
    for v, at in last.items():
        dying.setdefault(at, []).append(v)
    for at, v in enumerate(values):
        if v.op:
            alive += v.type.nbytes
        peak = max(peak, alive)
        alive -= sum(d.type.nbytes for d in dying.get(at, ()) if d.op)
    return peak
