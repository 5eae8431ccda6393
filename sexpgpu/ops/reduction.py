"""Reductions over axes, and running sums.

A sum of bf16 or f16 is taken in f32 and rounded once. Integers wrap, on every target. The order of additions inside
a compiled sum is fixed by its shape; NumPy's is another one, hence the tolerances.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .batching import shifted, summed
from .cotangents import divided, scaled
from .partial_cotangents import sum_padded
from .spec import ZERO_GRAD, key, op, tensor
from .type_rules import BOOLS, FLOATS, NUMBERS, axes_of, axis_attr, need
from .types import TensorType
from .work import LOOK_UP, per_element, per_read

ARGS = (tensor("x"), key("axes", "ints", None), key("keepdims", "bool", False))
AXIS_ARGS = (tensor("x"), key("axis", "int", -1), key("keepdims", "bool", False))
HALVES = ("bf16", "f16")
UNSIGNED = {"i32": "uint32", "i64": "uint64"}


def reduction(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> dict[str, Any]:
    """``axes`` counted from 0 and sorted, all of them when absent; ``keepdims`` explicit."""
    axes, rank = attrs.get("axes"), types[0].rank
    given = tuple(range(rank)) if axes is None else axes_of(axes, rank)
    return {"axes": given, "keepdims": bool(attrs.get("keepdims", False))}


def reduced_shape(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    """``shape`` without ``axes``, or with each of them as 1 if ``keepdims``."""
    return tuple(1 if i in axes else n for i, n in enumerate(shape) if keepdims or i not in axes)


def reduced(kinds: tuple[str, ...], dtype: str = "", hint: str = "convert with cast") -> Callable[..., TensorType]:
    """The rule of a reduction over ``axes``, or over the one ``axis``; ``dtype`` is the result's, where another one."""

    def rule(x: TensorType, axes: tuple[int, ...] = (), keepdims: bool = False, axis: int | None = None) -> TensorType:
        need(kinds, x, hint=hint)
        over = axes if axis is None else (axis,)
        return TensorType(reduced_shape(x.shape, over, keepdims), dtype or x.dtype)

    return rule


