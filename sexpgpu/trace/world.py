"""What the graphs of one run have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import define, field

from ..language.diagnostics import Report, UserError
from .parameters import Parameters
from .values import Closure, Marker, Model

if TYPE_CHECKING:
    from ..language.runfile import Definition, RunFile


@define(eq=False)
class World:
    """The report, the parameters and the functions of a run, and how much was evaluated for all its graphs."""

    run: RunFile
    report: Report
    parameters: Parameters = field(factory=Parameters)
    functions: dict[str, Closure] = field(factory=dict)  # defuns, by name
    model: Model | Marker | None = None  # what defrun binds to `model`; POISON where that has a fault
    precision: str = "f32"  # what model code runs in
    counters: tuple[str, ...] = ()  # what prepare declared, once train is traced
    counts_undrawn: bool = False  # does the generator hand on how many draws had no distribution? once it is traced
    sound: dict[int, Any] = field(factory=dict)  # lists without POISON, by id
    steps: int = 0  # evaluations so far
    told: dict[tuple[str, str], str] = field(factory=dict)  # code and place of a fault -> the graph that had it first

    def fault(self, error: UserError, form: str) -> None:
        """Report a fault of the graph ``form``, unless another graph met one of that code at that place: a fault of a
        model is told once, whoever calls it, and with batches of whatever size."""
        if self.told.setdefault((error.code.name, error.where), form) == form:
            self.report.add(error)

    def function(self, definition: Definition) -> Closure:
        """A defun, one object for all graphs: what is made of equal functions need not be made again."""
        if definition.name not in self.functions:
            assert definition.params
            self.functions[definition.name] = Closure(
                definition.name, definition.params, definition.body, None, None, definition.form.span
            )
        return self.functions[definition.name]
