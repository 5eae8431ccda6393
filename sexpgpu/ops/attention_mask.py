"""What attention hides: which keys a query sees, and how the others count for nothing whatever they hold.

A hidden key weighs exactly 0, but 0 times an infinity or NaN would be NaN, and a product of matrices does not look.
"""

from __future__ import annotations

from typing import Any

from .spec import op, tensor
from .type_rules import FLOATS, unary


def seen_mask(b: Any, n: int, mask: Any, causal: bool) -> Any:
    """Which key each query sees, or None for all."""
    if not causal:
        return mask
    earlier = b("<=", b("iota", shape=(n, n), axis=1, dtype="i32"), b("iota", shape=(n, n), axis=0, dtype="i32"))
    return b("and", earlier, mask) if mask else earlier


def guarded(b: Any, v: Any, queries: int, mask: Any, causal: bool) -> tuple[Any, Any]:
    """The values ``v`` with 0 in the place of what is not finite; and what is to be added to each query: [.. q 1], NaN
    for one that sees such a value, else 0. Values as they are, and None, where nothing is hidden."""
    if mask is None and not causal:
        return v, None
    poison = not_finite(b, b("stop-gradient", v))
    rank = poison.type.rank
    if mask is None:
        poison = b("cumsum", poison, axis=rank - 2)
    else:
        across = b("transpose", poison, perm=(*range(rank - 2), rank - 1, rank - 2))
        seen = b("where", seen_mask(b, queries, mask, causal), across, b.const(0, poison.type.dtype))
        poison = b("sum", seen, axes=(seen.type.rank - 1,), keepdims=True)
    return b("finite", v), poison


def not_finite(b: Any, x: Any) -> Any:
    """[.. k d] -> [.. k 1]: 0, or NaN where the row is not finite."""
    return b("sum", b("-", x, x), axes=(x.type.rank - 1,), keepdims=True)


def of_all_queries(b: Any, mask: Any, v: Any, causal: bool) -> Any:
    """``v`` with zeros where ``mask`` hides a key from every query, which is less work than ``guarded``; None where
    queries do not see the same keys."""
    if mask is None or causal or (mask.type.rank > 1 and mask.type.shape[-2] != 1):
        return None
    shape = mask.type.shape
    return b("where", b("reshape", mask, shape=(*shape[:-2], *shape[-1:], 1)), v, b.const(0, v.type.dtype))


op("finite", "x, with 0 in the place of infinities and NaN. The gradient goes through as it is.",
   group="logic", internal=True, args=(tensor("x"),), type=unary(FLOATS),
   ref=lambda np, x: np.where(np.isfinite(x), x, x.dtype.type(0)),
   relax=lambda r, x: r.kernel("finite", x),
   vjp=lambda b, dy, y, x: (dy,),
   cases=(([("f32", (3, 5))], {}), ([("f32", ())], {}), ([("bf16", (3, 20))], {}), ([("f64", (7,))], {}),
          ([("f16", (7,))], {})))
