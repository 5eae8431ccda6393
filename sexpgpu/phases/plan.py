"""Phases: the graphs of a step, each a pure function of named ports. The last thing that knows no TVM.

A run is: init once; then for each microbatch generate.init, generate.step x trips, generate.finish, train; then update
once a step; eval.NAME for each pass. ``trace_run`` makes them all from a RunFile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from ..graph.core import Graph
from ..language.runfile import RunFile
from ..ops.types import TensorType
from ..trace.parameters import Parameter
from .optimizer import OptimizerEntry
from .run_settings import Settings

if TYPE_CHECKING:
    from .plan import Phase

PORT_KINDS = (
    "param",
    "optimizer",
    "gradient",
    "field",
    "generated",
    "state",
    "trip",
    "ctx",
    "counter",
    "seed",
    "metric",
    "diagnostic",
)


@frozen
class Port:
    """One argument or result of a phase; ``kind`` is one of PORT_KINDS."""

    kind: str
    name: str
    type: TensorType


@frozen(eq=False)
class Phase:
    """``in_place``: (output, input) pairs; the compiler writes that output into that input's memory where it can.
    ``stack``: microbatches in one call; of more than one, the name is ``ROLE*stack``."""

    name: str
    graph: Graph
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    in_place: tuple[tuple[int, int], ...]
    stack: int = 1

    @property
    def role(self) -> str:
        """What it does, whatever its degree: ``train``."""
        return self.name.partition("*")[0]

    @property
    def function(self) -> str:
        """Its symbol in the library."""
        return self.graph.name


@frozen
class Stacking:
    """``degree``: microbatches in one call. ``reason``: why it is 1 in a run that has more, or "". ``offered``: each
    degree that was looked at, with the calls and the kernels of its step, these counted from the graphs."""

    degree: int = 1
    reason: str = ""
    offered: tuple[tuple[int, int, int], ...] = ()


@frozen(eq=False)
class Plan:
    """A checked run: everything that the compiler, the interpreter and the manifest need.

    ``bounds``: (loader, field) -> what an integer field must satisfy, so that no look-up
    leaves its table. ``evaluates``: pass name -> whether the generator runs on its batches.
    """

    run: RunFile
    settings: Settings
    phases: tuple[Phase, ...]
    trips: int | None
    generated: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    optimizer: tuple[OptimizerEntry, ...]
    evaluates: dict[str, bool]
    bounds: dict[tuple[str, str], Bounds]
    identity: dict[str, str]
    diagnostics: tuple[str, ...]
    stacking: Stacking = Stacking()

    def phase(self, name: str) -> Phase:
        """The phase of that name; of a role that only runs stacked, that one."""
        return next(p for p in sorted(self.phases, key=lambda p: p.stack) if name in (p.name, p.role))


@frozen
class Bounds:
    """``low`` <= x < ``high`` for every number of a field's records, None where not all of them are looked up; and
    ``parts``: (low, high, start, stop), the same for those from ``start`` up to, without, ``stop``, one an axis."""

    low: int | None = None
    high: int | None = None
    parts: tuple[tuple[int, int, tuple[int, ...], tuple[int, ...]], ...] = ()
