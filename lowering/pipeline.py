"""From a module of graphs to its functions in the virtual machine's form and their kernels: every pass, in order, on
this page. Nothing here knows the target; ``codegen`` goes on from here, once for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import tvm
from attrs import define, field, frozen
from tvm import relax, tirx
from tvm.relax import transform as rt

from .passes.buffer_donation import Pair, in_place
from .passes.drop_argument_checks import drop_argument_checks
from .passes.horizontal_fusion import fuse_horizontally
from .passes.legalize import legalize
from .passes.memory_usage import Call, call_memory, constants
from .passes.reshape_views import reshapes_to_views
from .passes.storage_planning import plan_storage


@frozen
class Lowered:
    """What the libraries of all targets have in common.

    module:    the functions, ready for the virtual machine, and the tensor programs that they call, not yet scheduled
    in_place:  function -> the (output, input) pairs that are really done; the function returns its other outputs
    planned:   function -> the memory that a call asks for, and its kernels in order
    calls:     program -> function -> how often one call of the function runs it
    constants: bytes of each constant of the functions
    """

    module: tvm.IRModule
    in_place: Mapping[str, tuple[Pair, ...]]
    planned: Mapping[str, Call]
    calls: Mapping[str, Mapping[str, int]]
    constants: tuple[int, ...]

    @property
    def programs(self) -> dict[str, tirx.PrimFunc]:
        """The tensor programs by name, in the order of their names."""
        named = {gv.name_hint: f for gv, f in self.module.functions_items() if isinstance(f, tirx.PrimFunc)}
        return dict(sorted(named.items()))


@define
class _State:
    """What the passes need to be told, and what they find out."""

    wanted: Mapping[str, Sequence[Pair]]
    done: dict[str, list[Pair]] = field(factory=dict)
    planned: dict[str, Call] = field(factory=dict)
    calls: dict[str, dict[str, int]] = field(factory=dict)


Pass = tuple[str, Callable[[tvm.IRModule, _State], tvm.IRModule]]


def _tvm(name: str) -> Pass:
    made = getattr(rt, name)()
    return name, lambda module, state: made(module)


def _horizontal_fusion(module: tvm.IRModule, state: _State) -> tvm.IRModule:
    return fuse_horizontally(module, state.wanted)


def _donate_buffers(module: tvm.IRModule, state: _State) -> tvm.IRModule:
    module, state.done = in_place(module, state.wanted)
    return module


def _count_calls(module: tvm.IRModule, state: _State) -> tvm.IRModule:
    state.calls, state.planned = kernel_calls(module), call_memory(module)
    return module


# FoldConstant is left out: it would compile and run kernels on the building machine, whose bits need not be the
# target's, and our own simplifier has folded what is worth folding. Programs are scheduled after all of this, so that
# the checks of the in-place pass and the recognition of views see plain loops.
PASSES: tuple[Pass, ...] = (
    ("LegalizeOps", lambda module, state: legalize(module)),
    _tvm("AnnotateTIROpPattern"),
    ("HorizontalFusion", _horizontal_fusion),
    _tvm("FuseOps"),
    _tvm("FuseTIR"),  # equal programs become one here, so that equal layers share kernels
    _tvm("DeadCodeElimination"),
    ("RewriteDataflowReshape", lambda module, state: reshapes_to_views(module)),  # of an intermediate: a view, no copy
    _tvm("ToNonDataflow"),
    _tvm("RemovePurityChecking"),
    _tvm("CallTIRRewrite"),  # kernels write into what they are given
    _tvm("CanonicalizeBindings"),  # what a kernel of several outputs made is named, not taken out of a tuple
    ("DonateBuffers", _donate_buffers),
    _tvm("DeadCodeElimination"),
    ("PlanStorage", lambda module, state: plan_storage(module)),
    ("CountCalls", _count_calls),
    _tvm("LowerAllocTensor"),
    _tvm("LowerRuntimeBuiltin"),
    _tvm("ComputePrimValue"),
    ("DropArgumentChecks", lambda module, state: drop_argument_checks(module)),
    _tvm("VMShapeLower"),
    _tvm("AttachGlobalSymbol"),
)


def lower(
    module: tvm.IRModule, in_place: Mapping[str, Sequence[Pair]] | None = None, dump: Path | str | None = None
) -> Lowered:
    """Every function of ``module`` in the virtual machine's form, with its kernels.

    in_place: function -> (output, input) pairs to write into the input's memory where that is safe
    dump:     a folder that gets the module after each pass, as text
    """
    state = _State(in_place or {})
    for n, (name, run) in enumerate(PASSES):
        module = run(module, state)
        if dump is not None:
            _write(module, Path(dump) / f"{n:02}-{name}.py")
    done = {name: tuple(pairs) for name, pairs in state.done.items()}
    return Lowered(module, done, state.planned, state.calls, constants(module))


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