def axis_normal(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> dict[str, Any]:
    """A ``normal`` column: ``axis``, the last by default, counted from 0, and ``keepdims``."""
    return {"keepdims": bool(attrs.get("keepdims", False)), **axis_attr(-1)(types, attrs)}


def halves_in_f32(f: Callable[..., Any]) -> Callable[..., Any]:
    """A ``ref`` column that computes bf16 and f16 in f32 and rounds the result once, as compiled code does."""

    def is_half(x: Any) -> bool:
        return x.dtype.itemsize == 2 and x.dtype.kind not in "iub"

    def ref(np: Any, *xs: Any, **attrs: Any) -> Any:
        if not is_half(xs[0]):
            return f(np, *xs, **attrs)
        return f(np, *(x.astype("float32") if is_half(x) else x for x in xs), **attrs).astype(xs[0].dtype)

    return ref


def in_f32(f: Callable[..., Any]) -> Callable[..., Any]:
    """A ``relax`` column that computes bf16 and f16 in f32 and rounds the result once."""

    def relax(r: Any, x: Any, **attrs: Any) -> Any:
        dtype = r.dtype(x)
        if dtype not in HALVES:
            return f(r, x, **attrs)
        return r.astype(f(r, r.astype(x, "float32"), **attrs), r.dt(dtype))

    return relax


def wrapping(name: str) -> Callable[..., Any]:
    """``relax.op`` ``name``. LLVM takes signed overflow for impossible, so signed integers are summed unsigned."""

    def relax(r: Any, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        dtype = r.dtype(x)
        if not axes:
            return x
        if dtype not in UNSIGNED:
            return getattr(r, name)(x, list(axes), keepdims)
        unsigned = r.astype(x, UNSIGNED[dtype])
        return r.astype(getattr(r, name)(unsigned, list(axes), keepdims), r.dt(dtype))

    return in_f32(relax)


def extremum(name: str) -> Callable[..., Any]:
    """``relax.op`` ``name`` for integers. TVM's loses a NaN and starts floats from the largest finite one, so that
    floats have a program."""

    def relax(r: Any, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        if not axes:
            return x
        if r.dtype(x) in ("f32", "f64", *HALVES):
            return r.kernel(f"reduce-{name}", x, axes=axes, keepdims=keepdims)
        return getattr(r, name)(x, list(axes), keepdims)

    return relax


def spread(b: Any, dy: Any, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    """``dy``, of a reduction's shape, repeated over the axes that the reduction took from ``x``."""
    kept = dy if keepdims else b("reshape", dy, shape=reduced_shape(x.type.shape, axes, True))
    return b("broadcast", kept, shape=x.type.shape)


def extremum_vjp(b: Any, dy: Any, y: Any, x: Any, axes: tuple[int, ...], keepdims: bool) -> tuple[Any]:
    """Each of n equal extrema gets dy/n."""
    hit = b("cast", b("=", x, spread(b, y, x, axes, keepdims)), dtype=x.type.dtype)
    share = divided(b, dy, b("sum", hit, axes=axes, keepdims=keepdims))
    return (scaled(b, spread(b, share, x, axes, keepdims), hit),)


def prod_vjp(b: Any, dy: Any, y: Any, x: Any, axes: tuple[int, ...], keepdims: bool) -> tuple[Any]:
    """dy times the product of the others: of those before an element and of those after it, so that a zero or a product
    that is too small for its dtype takes no digit from the rest."""
    if x.type.dtype in HALVES:
        dy, y, wide = (b("cast", v, dtype="f32") for v in (dy, y, x))
        return (b("cast", prod_vjp(b, dy, y, wide, axes, keepdims)[0], dtype=x.type.dtype),)
    kept = tuple(a for a in range(x.type.rank) if a not in axes)
    perm = (*kept, *axes)
    turned = b("transpose", x, perm=perm)
    row = b("reshape", turned, shape=(*(x.type.shape[a] for a in kept), math.prod(x.type.shape[a] for a in axes)))
    others = b("*", before(b, row, 1), before(b, row, -1))
    back = tuple(perm.index(a) for a in range(x.type.rank))
    others = b("transpose", b("reshape", others, shape=turned.type.shape), perm=back)
    return (scaled(b, spread(b, dy, x, axes, keepdims), others),)


def before(b: Any, x: Any, way: int) -> Any:
    """The product of the elements before each one along the last axis, or with ``way`` -1 of those after it: each step
    joins twice as many (Hillis and Steele, CACM 1986)."""
    step, n = 1, x.type.shape[-1]
    made = moved(b, x, way)
    while step < n - 1:
        made = b("*", made, moved(b, made, way * step))
        step *= 2
    return made


def moved(b: Any, x: Any, by: int) -> Any:
    """``x`` moved along its last axis, to later places if ``by`` is positive; ones come in."""
    axis, n = x.type.rank - 1, x.type.shape[-1]
    if abs(by) >= n:
        return b.full(1.0, x.type)
    rest = b("slice", x, axis=axis, start=max(0, -by), stop=n - max(0, by))
    return b("pad", rest, widths=(*((0, 0),) * axis, (max(0, by), max(0, -by))), value=1)


def mean(b: Any, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    """The sum divided by the count, so that the mean of ones is exactly 1."""
    need(FLOATS, x.type, hint="cast it to a float dtype first")
    n = math.prod(x.type.shape[a] for a in axes)
    return b("/", b("sum", x, axes=axes, keepdims=keepdims), b.const(n, x.type.dtype))


def in_wide(f: Callable[..., Any]) -> Callable[..., Any]:
    """An ``expand`` column that computes bf16 and f16 in f32 and rounds the result once."""

    def expand(b: Any, x: Any, **attrs: Any) -> Any:
        if x.type.dtype not in HALVES:
            return f(b, x, **attrs)
        return b("cast", f(b, b("cast", x, dtype="f32"), **attrs), dtype=x.type.dtype)

    return expand


def widening(f: Callable[..., Any]) -> Callable[..., Any]:
    """A ``vjp`` column of one argument that computes bf16 and f16 in f32 and rounds the cotangent once."""

    def vjp(b: Any, dy: Any, y: Any, x: Any, **attrs: Any) -> tuple[Any]:
        if y.type.dtype not in HALVES:
            return (f(b, dy, y, x, **attrs),)
        wide = [b("cast", v, dtype="f32") for v in (dy, y, x)]
        return (b("cast", f(b, *wide, **attrs), dtype=y.type.dtype),)

    return vjp


def variance(b: Any, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    """By way of the centred values: a mean of squares less the square of the mean loses all digits."""
    centred = b("-", x, mean(b, x, axes, True))
    return mean(b, b("square", centred), axes, keepdims)


def logsumexp(b: Any, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    """log sum exp(x - m) + m with m the largest, or 0 where the largest is not finite."""
    need(FLOATS, x.type, hint="cast it to a float dtype first")
    dtype = x.type.dtype
    top = b("stop-gradient", b("reduce-max", x, axes=axes, keepdims=True))
    m = b("where", b("<", b("abs", top), b.const(math.inf, dtype)), top, b.const(0, dtype))
    y = b("+", b("log", b("sum", b("exp", b("-", x, m)), axes=axes, keepdims=True)), m)
    return y if keepdims else b("reshape", y, shape=reduced_shape(x.type.shape, axes, False))


def logsumexp_ref(np: Any, x: Any, axes: Any = None, keepdims: bool = False) -> Any:
    top = np.max(x, axis=axes, keepdims=True)
    m = np.where(np.isfinite(top), top, 0)
    y = np.log(np.sum(np.exp(x - m), axis=axes, keepdims=True)) + m
    return y if keepdims else np.squeeze(y, axes)


def truth(name: str) -> Callable[..., Any]:
    """``any`` is the largest of 0 and 1, ``all`` the smallest."""

    def expand(b: Any, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        need(BOOLS, x.type, hint="compare it with something first")
        return b("cast", b(name, b("cast", x, dtype="i32"), axes=axes, keepdims=keepdims), dtype="bool")

    return expand


def extreme_index(name: str) -> Callable[..., Any]:
    """A ``ref`` column: NumPy's argmax or argmin as i32."""

    def ref(np: Any, x: Any, axis: int = -1, keepdims: bool = False) -> Any:
        return getattr(np, name)(x, axis=axis, keepdims=keepdims).astype("int32")

    return ref


def needs_axis(x: TensorType, axis: int, keepdims: bool) -> TensorType:
    """The type rule of argmax and argmin."""
    return reduced(NUMBERS, "i32")(x, axis=axis, keepdims=keepdims)


def cumsum_ref(np: Any, x: Any, axis: int = -1, reverse: bool = False) -> Any:
    carried = "float64" if x.dtype.kind == "f" else x.dtype
    y = np.cumsum(np.flip(x, axis) if reverse else x, axis=axis, dtype=carried).astype(x.dtype)
    return np.flip(y, axis) if reverse else y


def numbers(x: TensorType, **attrs: Any) -> TensorType:
    """A type rule: that of ``x``, which must not be bool."""
    need(NUMBERS, x)
    return x


def cumsum_normal(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> dict[str, Any]:
    """A ``normal`` column: ``axis``, the last by default, counted from 0, and ``reverse``."""
    return {"reverse": bool(attrs.get("reverse", False)), **axis_attr(-1)(types, attrs)}


F = [("f32", (3, 5))]
CASES = ((F, {"axes": (1,)}), (F, {}), (F, {"axes": (0,), "keepdims": True}),
         ([("f32", (2, 3, 4))], {"axes": (-1, 0)}), ([("f64", (2, 3, 4))], {"axes": 1}),
         ([("f32", (1, 7))], {"axes": (0,)}))
COUNTS = (([("i32", (4, 5), -9, 9)], {"axes": (0,)}), ([("u8", (3, 4), 0, 9)], {}),
          ([("i64", (2, 3), -9, 9)], {"axes": (1,)}))
HALF = (([("bf16", (3, 40))], {"axes": (1,)}), ([("f16", (3, 40))], {"axes": (1,), "keepdims": True}))

op("sum", "Sum over `:axes`, all of them by default; `:keepdims true` leaves each as 1. bf16 and f16 are summed in "
   "f32.",
   group="reduce", precision="f32", args=ARGS, normal=reduction,
   type=reduced(NUMBERS, hint="cast a bool tensor to count"),
   ref=halves_in_f32(lambda np, x, axes=None, keepdims=False: np.sum(x, axis=axes, keepdims=keepdims, dtype=x.dtype)),
   fusion="reduction", work=per_read(), padded=sum_padded,
   relax=wrapping("sum"),
   vjp=lambda b, dy, y, x, axes, keepdims: (spread(b, dy, x, axes, keepdims),),
   stack=summed,
   cases=CASES + COUNTS + HALF + (([("i32", (5, 7), -(2**31), 2**31)], {"axes": (1,)}), ([("f32", ())], {}),
   ([("f32", (2, 3))], {"axes": ()})))

op("mean", "Mean over `:axes`, all of them by default, of a float tensor: the sum divided by the count.",
   group="reduce", precision="f32", args=ARGS, normal=reduction, expand=in_wide(mean),
   ref=halves_in_f32(lambda np, x, axes=None, keepdims=False: np.mean(x, axis=axes, keepdims=keepdims)),
   cases=CASES + HALF)

op("prod", "Product over `:axes`, all of them by default.",
   group="reduce", precision="f32", args=ARGS, normal=reduction,
   type=reduced(NUMBERS, hint="of a bool tensor it is all"),
   ref=halves_in_f32(lambda np, x, axes=None, keepdims=False: np.prod(x, axis=axes, keepdims=keepdims, dtype=x.dtype)),
   fusion="reduction", work=per_read(),
   relax=wrapping("prod"),
   vjp=prod_vjp,
   stack=summed,
   cases=CASES + COUNTS + HALF + (([("i32", (5, 7), -(2**31), 2**31)], {"axes": (1,)}),),
   tolerance=(4e-6, 2e-6))  # one rounding a factor, in another order than NumPy's

for name, word, way in (("reduce-max", "largest", "max"), ("reduce-min", "smallest", "min")):
    op(name, f"The {word} element over `:axes`, all of them by default; NaN if any is. Equal ones share the gradient.",
       group="reduce", precision="f32", args=ARGS, normal=reduction,
       type=reduced(NUMBERS, hint="of a bool tensor it is any or all"),
       ref=lambda np, x, axes=None, keepdims=False, way=way: getattr(np, way)(x, axis=axes, keepdims=keepdims),
       fusion="reduction", work=per_read(),
       relax=extremum(way),
       vjp=extremum_vjp,
       stack=shifted,
       cases=CASES + COUNTS + HALF)

for name, word in (("argmax", "largest"), ("argmin", "smallest")):
    op(name, f"Index of the {word} element along `:axis`, the last by default, i32: the first of equals, or of NaNs.",
       group="reduce", args=AXIS_ARGS, normal=axis_normal, type=needs_axis,
       ref=extreme_index(name),
       work=per_read(LOOK_UP),
       relax=lambda r, x, axis, keepdims, name=name: r.kernel(name, x, axis=axis, keepdims=keepdims),
       vjp=ZERO_GRAD,
       stack=shifted,
       cases=((F, {}), (F, {"axis": 0, "keepdims": True}), ([("f64", (2, 3, 4))], {"axis": 1}),
              ([("i32", (4, 9), 0, 3)], {}),
              ([("u8", (4, 9), 0, 3)], {"axis": 0}), ([("i64", (9,), -3, 3)], {}), ([("bf16", (3, 40))], {}),
              ([("f16", (3, 40))], {})))

op("any", "Is any element true, over `:axes`, all of them by default?",
   group="reduce", args=ARGS, normal=reduction, expand=truth("reduce-max"),
   ref=lambda np, x, axes=None, keepdims=False: np.any(x, axis=axes, keepdims=keepdims),
   cases=(([("bool", (3, 2))], {"axes": (1,)}), ([("bool", (3, 2))], {"keepdims": True})))

op("all", "Are all elements true, over `:axes`, all of them by default?",
   group="reduce", args=ARGS, normal=reduction, expand=truth("reduce-min"),
   ref=lambda np, x, axes=None, keepdims=False: np.all(x, axis=axes, keepdims=keepdims),
   cases=(([("bool", (3, 2))], {"axes": (1,)}), ([("bool", (3, 2))], {"keepdims": True})))

op("logsumexp", "log of the sum of exp over `:axes`, all of them by default, without overflow; -inf where all elements "
   "are.",
   group="reduce", precision="f32", args=ARGS, normal=reduction, expand=in_wide(logsumexp),
   ref=halves_in_f32(logsumexp_ref),
   cases=CASES + (([("f32", (3, 5), 900.0, 999.0)], {"axes": (1,)}),) + HALF)

op("variance", "Mean squared distance from the mean over `:axes`, all of them by default (divided by n, not n-1).",
   group="reduce", precision="f32", args=ARGS, normal=reduction, expand=in_wide(variance),
   ref=halves_in_f32(lambda np, x, axes=None, keepdims=False: np.var(x, axis=axes, keepdims=keepdims)),
   cases=CASES + (([("f32", (3, 50), 100.0, 101.0)], {"axes": (1,)}),) + HALF,
   tolerance=(2e-5, 2e-6))  # values near 100 have their last bit at 8e-6, against deviations of 0.3

op("cumsum", "Running sums along `:axis`, the last by default; `:reverse true` sums from the end. Sums of f32 "
   "are accumulated in f64 and rounded when they are stored.",
   group="reduce", precision="f32", args=(tensor("x"), key("axis", "int", -1), key("reverse", "bool", False)),
   normal=cumsum_normal, type=numbers,
   ref=halves_in_f32(cumsum_ref),
   work=per_element(LOOK_UP),
   relax=lambda r, x, axis, reverse: r.kernel("cumsum", x, axis=axis, reverse=reverse),
   vjp=lambda b, dy, y, x, axis, reverse: (b("cumsum", dy, axis=axis, reverse=not reverse),),
   stack=shifted,
   cases=((F, {}), (F, {"axis": 0, "reverse": True}), ([("f32", (2, 100, 3))], {"axis": 1}),
          ([("f32", (131,))], {"reverse": True}),
          ([("f64", (2, 70))], {}), ([("i32", (4, 5), -9, 9)], {"axis": 0}), ([("i64", (200,), -9, 9)], {}),
          ([("u8", (90,), 0, 256)], {}),
          ([("bf16", (3, 40))], {})),
   grad_cases=((F, {}), (F, {"axis": 0, "reverse": True})),
   tolerance=(2e-7, 1e-7))  # NumPy's order, and one rounding
