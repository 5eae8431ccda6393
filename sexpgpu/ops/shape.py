"""Operators that move elements and compute none, and the change of dtype."""

from __future__ import annotations

import math
from typing import Any

from .affine_index import of_reshape, of_slice, of_transpose
from .batching import changed, shifted, spread
from .element_boxes import (
    broadcast_origins,
    concat_origins,
    flip_origins,
    pad_origins,
    reshape_origins,
    slice_origins,
    transpose_origins,
)
from .partial_cotangents import pad_padded, reshape_padded, transpose_padded
from .spec import attr, key, op, tensor, tensors
from .type_rules import axes_of, axis_attr, held, same_dtype
from .types import ShapeFault, TensorType, axis_of, broadcast, check_shape, listed
from .work import LOOK_UP, moving, nothing

X = (tensor("x"),)
Attrs = dict[str, Any]
Types = tuple[TensorType, ...]


def reshape_normal(types: Types, attrs: Attrs) -> Attrs:
    """One -1 becomes the dimension that makes the sizes equal."""
    x, shape = types[0], tuple(attrs["shape"])
    known = math.prod(n for n in shape if n != -1)
    if shape.count(-1) > 1:
        raise ShapeFault(f"{listed(shape)} leaves more than one dimension open")
    if -1 in shape and known > 0 and x.size % known == 0:
        shape = tuple(x.size // known if n == -1 else n for n in shape)
    if -1 in shape or math.prod(shape) != x.size:
        raise ShapeFault(f"{x} has {x.size} elements and cannot have the shape {listed(tuple(attrs['shape']))}")
    return {"shape": check_shape(shape)}


def transpose_normal(types: Types, attrs: Attrs) -> Attrs:
    """``perm`` counted from 0, without it the axes reversed; ShapeFault unless it names every axis once."""
    rank = types[0].rank
    given = attrs.get("perm")
    perm = tuple(range(rank))[::-1] if given is None else tuple(axis_of(a, rank) for a in given)
    if sorted(perm) != list(range(rank)):
        raise ShapeFault(f"{listed(tuple(given or ()))} does not name each axis of {types[0]} once")
    return {"perm": perm}


def transpose_vjp(b: Any, dy: Any, y: Any, x: Any, perm: tuple[int, ...]) -> tuple[Any]:
    return (b("transpose", dy, perm=tuple(perm.index(i) for i in range(len(perm)))),)


def broadcast_normal(types: Types, attrs: Attrs) -> Attrs:
    x, shape = types[0], check_shape(attrs["shape"])
    if broadcast(x.shape, shape) != shape:
        raise ShapeFault(f"{x} does not broadcast to {listed(shape)}")
    return {"shape": shape}


def squeeze_normal(types: Types, attrs: Attrs) -> Attrs:
    """``axes`` counted from 0 and sorted, without them all of size 1; ShapeFault for one of another size."""
    x, axes = types[0], attrs.get("axes")
    if axes is None:
        return {"axes": tuple(i for i, n in enumerate(x.shape) if n == 1)}
    axes = axes_of(axes, x.rank)
    for a in axes:
        if x.shape[a] != 1:
            raise ShapeFault(f"axis {a} of {x} has size {x.shape[a]}, not 1")
    return {"axes": axes}


def concat_type(*xs: TensorType, axis: int) -> TensorType:
    def rest(x: TensorType) -> tuple[int, ...]:
        return x.shape[:axis] + x.shape[axis + 1 :]

    for x in xs[1:]:
        if x.rank != xs[0].rank or rest(x) != rest(xs[0]):
            raise ShapeFault(f"{xs[0]} and {x} differ in more than axis {axis}")
    return TensorType(with_axis(xs[0].shape, axis, sum(x.shape[axis] for x in xs)), same_dtype(*xs))


def with_axis(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    """``shape`` with ``size`` along ``axis``; ShapeFault where no tensor may have it."""
    return check_shape((*shape[:axis], size, *shape[axis + 1 :]))


def concat_vjp(b: Any, dy: Any, y: Any, *xs: Any, axis: int) -> tuple[Any, ...]:
    out, at = [], 0
    for x in xs:
        size = x.type.shape[axis]
        out.append(b("slice", dy, axis=axis, start=at, stop=at + size))
        at += size
    return tuple(out)


def stack_normal(types: Types, attrs: Attrs) -> Attrs:
    for t in types[1:]:
        if t.shape != types[0].shape:
            raise ShapeFault(f"{types[0]} and {t} differ in shape")
    return {"axis": axis_of(attrs.get("axis", 0), types[0].rank + 1)}


def split_normal(types: Types, attrs: Attrs) -> Attrs:
    """``parts`` becomes the sizes of the parts."""
    x = types[0]
    axis, parts = axis_of(attrs.get("axis", 0), x.rank), tuple(attrs["parts"])
    size = x.shape[axis]
    if len(parts) == 1:
        if parts[0] < 1 or size % parts[0]:
            raise ShapeFault(f"axis {axis} of {x} has size {size} and cannot be split into {parts[0]} equal parts")
        parts = (size // parts[0],) * parts[0]
    if min(parts) < 1 or sum(parts) != size:
        raise ShapeFault(f"the parts {listed(parts)} are not the size {size} of axis {axis} of {x}")
    return {"parts": parts, "axis": axis}


def split_expand(b: Any, x: Any, parts: tuple[int, ...], axis: int) -> tuple[Any, ...]:
    ends = [sum(parts[: i + 1]) for i in range(len(parts))]
    return tuple(b("slice", x, axis=axis, start=end - n, stop=end) for n, end in zip(parts, ends, strict=True))


def split_ref(np: Any, x: Any, parts: tuple[int, ...], axis: int) -> tuple[Any, ...]:
    return tuple(np.split(x, np.cumsum(parts)[:-1], axis))


def slice_normal(types: Types, attrs: Attrs) -> Attrs:
    """``from`` and ``to`` become ``start`` and ``stop``, counted from 0."""
    x = types[0]
    axis = axis_of(attrs.get("axis", 0), x.rank)
    size = x.shape[axis]
    start, stop = attrs.get("from", attrs.get("start", 0)), attrs.get("to", attrs.get("stop"))
    stop = size if stop is None else stop
    first, last = (n + size if n < 0 else n for n in (start, stop))
    if not 0 <= first < last <= size:
        raise ShapeFault(f"from {start} to {stop} holds no elements of axis {axis} of {x}, or leaves it")
    return {"axis": axis, "start": first, "stop": last}


def slice_type(x: TensorType, axis: int, start: int, stop: int) -> TensorType:
    return TensorType(with_axis(x.shape, axis, stop - start), x.dtype)


def slice_vjp(b: Any, dy: Any, y: Any, x: Any, axis: int, start: int, stop: int) -> tuple[Any]:
    widths = tuple((start, x.type.shape[axis] - stop) if i == axis else (0, 0) for i in range(x.type.rank))
    return (b("pad", dy, widths=widths, value=0),)


def cut(np: Any, x: Any, axis: int, start: int, stop: int) -> Any:
    """The ``ref`` column of slice."""
    return x[(slice(None),) * axis + (slice(start, stop),)]


def pad_normal(types: Types, attrs: Attrs) -> Attrs:
    """ShapeFault unless ``widths`` has two counts for each axis; TypeFault where the dtype cannot hold ``value``."""
    x, widths = types[0], attrs["widths"]
    fits = isinstance(widths, tuple) and len(widths) == x.rank and all(
        isinstance(w, tuple) and len(w) == 2 and all(type(n) is int and n >= 0 for n in w) for w in widths)
    if not fits:
        raise ShapeFault(f"{x} is padded by a vector [before after] of counts for each of its axes: {x.rank} of them")
    return {"widths": widths, "value": held(attrs.get("value", 0), x.dtype)}


def pad_type(x: TensorType, widths: tuple[tuple[int, int], ...], value: float) -> TensorType:
    return TensorType(check_shape(n + a + z for n, (a, z) in zip(x.shape, widths, strict=True)), x.dtype)


def pad_relax(r: Any, x: Any, widths: tuple[tuple[int, int], ...], value: float) -> Any:
    return r.kernel("pad", x, before=tuple(a for a, _ in widths), value=value) if widths else x


def pad_vjp(b: Any, dy: Any, y: Any, x: Any, widths: tuple[tuple[int, int], ...], value: float) -> tuple[Any]:
    for axis, (before, after) in enumerate(widths):
        if before or after:
            dy = b("slice", dy, axis=axis, start=before, stop=before + x.type.shape[axis])
    return (dy,)


def roll_normal(types: Types, attrs: Attrs) -> Attrs:
    """``shift`` modulo the size of the axis."""
    axis = axis_of(attrs.get("axis", 0), types[0].rank)
    return {"shift": attrs["shift"] % types[0].shape[axis], "axis": axis}


def roll_expand(b: Any, x: Any, shift: int, axis: int) -> Any:
    """The last ``shift`` places, then the others."""
    if not shift:
        return x
    size = x.type.shape[axis]
    tail = b("slice", x, axis=axis, start=size - shift, stop=size)
    return b("concat", tail, b("slice", x, axis=axis, start=0, stop=size - shift), axis=axis)


def repeat_normal(types: Types, attrs: Attrs) -> Attrs:
    if attrs["times"] < 1:
        raise ShapeFault(f"an element cannot be repeated {attrs['times']} times")
    return {"times": attrs["times"], "axis": axis_of(attrs.get("axis", 0), types[0].rank)}


def repeat_expand(b: Any, x: Any, times: int, axis: int) -> Any:
    shape = x.type.shape
    y = b("reshape", x, shape=(*shape[: axis + 1], 1, *shape[axis + 1 :]))
    y = b("broadcast", y, shape=(*shape[: axis + 1], times, *shape[axis + 1 :]))
    return b("reshape", y, shape=with_axis(shape, axis, shape[axis] * times))


def flip_relax(r: Any, x: Any, axes: tuple[int, ...]) -> Any:
    return r.kernel("flip", x, axes=axes) if axes else x


op("reshape", "The elements of x, in row-major order, in another shape of as many; one dimension may be -1 and is "
   "found.",
   group="shape", args=(*X, attr("shape", "ints")), normal=reshape_normal,
   type=lambda x, shape: TensorType(shape, x.dtype),
   ref=lambda np, x, shape: np.reshape(x, shape),
   fusion="view", work=nothing, rearranges=True, origins=reshape_origins, padded=reshape_padded,
   relax=lambda r, x, shape: r.reshape(x, shape),
   vjp=lambda b, dy, y, x, shape: (b("reshape", dy, shape=x.type.shape),),
   stack=changed(lambda k, attrs: {"shape": (k, *attrs["shape"])}),
   source=of_reshape,
   cases=(([("f32", (3, 4))], {"shape": (2, -1)}), ([("f32", (1, 1))], {"shape": ()}), ([("i32", ())], {"shape": (1,)}),
          ([("bool", (2, 3, 5))], {"shape": (5, 6)}), ([("bf16", (6,))], {"shape": (2, 3)})))

op("transpose", "x with its axes in the order `perm` (result axis i is axis perm[i] of x); without it, reversed.",
   group="shape", args=(*X, attr("perm", "ints", None)), normal=transpose_normal,
   type=lambda x, perm: TensorType(tuple(x.shape[i] for i in perm), x.dtype),
   ref=lambda np, x, perm: np.transpose(x, perm),
   fusion="move", work=moving(LOOK_UP), rearranges=True, origins=transpose_origins, padded=transpose_padded,
   relax=lambda r, x, perm: r.permute_dims(x, list(perm)) if perm else x,
   vjp=transpose_vjp,
   onnx=lambda o, x, perm: o("Transpose", x, perm=list(perm)),
   stack=changed(lambda k, attrs: {"perm": (0, *(i + 1 for i in attrs["perm"]))}),
   source=of_transpose,
   cases=(([("f32", (3, 5))], {}), ([("f32", (2, 3, 5))], {"perm": (1, 2, 0)}),
          ([("i32", (2, 3, 1, 4))], {"perm": (0, -2, 1, 3)}),
          ([("f32", ())], {}), ([("bool", (5, 7))], {"perm": (1, 0)}), ([("bf16", (3, 20))], {})))

op("expand-dims", "x with a new axis of size 1 at `axis` of the result.",
   group="shape", args=(*X, attr("axis", "int")),
   normal=lambda types, attrs: {"axis": axis_of(attrs["axis"], types[0].rank + 1)},
   ref=lambda np, x, axis: np.expand_dims(x, axis),
   expand=lambda b, x, axis: b("reshape", x, shape=(*x.type.shape[:axis], 1, *x.type.shape[axis:])),
   cases=(([("f32", (3, 4))], {"axis": 1}), ([("f32", (3, 4))], {"axis": -1}), ([("i32", ())], {"axis": 0})))

op("squeeze", "x without the axes `axes`, each of size 1; without `axes`, without every axis of size 1.",
   group="shape", args=(*X, attr("axes", "ints", None)), normal=squeeze_normal,
   ref=lambda np, x, axes: np.squeeze(x, axes),
   expand=lambda b, x, axes: b("reshape", x, shape=tuple(n for i, n in enumerate(x.type.shape) if i not in axes)),
   cases=(([("f32", (3, 1, 4))], {"axes": (1,)}), ([("f32", (1, 3, 1))], {"axes": (-1, 0)}), ([("i32", (1, 1))], {})))

op("broadcast", "x repeated to `shape`, as an elementwise operator would: axes of size 1 grow, and new ones stand in "
   "front.",
   group="shape", args=(*X, attr("shape", "shape")), normal=broadcast_normal,
   type=lambda x, shape: TensorType(shape, x.dtype),
   ref=lambda np, x, shape: np.broadcast_to(x, shape),
   fusion="elementwise", work=moving(), rearranges=True, origins=broadcast_origins,
   relax=lambda r, x, shape: r.broadcast_to(x, shape) if r.dtype(x) != "bf16" else r.kernel("spread-bf16", x),
   vjp=lambda b, dy, y, x, shape: (b.fit(dy, x),),
   stack=spread,
   cases=(([("f32", (3, 1))], {"shape": (2, 3, 4)}), ([("f32", ())], {"shape": (5,)}),
          ([("i32", (1, 3))], {"shape": (4, 3)}),
          ([("bool", (1,))], {"shape": (33,)}), ([("bf16", (3, 1))], {"shape": (3, 16)}),
          ([("f16", ())], {"shape": (16,)})))

op("concat", "The tensors of one dtype one after another along `:axis` (0 by default); their other dimensions are "
   "equal.",
   group="shape", args=(tensors("xs"), key("axis", "int", 0)), normal=axis_attr(0), type=concat_type,
   ref=lambda np, *xs, axis: np.concatenate(xs, axis),
   work=moving(), origins=concat_origins,
   relax=lambda r, x, *xs, axis: r.kernel("concat", x, *xs, axis=axis) if xs else x,
   vjp=concat_vjp,
   onnx=lambda o, *xs, axis: o("Concat", *xs, axis=axis),
   stack=shifted,
   cases=(([("f32", (2, 3)), ("f32", (4, 3))], {}), ([("f32", (2, 3)), ("f32", (2, 1)), ("f32", (2, 5))], {"axis": -1}),
          ([("i32", (3,))], {}), ([("bool", (3,)), ("bool", (4,))], {"axis": 0}),
          ([("bf16", (2, 19)), ("bf16", (2, 16))], {"axis": 1})))

op("stack", "The tensors of one type as one, along a new axis `:axis` (0 by default).",
   group="shape", args=(tensors("xs"), key("axis", "int", 0)), normal=stack_normal,
   ref=lambda np, *xs, axis: np.stack(xs, axis),
   expand=lambda b, *xs, axis: b("concat", *(b("expand-dims", x, axis=axis) for x in xs), axis=axis),
   cases=(([("f32", (2, 3)), ("f32", (2, 3))], {}), ([("f32", (2, 3)), ("f32", (2, 3))], {"axis": -1}),
          ([("i32", ()), ("i32", ()), ("i32", ())], {})))

op("split", "The list of the parts of x along `:axis` (0 by default): `parts` equal ones, or, of a vector of sizes, "
   "one of each size.",
   group="shape", args=(*X, attr("parts", "ints"), key("axis", "int", 0)), normal=split_normal,
   ref=split_ref, expand=split_expand,
   cases=(([("f32", (6, 2))], {"parts": (3,)}), ([("f32", (2, 7))], {"parts": (2, 4, 1), "axis": -1}),
          ([("i32", (4,))], {"parts": (4,)})))

op("slice", "The elements of x from `:from` (0 by default) up to, without, `:to` (the end by default) along `:axis` "
   "(0 by default). Negative "
   "numbers count from the end.",
   group="shape", args=(*X, key("axis", "int", 0), key("from", "int", 0), key("to", "int", None)),
   normal=slice_normal, type=slice_type, ref=cut,
   fusion="move", work=moving(), reads_part=True, rearranges=True, origins=slice_origins,
   relax=lambda r, x, axis, start, stop: r.strided_slice(x, [axis], [start], [stop]),
   vjp=slice_vjp,
   stack=shifted,
   source=of_slice,
   cases=(([("f32", (5, 4))], {"axis": 1, "from": 1, "to": 3}), ([("f32", (5, 4))], {"from": -2}),
          ([("f32", (3, 7))], {"axis": -1, "to": -1}),
          ([("i32", (9,))], {"from": 3, "to": 4}), ([("bool", (9, 2))], {"from": 3}),
          ([("bf16", (3, 40))], {"axis": 1, "from": 3, "to": 25})))

op("pad", "x with `value` (0 by default) around it: `widths` is a vector of [before after] for each axis.",
   group="shape", args=(*X, attr("widths", "data"), key("value", "number", 0)), normal=pad_normal, type=pad_type,
   ref=lambda np, x, widths, value: np.pad(x, widths, constant_values=x.dtype.type(value)) if widths else x,
   fusion="move", work=moving(), origins=pad_origins, padded=pad_padded,
   relax=lambda r, x, widths, value: pad_relax(r, x, widths, value),
   vjp=pad_vjp,
   stack=changed(lambda k, attrs: {**attrs, "widths": ((0, 0), *attrs["widths"])}),
   cases=(([("f32", (3, 4))], {"widths": ((1, 2), (0, 3))}), ([("f32", (3,))], {"widths": ((0, 0),), "value": 1.5}),
          ([("i32", (2, 2))], {"widths": ((1, 0), (0, 1)), "value": -1}), ([("bool", (3,))], {"widths": ((2, 2),)}),
          ([("f32", ())], {"widths": ()}), ([("bf16", (16,))], {"widths": ((16, 8),), "value": 0.5})))

op("flip", "x in the opposite order along each of `axes`.",
   group="shape", args=(*X, attr("axes", "ints")),
   normal=lambda types, attrs: {"axes": axes_of(attrs["axes"], types[0].rank)},
   type=lambda x, axes: x,
   ref=lambda np, x, axes: np.flip(x, axes),
   fusion="move", work=moving(), rearranges=True, origins=flip_origins,
   relax=flip_relax,
   vjp=lambda b, dy, y, x, axes: (b("flip", dy, axes=axes),),
   stack=shifted,
   cases=(([("f32", (3, 4))], {"axes": (0,)}), ([("f32", (3, 4, 2))], {"axes": (-1, 0)}),
          ([("i32", (5,))], {"axes": (0,)}),
          ([("bool", (5, 3))], {"axes": (1,)}), ([("bf16", (2, 20))], {"axes": (1,)})))

op("roll", "x with its elements moved `shift` places up along `:axis` (0 by default), those at the end to the start.",
   group="shape", args=(*X, attr("shift", "int"), key("axis", "int", 0)), normal=roll_normal,
   ref=lambda np, x, shift, axis: np.roll(x, shift, axis), expand=roll_expand,
   cases=(([("f32", (5, 4))], {"shift": 2}), ([("f32", (5, 4))], {"shift": -1, "axis": -1}),
          ([("i32", (3,))], {"shift": 3}), ([("bf16", (40,))], {"shift": 3})))

op("repeat", "x with each element standing `times` times in a row along `:axis` (0 by default).",
   group="shape", args=(*X, attr("times", "int"), key("axis", "int", 0)), normal=repeat_normal,
   ref=lambda np, x, times, axis: np.repeat(x, times, axis), expand=repeat_expand,
   cases=(([("f32", (3, 4))], {"times": 2}), ([("f32", (3, 4))], {"times": 3, "axis": -1}),
          ([("i32", (5,))], {"times": 1}), ([("bf16", (20,))], {"times": 2})))

