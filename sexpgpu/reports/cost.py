"""What each phase of a plan costs, as one table: by the cost model alone, or with what a compiler counted.

Figures are of a step of training; those of a phase that no step calls (init, passes) are of one call. ``generate`` is
the sum of the generator's phases, ``step`` that of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import asdict, evolve, frozen

from ..phases.plan import Phase, Plan
from ..planning import cost_model
from ..planning.cost_model import Rates
from .explain import calls, describe_stacking, stacking_data, table


@frozen
class Row:
    """One phase, or the sum of several.

    calls:    of a step; 0 where no step calls it, and ``when`` says what does
    kernels:  of one call; None of a sum
    launches: kernels of a step, as are ``flops``, ``bytes`` (read and written by kernels) and ``seconds`` (target -> by
              the cost model); of one call where ``calls`` is 0
    memory:   bytes of a call, where a compiler planned them; of a sum, the largest
    """

    phase: str
    calls: int
    when: str
    kernels: int | None
    launches: int
    flops: int
    bytes: int
    seconds: Mapping[str, float]
    memory: int | None


def rows(
    plan: Plan,
    rates: Mapping[str, Rates],
    kernels: Mapping[str, int] | None = None,
    memory: Mapping[str, int] | None = None,
) -> list[Row]:
    """The phases in the order of a step, with their sums. ``rates``: target -> its rates; ``kernels`` and ``memory``:
    function -> kernels and bytes of a call, where a compiler knows them."""
    made = [row(plan, p, rates, kernels, memory) for p in plan.phases]
    step = [r for r in made if r.calls]
    generator = [r for r in step if r.phase.startswith("generate.")]
    name = "generate stacked" if plan.stacking.degree > 1 else "generate"
    inner = [evolve(r, phase=f"  {r.phase}") for r in generator]
    first = [total(name, generator), *inner] if generator else []
    rest = [r for r in step if r not in generator]
    return [*first, *rest, total("step", step), *(r for r in made if not r.calls)]


def row(
    plan: Plan,
    phase: Phase,
    rates: Mapping[str, Rates],
    kernels: Mapping[str, int] | None,
    memory: Mapping[str, int] | None,
) -> Row:
    """One phase as a row; the arguments are those of ``rows``."""
    known = kernels[phase.function] if kernels else None
    once = {target: cost_model.phase_cost(phase, of, known) for target, of in rates.items()}
    any_one = next(iter(once.values()))
    count = cost_model.calls(phase, plan.phases, plan.settings, plan.trips)
    times = count or 1
    return Row(
        phase.name,
        count,
        calls(plan, phase),
        any_one.kernels,
        times * any_one.kernels,
        times * any_one.flops,
        times * any_one.bytes,
        {target: times * c.seconds for target, c in once.items()},
        memory[phase.function] if memory else None,
    )


def total(name: str, parts: Sequence[Row]) -> Row:
    """The row ``name`` that sums ``parts``: their calls, and launches, flops, bytes and seconds of a step."""
    count = sum(r.calls for r in parts)
    return Row(
        name,
        count,
        str(count),
        None,
        sum(r.launches for r in parts),
        sum(r.flops for r in parts),
        sum(r.bytes for r in parts),
        {target: sum(r.seconds[target] for r in parts) for target in parts[0].seconds},
        max((r.memory for r in parts if r.memory is not None), default=None),
    )


def cost_table(made: Sequence[Row]) -> list[str]:
    """The rows under two lines of heads, at most 100 columns wide."""
    targets = list(made[0].seconds)
    with_memory = any(r.memory is not None for r in made)
    head = ["", "calls", "kernels", "kernels", "Mflop", "moved MiB", *(f"ms {t.rpartition('-')[2]}" for t in targets)]
    under = ["phase", "a step", "a call", *["a step"] * (len(head) - 3)]
    body = [cells(r) for r in made]
    if with_memory:
        head, under = [*head, "memory MiB"], [*under, "a call"]
        body = [[*c, f"{(r.memory or 0) / 2**20:.2f}"] for c, r in zip(body, made, strict=True)]
    return table([head, under, *body])


def cells(r: Row) -> list[str]:
    """A line of ``cost_table``, but for its memory."""
    ms = [f"{1000 * s:.2f}" for s in r.seconds.values()]
    kernels = "" if r.kernels is None else str(r.kernels)
    return [r.phase, r.when, kernels, str(r.launches), f"{r.flops / 1e6:.2f}", f"{r.bytes / 2**20:.2f}", *ms]


def cost_text(plan: Plan, rates: Mapping[str, Rates]) -> str:
    """``explain --cost``: the table, and what its figures are."""
    threads = " and ".join(sorted({str(r.threads) for r in rates.values()}))
    lines = [
        f"cost of a step of {plan.settings.name}, by the model; init and passes: of one call",
        *cost_table(rows(plan, rates)),
        "",
        *([*describe_stacking(plan.stacking), ""] if plan.settings.microbatches > 1 else []),
        f"Kernels and moved bytes are estimates from the graphs; ms are of {threads} threads at the targets' rates.",
        "sexpgpu explain --target T counts the compiled kernels.",
    ]
    return "\n".join(lines) + "\n"


def cost_data(plan: Plan, rates: Mapping[str, Rates]) -> dict[str, Any]:
    """``explain --cost`` as data: the rates by target, and the rows of ``rows``."""
    made = [as_data(r) for r in rows(plan, rates)]
    stacking = stacking_data(plan.stacking)
    return {
        "run": plan.settings.name,
        "stacking": stacking,
        "rates": {t: asdict(r) for t, r in rates.items()},
        "phases": made,
    }


def as_data(r: Row) -> dict[str, Any]:
    """``memory`` is absent where no compiler planned it, ``kernels`` of a sum."""
    return {key: value.strip() if key == "phase" else value for key, value in asdict(r).items() if value is not None}
