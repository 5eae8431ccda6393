"""What a compiler made of a plan, as text and as data: ``sexpgpu explain --target`` prints it, report.txt ends with it.

``made`` is compile.Made throughout; nothing of the lowering is imported.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..ops import OPS
from ..phases.plan import Plan
from ..planning.cost_model import Rates
from ..planning.memory_plan import Memory
from ..planning.memory_plan import data as memory_data
from ..planning.memory_plan import lines as memory_lines
from ..reports.cost import Row, as_data, cost_table, rows
from . import tuning_records
from .gpu_report import data as gpu_data
from .gpu_report import lines as gpu_lines

WIDTH = 100
RULE_WIDTH = 16  # letters of the longest name of a schedule rule, column-reduction
SHOWN = 6  # kinds of kernels that the report names for a rule
SILENT = ("broadcast", *(name for name, row in OPS.items() if row.fusion == "view"))  # moves beside other work


def lowering_text(plan: Plan, made: Any, rates: Mapping[str, Rates], memory: Memory) -> str:
    """The steps' figures, what the generator's part is, what memory the run takes, and each phase's kernels by the rule
    that took them."""
    names = tuple(made.compiled)
    launches, table = launches_of(made), lowered_rows(plan, made, rates, memory)
    lines = [
        f"lowered for {' and '.join(names)}: {len(made.lowered.programs)} kernels",
        *cost_table(table),
        "",
        *generation_line(plan, table),
        *memory_lines(memory),
    ]
    if made.libm:
        lines += [f"libm         the machine's C library decides the bits of {' '.join(made.libm)}"]
    lines += tuning_records.lines(made.tuning)
    lines += ["", "kernels of a call, by schedule rule"]
    for phase in plan.phases:
        lines += [f"{phase.name}: {launches[phase.function]}", *rule_lines(made, phase.function)]
    lines += [*notes(made), *gpu_lines(plan, made)]
    return "\n".join(lines) + "\n"


def launches_of(made: Any) -> dict[str, int]:
    """Function -> kernels that one call of it runs."""
    count = Counter[str](dict.fromkeys(made.lowered.planned, 0))
    for of in made.lowered.calls.values():
        count.update(of)
    return dict(count)


def lowered_rows(plan: Plan, made: Any, rates: Mapping[str, Rates], memory: Memory) -> list[Row]:
    """The rows of cost_report, with the kernels and the bytes of a call that the compiler found."""
    return rows(plan, rates, launches_of(made), {p.function: memory.phases[p.name] for p in plan.phases})


def generation_line(plan: Plan, table: Sequence[Row]) -> list[str]:
    """``generation   6 trips a microbatch: 16 of 19 calls of a step, 272 of 474 kernels, 65 % of its flops``."""
    if not plan.trips:
        return []
    part, whole = table[0], next(r for r in table if r.phase == "step")
    return [
        f"generation   {plan.trips} trips a microbatch: {part.calls} of {whole.calls} calls of a step, "
        f"{part.launches} of {whole.launches} kernels, {percent(part.flops, whole.flops)} of its flops"
    ]


def percent(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.0f} %"


def rule_lines(made: Any, function: str) -> list[str]:
    """``  matmul             18  7 matmul add, 3 matmul ...``: a rule, its kernels in a call, the commonest of them."""
    first = next(iter(made.compiled.values()))
    taken: dict[str, Counter[str]] = {}
    for kernel in (k for k in first.kernels if function in k.calls):
        taken.setdefault(kernel.rule or "NONE", Counter())[family(kernel.kernel)] += kernel.calls[function]
    lines: list[str] = []
    for rule, kinds in sorted(taken.items(), key=lambda item: (-item[1].total(), item[0])):
        head = f"  {rule:{RULE_WIDTH}} {kinds.total():4}  "
        lines += textwrap.wrap(commonest(kinds), WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
    return [line.replace("\xa0", " ") for line in lines]


def commonest(kinds: Mapping[str, int]) -> str:
    """``3 matmul add, 1 matmul, 4 more``, with spaces that no line is broken at inside an item."""
    shown = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    most = SHOWN if len(shown) > SHOWN + 1 else len(shown)
    rest = sum(n for _, n in shown[most:])
    items = [f"{n} {kind}" for kind, n in shown[:most]] + ([f"{rest} more"] if rest else [])
    return ", ".join(item.replace(" ", "\xa0") for item in items)


def family(kernel: str, most: int = 36) -> str:
    """A kernel's name without the numbers that tell equal ones of other shapes apart, and without the moves beside
    other work: ``fused_matmul3_reshape_add1`` is ``matmul add``."""
    words = [re.sub(r"\d+$", "", w) for w in kernel.replace("broadcast_to", "broadcast").split("_")]
    words = [w for w in words if w and w not in ("fused", "tir", "wrap")]
    text = " ".join([w for w in words if w not in SILENT] or words)
    return text if len(text) <= most or " " not in text else text[: text.rindex(" ", 0, most - 3)] + " ..."


def notes(made: Any) -> list[str]:
    """Kernels that no rule took, that targets' rules differ on, and faults of rules: nothing in a good build."""
    lines = [f"no schedule rule took {name}" for name in made.unscheduled]
    alike = {name: c for name, c in made.compiled.items() if name not in made.kernels}  # GPUs have rules of their own
    for same in zip(*(c.kernels for c in alike.values()), strict=True):
        if len({row.rule for row in same}) > 1:
            by = zip(alike, same, strict=True)
            lines.append(f"{same[0].kernel}: " + ", ".join(f"{row.rule or 'NONE'} for {target}" for target, row in by))
    lines += [
        f"{target}: {row.kernel}: {failure}"
        for target, compiled in made.compiled.items()
        for row in compiled.kernels
        for failure in row.failures
    ]
    return ["", *lines] if lines else []


def lowering_data(plan: Plan, made: Any, rates: Mapping[str, Rates], memory: Memory) -> dict[str, Any]:
    """The same for ``--output-format json``, with every kernel by name: its rule for each target, and phase -> times
    that one call runs it."""
    phase_of = {p.function: p.name for p in plan.phases}
    kernels = []
    for same in zip(*(c.kernels for c in made.compiled.values()), strict=True):
        kernels.append(
            {
                "kernel": same[0].kernel,
                "rules": {target: row.rule for target, row in zip(made.compiled, same, strict=True)},
                "calls": {phase_of[function]: n for function, n in same[0].calls.items()},
                "workspace": max(row.workspace for row in same),
                "failures": [failure for row in same for failure in row.failures],
                **({"launches": launches} if (launches := launches_by(made, same)) else {}),
            }
        )
    return {
        "run": plan.settings.name,
        "targets": list(made.compiled),
        "memory": memory_data(memory),
        "phases": [as_data(r) for r in lowered_rows(plan, made, rates, memory)],
        "kernels": kernels,
        "libm": list(made.libm),
        "tuning": tuning_records.data(made.tuning),
        **({"gpu": gpu_data(plan, made)} if made.kernels else {}),
    }


def launches_by(made: Any, same: Sequence[Any]) -> dict[str, list[Any]]:
    """Library for GPUs -> what each launch of one kernel asks of it."""
    return {library: list(row.launches) for library, row in zip(made.compiled, same, strict=True) if row.launches}
