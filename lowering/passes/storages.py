"""Which intermediate tensors of a function share memory, decided now.

Runs after CallTIRRewrite, where a function is a list of allocations, kernel calls that name their destination, and
views. A call then asks for each block of memory once and gives all back when it returns: nothing in between has to be
released. Tensors of one type in one block are one tensor, and a view of a block's tensor is another tensor of the
block, so that few objects are made. Results stay allocations of their own, since they outlive the call.

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

from .in_place import is_alloc, owners_of

RESHAPE = "relax.reshape"
Type = tuple[tuple[int, ...], str]


@frozen
class Life:
    """An intermediate of ``size`` bytes that the bindings ``first`` to ``last`` write and read."""

    var: relax.Var
    type: Type
    size: int
    first: int
    last: int


@define
class Block:
    """Memory of ``size`` bytes for tensors of which no two live at once: ``lives``, in their order, and their types."""

    size: int
    lives: list[Life] = field(factory=list)
    types: set[Type] = field(factory=set)

    def place(self, life: Life) -> int | None:
        """Where ``life`` belongs among ``lives``, None where another one is in its way."""
        n = bisect.bisect_right(self.lives, life.last, key=_first)
        return n if n == 0 or self.lives[n - 1].last < life.first else None

    def add(self, n: int, life: Life) -> None:
        self.lives.insert(n, life)
        self.types.add(life.type)


def _first(life: Life) -> int:
    return life.first


def storages(module: tvm.IRModule) -> tvm.IRModule:
    """Give the intermediates of every Relax function of ``module`` their blocks."""
    module = module.clone()
    for gv, func in module.functions_items():
        if isinstance(func, relax.Function):
            module.update_func(gv, _planned(func))
    return module


def shared(lives: Sequence[Life]) -> list[Block]:
    """Blocks for ``lives``: large ones first, each into a block that is free while it lives, one that has a tensor of
    its type before others, then the smallest; or into a new one (greedy by size, Pisarchyk and Lee 2020,
    arXiv:2001.03288)."""
    blocks: list[Block] = []
    for life in sorted(lives, key=lambda life: (-life.size, life.first)):
        free = [(block, n) for block in blocks if (n := block.place(life)) is not None]
        if free:
            block, n = min(free, key=lambda found: (life.type not in found[0].types, found[0].size))
        else:
            block, n = Block(life.size), 0
            blocks.append(block)
        block.add(n, life)
    return blocks


def _planned(func: relax.Function) -> relax.Function:
    bindings = [(b.var, b.value) for block in func.body.blocks for b in block.bindings]
    blocks = shared(_lives(func, bindings))
    made, home = [], {}
    for n, block in enumerate(blocks):
        storage = relax.Var(f"storage{n}", relax.AnyType())
        space = relax.op.memory.alloc_storage(_shape(block.size), 0, "global", "uint8")
        made.append(relax.VarBinding(storage, space))
        home.update((life.var, storage) for life in block.lives)
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
    return [Life(v, _type(v), _bytes(_type(v)), n[0], n[-1]) for v, n in uses.items() if n and v not in returned]


def _type(var: relax.Var) -> Type:
    dtype = var.ty.dtype
    return tuple(int(n) for n in var.ty.shape), str(getattr(dtype, "dtype", dtype))


def _bytes(type: Type) -> int:
    return max(1, math.prod(type[0])) * ((tvm.DataType(type[1]).bits + 7) // 8)


def _shape(*sizes: int) -> relax.ShapeExpr:
    return relax.ShapeExpr([relax.prim_value(n) for n in sizes])


def _rewritten(
    bindings: Sequence[tuple[relax.Var, Any]], home: Mapping[relax.Var, relax.Var]
) -> list[relax.VarBinding]:
    """The bindings with each planned allocation, and each reshape of one, as a tensor in its storage."""
    stored: dict[relax.Var, relax.Var] = {}  # of a variable that is a planned tensor or a view of one
    tensors: dict[tuple[relax.Var, Type], relax.Var] = {}
    out = []
    for var, value in bindings:
        storage = home.get(var, stored.get(_viewed(value)))
        if storage is not None:
            stored[var] = storage
            key = storage, _type(var)
            if key in tensors:
                value = tensors[key]
            else:
                value = relax.op.memory.alloc_tensor(storage, 0, _shape(*key[1][0]), key[1][1])
                tensors[key] = var
        out.append(relax.VarBinding(var, value))
    return out


def _viewed(value: Any) -> Any:
    """The variable that ``value`` is, or that it is a reshape of."""
    is_reshape = isinstance(value, tvm.ir.Call) and getattr(value.op, "name", "") == RESHAPE
    return value.args[0] if is_reshape else value if isinstance(value, relax.Var) else None
