"""Static storage planning: which intermediate tensors of a function share memory.

Runs after CallTIRRewrite, where a function is a list of allocations, kernel calls in destination-passing style, and
views. A call allocates each block of memory once and frees all when it returns. A block is one tensor of bytes, which
replaces every tensor that lies in it, views too: kernels use only the address of an argument (shapes are static, checks
are left out), and creating a tensor object takes as long as a small kernel. Results keep their own allocations, since
they outlive the call.

TVM's own plan (StaticPlanBlockMemory) shares as much, but makes an object for every tensor.
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
class Lifetime:
    """An intermediate of ``size`` bytes that is live from binding ``first`` to binding ``last``."""

    var: relax.Var
    size: int
    first: int
    last: int


@define
class Block:
    """Memory of ``size`` bytes for tensors of which no two are live at once.

    lifetimes: of these tensors, in order
    starts:    the first binding of each, for bisection
    """

    size: int
    lifetimes: list[Lifetime] = field(factory=list)
    starts: list[int] = field(factory=list)

    def try_place(self, lifetime: Lifetime) -> bool:
        """Whether ``lifetime`` overlaps none of ``lifetimes``; if so, adds it."""
        n = bisect.bisect_right(self.starts, lifetime.last)
        if n and self.lifetimes[n - 1].last >= lifetime.first:
            return False
        self.lifetimes.insert(n, lifetime)
        self.starts.insert(n, lifetime.first)
        return True


def plan_storage(module: tvm.IRModule) -> tvm.IRModule:
    """``module`` with the intermediates of every Relax function in shared blocks."""
    module = module.clone()
    for gv, func in module.functions_items():
        if isinstance(func, relax.Function):
            module.update_func(gv, _planned(func))
    return module


def share_blocks(lifetimes: Sequence[Lifetime]) -> list[Block]:
    """Blocks for ``lifetimes``, greedy by size (Pisarchyk and Lee 2020, arXiv:2001.03288): the largest first, each into
    the smallest block that is free during its lifetime, or into a new one."""
    sizes: dict[int, list[Block]] = {}  # largest first, as they are made
    for lifetime in sorted(lifetimes, key=lambda lifetime: (-lifetime.size, lifetime.first)):
        smallest = (block for size in reversed(sizes) for block in sizes[size])
        if not any(block.try_place(lifetime) for block in smallest):
            block = Block(lifetime.size)
            block.try_place(lifetime)
            sizes.setdefault(lifetime.size, []).append(block)
    return [block for blocks in sizes.values() for block in blocks]


def _planned(func: relax.Function) -> relax.Function:
    bindings = [(b.var, b.value) for block in func.body.blocks for b in block.bindings]
    new_bindings, block_tensor = [], {}
    for n, block in enumerate(share_blocks(_lifetimes(func, bindings))):
        storage = relax.Var(f"storage{n}", relax.AnyType())
        tensor = relax.Var(f"block{n}", relax.TensorType(_shape(block.size), "uint8"))
        space = relax.op.memory.alloc_storage(_shape(block.size), 0, "global", "uint8")
        new_bindings.append(relax.VarBinding(storage, space))
        bytes_tensor = relax.op.memory.alloc_tensor(storage, 0, _shape(block.size), "uint8")
        new_bindings.append(relax.VarBinding(tensor, bytes_tensor))
        block_tensor.update((lifetime.var, tensor) for lifetime in block.lifetimes)
    new_bindings += _rewritten(bindings, block_tensor)
    body = relax.SeqExpr([relax.BindingBlock(new_bindings)], func.body.body)
    return relax.Function(func.params, body, func.ret_ty, is_pure=func.is_pure, attrs=func.attrs)


def _lifetimes(func: relax.Function, bindings: Sequence[tuple[relax.Var, Any]]) -> list[Lifetime]:
    """The lifetime of every allocation whose memory is not returned, in the order of first use."""
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
    return [Lifetime(var, _bytes(var), n[0], n[-1]) for var, n in uses.items() if n and var not in returned]


def _bytes(var: relax.Var) -> int:
    dtype = var.ty.dtype
    bits = tvm.DataType(str(getattr(dtype, "dtype", dtype))).bits
    return max(1, math.prod(int(n) for n in var.ty.shape)) * ((bits + 7) // 8)


def _shape(*sizes: int) -> relax.ShapeExpr:
    return relax.ShapeExpr([relax.prim_value(n) for n in sizes])


def _rewritten(
    bindings: Sequence[tuple[relax.Var, Any]], block_tensor: Mapping[relax.Var, relax.Var]
) -> list[relax.VarBinding]:
    """The remaining bindings, with each planned allocation, and each reshape of one, replaced by its block's tensor."""
    tensors: dict[relax.Var, relax.Var] = {}
    rewritten = []
    for var, value in bindings:
        tensor = block_tensor.get(var, tensors.get(_viewed(value)))
        if tensor is None:
            rewritten.append(relax.VarBinding(var, renamed(value, tensors)))
        else:
            tensors[var] = tensor
    return rewritten


def _viewed(value: Any) -> Any:
    """``value`` if it is a variable, its argument if it is a reshape, else None."""
    if isinstance(value, tvm.ir.Call) and getattr(value.op, "name", "") == RESHAPE:
        return value.args[0]
    return value if isinstance(value, relax.Var) else None
