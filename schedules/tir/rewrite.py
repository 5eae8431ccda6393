"""Rewriting and walking of expressions and statements by TVM-FFI's structural map and walk, with safe callbacks.

A callback of ours may raise, and TVM-FFI must not see it: an exception that passes through a nested structural map
corrupts the heap (0.1.14). So it is caught, the walk finishes without further callbacks, and then it is raised.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tvm_ffi
from tvm import s_tir

# The functions behind structural_map and structural_walk. Those look up the type indices of the classes at every call,
# of which a build makes tens of thousands; these are cached.
_MAP, _WALK = (tvm_ffi.get_global_func(f"ffi.Structural{name}") for name in ("Map", "Walk"))
_ORDERS = {"pre": int(tvm_ffi.WalkOrder.PREORDER), "post": int(tvm_ffi.WalkOrder.POSTORDER)}


class _Guard:
    """Runs callbacks; after the first exception it returns nodes unchanged."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def wrap(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def guarded(node: Any) -> Any:
            if self.error is not None:
                return node
            try:
                return call(node)
            except Exception as error:
                self.error = error
                return node

        return guarded


@functools.cache
def _type_indices(kinds: Any) -> tuple[int, ...]:
    """TVM-FFI's type indices of a class or of a tuple of classes."""
    classes = kinds if isinstance(kinds, tuple) else (kinds,)
    return tuple(kind.__tvm_ffi_type_info__.type_index for kind in classes)


def rewrite(root: Any, callbacks: Sequence[tuple[Any, Callable[[Any], Any]]], order: str = "post") -> Any:
    """``root`` with each node replaced by the result of the first callback for its class. ``order``: pre or post."""
    guard, entries = _Guard(), []
    for kinds, call in callbacks:
        guarded = guard.wrap(call)
        entries += [(type_index, guarded) for type_index in _type_indices(kinds)]
    rewritten = _MAP(root, entries, [], _ORDERS[order])
    if guard.error is not None:
        raise guard.error
    return rewritten


def collect(root: Any, kinds: Any, order: str = "post") -> list[Any]:
    """Every node of the given classes inside ``root``, in ``order`` (pre or post)."""
    nodes: list[Any] = []
    _WALK(root, [(type_index, nodes.append) for type_index in _type_indices(kinds)], [], _ORDERS[order])
    return nodes


def leaf_blocks(func: Any) -> list[Any]:
    """The blocks of ``func`` that hold no other block."""
    return [b for b in collect(func.body, s_tir.SBlock) if not collect(b.body, s_tir.SBlock)]
