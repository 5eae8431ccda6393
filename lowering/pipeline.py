"""From a module of graphs to an executable: every pass, in order, on this page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
from attrs import define, field, frozen
from tvm import relax, tirx
from tvm.relax import transform as rt

from . import elementary
from .passes.in_place import Pair, in_place
from .passes.memory import planned, workspaces
from .passes.schedule import Kernel, Scheduler, schedule


@frozen
class Compiled:
    """An executable and what a build has to know about it.

    in_place: function -> the (output, input) pairs that are really done; the function returns its other outputs
    memory:   function -> bytes of a call beyond its inputs: planned intermediates, outputs, largest kernel workspace
    kernels:  one row a compiled tensor program, by name
    """

    executable: Any
    target: tvm.target.Target
    in_place: Mapping[str, tuple[Pair, ...]]
    memory: Mapping[str, int]
    kernels: tuple[Kernel, ...]


@define
class _State:
    """What the passes need to be told, and what they find out."""

    target: tvm.target.Target
    scheduler: Scheduler
    wanted: Mapping[str, Sequence[Pair]]
    done: dict[str, list[Pair]] = field(factory=dict)
    planned: dict[str, int] = field(factory=dict)
    calls: dict[str, dict[str, int]] = field(factory=dict)
    told: dict[str, tuple[str, tuple[str, ...]]] = field(factory=dict)
    workspaces: dict[str, int] = field(factory=dict)


# TVM names vectors of truth values that its own analyzer then refuses; LLVM finds common subexpressions anyway.
CONFIG = {"tirx.disable_cse_tir": True}

Pass = tuple[str, Callable[[tvm.IRModule, _State], tvm.IRModule]]


def _tvm(name: str) -> Pass:
    made = getattr(rt, name)()
    return name, lambda module, state: made(module)


def _in_place(module: tvm.IRModule, state: _State) -> tvm.IRModule:
    module, state.done = in_place(module, state.wanted)
    return module


def _count(module: tvm.IRModule, state: _State) -> tvm.IRModule:
    state.calls, state.planned = kernel_calls(module), planned(module)
    return module


def _schedule(module: tvm.IRModule, state: _State) -> tvm.IRModule:
    module, state.told = schedule(module, state.target, state.scheduler)
    state.workspaces = workspaces(module)
    return module


# FoldConstant is left out: it would compile and run kernels on the building machine, whose bits need not be the
# target's, and our own simplifier has folded what is worth folding. Programs are scheduled last, so that the checks
# of the in-place pass and the recognition of views see plain loops.
PASSES: tuple[Pass, ...] = (
    _tvm("LegalizeOps"),
    _tvm("AnnotateTIROpPattern"),
    _tvm("FuseOps"),
    _tvm("FuseTIR"),  # equal programs become one here, so that equal layers share kernels
    _tvm("DeadCodeElimination"),
    _tvm("RewriteDataflowReshape"),  # a reshape of an intermediate is a view
    _tvm("ToNonDataflow"),
    _tvm("RemovePurityChecking"),
    _tvm("CallTIRRewrite"),  # kernels write into what they are given
    ("InPlace", _in_place),
    _tvm("DeadCodeElimination"),
    _tvm("StaticPlanBlockMemory"),
    ("Count", _count),
    ("Schedule", _schedule),
    # Fusion and schedules repeat a program's body, its let variables with it.
    ("ConvertSSA", lambda module, state: tirx.transform.ConvertSSA()(module)),
    _tvm("LowerAllocTensor"),
    _tvm("KillAfterLastUse"),
    _tvm("LowerRuntimeBuiltin"),
    _tvm("ComputePrimValue"),
    _tvm("VMShapeLower"),
    _tvm("AttachGlobalSymbol"),
)


def compile(
    module: tvm.IRModule,
    target: tvm.target.Target,
    scheduler: Scheduler,
    in_place: Mapping[str, Sequence[Pair]] | None = None,
    dump: Path | str | None = None,
) -> Compiled:
    """Compile every function of ``module`` for ``target``.

    scheduler: asked once for each tensor program, see passes/schedule.py
    in_place:  function -> (output, input) pairs to write into the input's memory where that is safe
    dump:      a folder that gets the module after each pass, as text
    """
    elementary.install()
    target = target if target.host is not None else target.with_host(target)  # never the building machine's
    state = _State(target, scheduler, in_place or {})
    with target, tvm.transform.PassContext(config=CONFIG):
        for n, (name, run) in enumerate(PASSES):
            module = run(module, state)
            if dump is not None:
                _write(module, Path(dump) / f"{n:02}-{name}.py")
        executable = relax.build(module, target, relax_pipeline=None)
    done = {name: tuple(pairs) for name, pairs in state.done.items()}
    return Compiled(executable, target, done, _memory(state), _kernels(state))


def _write(module: tvm.IRModule, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(module.script(show_meta=True), encoding="utf-8")


def kernel_calls(module: tvm.IRModule) -> dict[str, dict[str, int]]:
    """Program -> function -> how often a call of the function runs it; after CallTIRRewrite."""
    calls: dict[str, dict[str, int]] = {}
    for gv, func in module.functions_items():
        if not isinstance(func, relax.Function):
            continue
        for value in (b.value for block in func.body.blocks for b in block.bindings):
            if isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.GlobalVar):
                of = calls.setdefault(value.op.name_hint, {})
                of[gv.name_hint] = of.get(gv.name_hint, 0) + 1
    return calls


def _memory(state: _State) -> dict[str, int]:
    largest = {
        name: max((state.workspaces.get(k, 0) for k, of in state.calls.items() if name in of), default=0)
        for name in state.planned
    }
    return {name: size + largest[name] for name, size in sorted(state.planned.items())}


def _kernels(state: _State) -> tuple[Kernel, ...]:
    return tuple(
        Kernel(name, rule, failures, dict(sorted(state.calls.get(name, {}).items())), state.workspaces.get(name, 0))
        for name, (rule, failures) in sorted(state.told.items())
    )
