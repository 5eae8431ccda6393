"""A plan as text and as data: the run, its data, its phases and their graphs, and what a step costs by the model.

``sexpgpu explain`` prints it; report.txt begins with it. What a compiler adds is in build/report.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..graph.core import Graph
from ..phases.plan import Phase, Plan, Stacking
from ..phases.run_settings import Loader
from ..planning import cost_model, memory_plan


def explain(plan: Plan) -> str:
    """The whole report, at most 100 columns wide."""
    s = plan.settings
    numbers = sum(p.type.size for p in plan.parameters)
    frozen = sum(p.type.size for p in plan.parameters if p.is_frozen)
    training = {stage.loader for stage in s.stages}
    lines = [
        f"run          {s.name}: {s.steps} steps x {s.microbatches} microbatches, seed {s.seed}, {s.precision}",
        f"model        {s.model.name}: {len(plan.parameters)} parameters, {numbers:,} numbers"
        + (f", {frozen:,} of them frozen" if frozen else ""),
        *(f"data         {describe_loader(loader, n in training)}" for n, loader in s.loaders.items()),
    ]
    if plan.trips:
        lines.append(f"generation   {plan.trips} trips a microbatch make {', '.join(plan.generated)}")
    if s.microbatches > 1:
        lines += describe_stacking(plan.stacking)
    if s.passes:
        lines.append("evaluation   " + "; ".join(f"{p.name} on {p.loader} every {p.every} steps" for p in s.passes))
    taken = memory_plan.estimate(plan)
    lines += [*memory_plan.lines(taken), "", *table(phase_rows(plan, taken)), ""]
    lines += ["training step", *(f"  {line}" for line in outline(plan))]
    return "\n".join(lines) + "\n"


def describe_stacking(stacking: Stacking) -> list[str]:
    """The degree, and what a step is at each degree that was looked at."""
    what = f"{stacking.degree} microbatches a call" if stacking.degree > 1 else "none"
    lines = [f"stacking     {what}{stacking.reason and ': '}{stacking.reason}"]
    if len(stacking.offered) > 1:
        head = ("degree", "calls a step", "kernels a step, by the cost model")
        lines += [" " * 13 + line for line in table([head, *(tuple(map(str, row)) for row in stacking.offered)])]
    return lines


def describe_loader(loader: Loader, trains: bool) -> str:
    """``trains``: it feeds training; a pass reads in order, whatever ``:shuffle`` says."""
    where = ", ".join(loader.sources) if loader.sources else f"{loader.count} record numbers"
    fields = " ".join(f"{n} {t}" for n, t in loader.fields.items())
    more = f"{', shuffled' if loader.shuffle and trains else ''}{', in the artifact' if loader.embed else ''}"
    return f"{loader.name}: {where}, batches of {loader.batch}{more}: {fields}"


def phase_rows(plan: Plan, taken: memory_plan.Memory) -> list[Sequence[str]]:
    """A head, and a row a phase: its calls a step; ports, operators, Mflop and memory are of one call."""
    rows: list[Sequence[str]] = [("phase", "calls a step", "inputs", "outputs", "operators", "Mflop", "memory MiB")]
    for phase in plan.phases:
        operators = sum(1 for v in phase.graph.values() if v.op)
        rows.append(
            (
                phase.name,
                calls(plan, phase),
                str(len(phase.inputs)),
                str(len(phase.outputs)),
                str(operators),
                f"{cost_model.flops(phase.graph) / 1e6:.2f}",
                f"{taken.phases[phase.name] / 2**20:.2f}",
            )
        )
    return rows


def calls(plan: Plan, phase: Phase) -> str:
    """A step, or the occasion of phases that no step calls: a generator may run for passes alone."""
    count = cost_model.calls(phase, plan.phases, plan.settings, plan.trips)
    return str(count) if count else "once" if phase.name == "init" else "pass"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns aligned: the first to the left, the rest to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def outline(plan: Plan) -> list[str]:
    """The step's phases in order, each with its commonest operators; what calls of several microbatches leave over
    stands by itself."""
    degree, count = plan.stacking.degree, plan.settings.microbatches
    some = f"each {degree} of {count}" if degree < count else f"all {count}"
    rest = count % degree
    return [
        f"for {some if degree > 1 else f'each of {count}'} microbatches",
        *microbatch(plan, degree),
        *([f"for {'each of ' if rest > 1 else ''}the {rest} left over", *microbatch(plan, 1)] if rest else []),
        "update             " + histogram(plan.phase("update").graph),
    ]


def microbatch(plan: Plan, degree: int) -> list[str]:
    """The phases of a call of ``degree`` microbatches."""
    lines = []
    for role in ("generate.init", "generate.step", "generate.finish", "train"):
        trips = f"{plan.trips} trips: " if role == "generate.step" else ""
        found = (p for p in plan.phases if p.role == role and p.stack == degree)
        lines += [f"  {role:<15}  {trips}{histogram(p.graph)}" for p in found]
    return lines


def histogram(graph: Graph, most: int = 7) -> str:
    """The commonest operators of a graph with their counts, ``most`` of them: ``12 matmul 9 exp ...``."""
    counts = operators(graph)
    shown = " ".join(f"{n} {op}" for op, n in counts.most_common(most))
    return shown + (" ..." if len(counts) > most else "") if counts else "its inputs as they are"


def operators(graph: Graph) -> Counter[str]:
    """Operator -> how many of the graph's values it makes; inputs are not counted."""
    return Counter(v.op for v in graph.values() if v.op)


def data(plan: Plan) -> dict[str, Any]:
    """What ``explain`` says, for ``--output-format json``. ``calls`` is of a step: 0 of init and passes."""
    s, taken = plan.settings, memory_plan.estimate(plan)
    return {
        "run": {
            "name": s.name,
            "steps": s.steps,
            "microbatches": s.microbatches,
            "seed": s.seed,
            "precision": s.precision,
        },
        "model": {
            "name": s.model.name,
            "parameters": len(plan.parameters),
            "numbers": sum(p.type.size for p in plan.parameters),
            "frozen": sum(p.type.size for p in plan.parameters if p.is_frozen),
        },
        "loaders": [{"name": n, "batch": d.batch, "sources": list(d.sources)} for n, d in s.loaders.items()],
        "stacking": stacking_data(plan.stacking),
        "generation": {"trips": plan.trips, "makes": list(plan.generated)} if plan.trips else None,
        "passes": [{"name": p.name, "loader": p.loader, "every": p.every} for p in s.passes],
        "memory": memory_plan.data(taken),
        "phases": [phase_data(plan, p, taken) for p in plan.phases],
    }


def stacking_data(stacking: Stacking) -> dict[str, Any]:
    """The degree, why it is that one, and calls and kernels of a step at each degree that was looked at."""
    offered = [dict(zip(("degree", "calls", "kernels"), row, strict=True)) for row in stacking.offered]
    return {"degree": stacking.degree, "reason": stacking.reason, "offered": offered}


def phase_data(plan: Plan, phase: Phase, taken: memory_plan.Memory) -> dict[str, Any]:
    """One phase of ``data``: ``flops`` and ``memory``, in bytes, are of one call."""
    return {
        "phase": phase.name,
        "stack": phase.stack,
        "calls": cost_model.calls(phase, plan.phases, plan.settings, plan.trips),
        "inputs": len(phase.inputs),
        "outputs": len(phase.outputs),
        "operators": dict(operators(phase.graph)),
        "flops": cost_model.flops(phase.graph),
        "memory": taken.phases[phase.name],
    }
