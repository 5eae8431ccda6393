"""Which intermediate tensors of a function share memory, decided now.

Runs after CallTIRRewrite, where a function is a list of allocations, kernel calls that name their destination, and
views. A call then asks for each block of memory once and gives all back when it returns: nothing in between has to be
released. A block is one tensor, of bytes, which stands for all that lies in it one after the other, views too: kernels
look at no more of an argument than its address (their shapes are fixed, their checks left out), and each object takes
as long as a small kernel. Results stay allocations of their own, since they outlive the call.

TVM's own plan (StaticPlanBlockMemory) shares as much, and makes an object for every tensor.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from attrs import define, field, frozen
from tvm import relax

from .buffer_donation import is_alloc, owners_of, renamed

RESHAPE = "relax.reshape"


@frozen
class Life:
    """An intermediate of ``size`` bytes that the bindings ``first`` to ``last`` write and read."""

    var: relax.Var
    size: int
    first: int
    last: int


@define
class Block:
    """Memory of ``size`` bytes for tensors of which no two live at once: ``lives``, in order; ``firsts`` of them."""

    size: int
    lives: list[Life] = field(factory=list)
    firsts: list[int] = field(factory=list)

    def take(self, life: Life) -> bool:
        """Puts ``life`` among ``lives``, unless another one is in its way."""
        n = bisect.bisect_right(self.firsts, life.last)
        if n and self.lives[n - 1].last >= life.first:
            return False
        self.lives.insert(n, life)
        self.firsts.insert(n, life.first)
        return True


def storages(module: tvm.IRModule) -> tvm.IRModule:
    """Give the intermediates of every Relax function of ``module`` their blocks."""
    module = module.clone()
    for gv, func in module.functions_items():
        if isinstance(func, relax.Function):
            module.update_func(gv, _planned(func))
    return module


def shared(lives: Sequence[Life]) -> list[Block]:
    """Blocks for ``lives``: large ones first, each into the smallest block that is free while it lives, or into a new
    one (greedy by size, Pisarchyk and Lee 2020, arXiv:2001.03288)."""
    sizes: dict[int, list[Block]] = {}  # largest first, as they are made
    for life in sorted(lives, key=lambda life: (-life.size, life.first)):
        smallest = (block for size in reversed(sizes) for block in sizes[size])
        if not any(block.take(life) for block in smallest):
            block = Block(life.size)
            block.take(life)
            sizes.setdefault(life.size, []).append(block)
    return [block for blocks in sizes.values() for block in blocks]


def _planned(func: relax.Function) -> relax.Function:
    bindings = [(b.var, b.value) for block in func.body.blocks for b in block.bindings]
    made, home = [], {}
    for n, block in enumerate(shared(_lives(func, bindings))):
        storage = relax.Var(f"storage{n}", relax.AnyType())
        tensor = relax.Var(f"block{n}", relax.TensorType(_shape(block.size), "uint8"))
        space = relax.op.memory.alloc_storage(_shape(block.size), 0, "global", "uint8")
        made.append(relax.VarBinding(storage, space))
        made.append(relax.VarBinding(tensor, relax.op.memory.alloc_tensor(storage, 0, _shape(block.size), "uint8")))
        home.update((life.var, tensor) for life in block.lives)
    made += _rewritten(bindings, home)
    body = relax.SeqExpr([relax.BindingBlock(made)], func.body.body)
    return relax.Function(func.params, body, func.ret_ty, is_pure=func.is_pure, attrs=func.attrs)


def _lives(func: relax.Function, bindings: Sequence[tuple[relax.Var, Any]]) -> list[Life]:
    """Of every allocation whose memory is not returned, in the order of their first use."""
    owners: dict[Any, frozenset[relax.Var]] = {p: frozenset((p,)) for p in func.params}
    uses: dict[relax.Var, list[int]] = {}
    for n, (var, value) in enumerate(bindings):
        if is_alloc(value):
            owners[var], uses[var] = frozenset((var,)), []
            continue
        owners[var] = owners_of(value, owners)
        for memory in owners[var]:
            if memory in uses:
                uses[memory].append(n)
    returned = owners_of(func.body.body, owners)
    return [Life(v, _bytes(v), n[0], n[-1]) for v, n in uses.items() if n and v not in returned]


def _bytes(var: relax.Var) -> int:
    dtype = var.ty.dtype
    bits = tvm.DataType(str(getattr(dtype, "dtype", dtype))).bits
    return max(1, math.prod(int(n) for n in var.ty.shape)) * ((bits + 7) // 8)


def _shape(*sizes: int) -> relax.ShapeExpr:
    return relax.ShapeExpr([relax.prim_value(n) for n in sizes])


def _rewritten(
    bindings: Sequence[tuple[relax.Var, Any]], home: Mapping[relax.Var, relax.Var]
) -> list[relax.VarBinding]:
    """The bindings that are left where each planned allocation, and each reshape of one, is its block's tensor."""
    tensors: dict[relax.Var, relax.Var] = {}
    out = []
    for var, value in bindings:
        tensor = home.get(var, tensors.get(_viewed(value)))
        if tensor is None:
            out.append(relax.VarBinding(var, renamed(value, tensors)))
        else:
            tensors[var] = tensor
    return out


def _viewed(value: Any) -> Any:
    """The variable that ``value`` is, or that it is a reshape of."""
    is_reshape = isinstance(value, tvm.ir.Call) and getattr(value.op, "name", "") == RESHAPE
    return value.args[0] if is_reshape else value if isinstance(value, relax.Var) else None
