"""Walks over expressions and statements. A callback of ours may fail; TVM-FFI must not see it: an exception that passes
through a nested structural map corrupts the heap (0.1.14), so it is held back until the walk is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm_ffi


class _Guard:
    """Runs callbacks; after the first failure it answers nodes unchanged."""

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


def rewrite(root: Any, callbacks: Sequence[tuple[Any, Callable[[Any], Any]]], order: str = "post") -> Any:
    """``root`` with each node replaced by what the first callback for its class answers."""
    guard = _Guard()
    done = tvm_ffi.structural_map(root, [(kind, guard.wrap(call)) for kind, call in callbacks], order=order)
    if guard.error is not None:
        raise guard.error
    return done


def collect(root: Any, kinds: Any, order: str = "post") -> list[Any]:
    """Every node of the given classes inside ``root``."""
    found: list[Any] = []
    tvm_ffi.structural_walk(root, (kinds, lambda node: found.append(node)), order=order)
    return found
