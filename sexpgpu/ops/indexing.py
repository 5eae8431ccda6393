"""Reading and writing at computed places.

An index that is out of range is clamped where something is read, and dropped where something is added, in the
reference and in compiled code alike: no kernel touches memory outside a tensor. What is added at one place is added
in the order of its index, never atomically, so the bits of a gradient do not depend on threads.
"""

from __future__ import annotations

from typing import Any

from .batching import added_along, added_at, added_rows, looked_up, taken, windowed
from .element_boxes import Box, Origins, moved, on_axis, overlap, whole, without
from .partial_cotangents import scatter_along_merged, scatter_rows_merged
from .reduction import halves_in_f32
from .spec import OPS, attr, index, key, op, tensor
from .type_rules import NUMBERS, WHOLE, int_range, need, same_dtype
from .types import ShapeFault, TensorType, axis_of, broadcast, listed
from .work import LOOK_UP, SCATTER, moving, per_element, per_read

Shape = tuple[int, ...]
IDS_HINT = "cast indices to an integer dtype"


# -- gather and scatter-add: whole rows by number -------------------------------------------------------------------


def gathered(table: TensorType, ids: TensorType) -> TensorType:
    """The type rule of gather: [ids... rest of the table's shape]."""
    need(WHOLE, ids, hint=IDS_HINT)
    if not table.rank:
        raise ShapeFault(f"{table} has no axis to gather from")
    return TensorType(ids.shape + table.shape[1:], table.dtype)


def gather_vjp(b: Any, dy: Any, y: Any, table: Any, ids: Any) -> tuple[Any, None]:
    return b("scatter-rows", dy, ids, n=table.type.shape[0]), None


def scattered(base: TensorType, ids: TensorType, updates: TensorType) -> TensorType:
    """The type rule of scatter-add, that of ``base``; ShapeFault unless updates are [ids... rest of its shape]."""
    need(WHOLE, ids, hint=IDS_HINT)
    need(NUMBERS, base)
    same_dtype(base, updates)
    if not base.rank:
        raise ShapeFault(f"{base} has no axis to add to")
    if updates.shape != ids.shape + base.shape[1:]:
        wanted = listed(ids.shape + base.shape[1:])
        raise ShapeFault(f"updates are {listed(updates.shape)}, but the ids and the base ask for {wanted}")
    return base


def scatter_ref(np: Any, base: Any, ids: Any, updates: Any) -> Any:
    out, flat = base.copy(), ids.reshape(-1)
    inside = (flat >= 0) & (flat < base.shape[0])
    np.add.at(out, flat[inside].astype("int64"), updates.reshape(-1, *base.shape[1:])[inside])
    return out


def scatter_vjp(b: Any, dy: Any, y: Any, base: Any, ids: Any, updates: Any) -> tuple[Any, None, Any]:
    """An update whose id is out of range was dropped, and gets 0."""
    low, high = int_range(ids.type.dtype)
    n = base.type.shape[0]
    read = b("gather", dy, ids)
    inside = [b(">=", ids, b.const(0, ids.type.dtype))] if low < 0 else []
    inside += [b("<", ids, b.const(n, ids.type.dtype))] if n <= high else []
    for test in inside:
        wide = b("reshape", test, shape=ids.type.shape + (1,) * (base.type.rank - 1))
        read = b("where", wide, read, b.const(0, dy.type.dtype))
    return dy, None, read


op("gather", "Rows of a table by number: table [n ...], ids any shape -> [ids... ...]. A number out of range reads the "
   "nearest row.",
   group="index", args=(tensor("table"), index("ids")), type=gathered,
   ref=lambda np, table, ids: np.take(table, ids.astype("int64"), axis=0, mode="clip"),
   fusion="move", work=moving(LOOK_UP), reads_part=True, index_range=lambda table, ids: (1, table.shape[0]),
   relax=lambda r, table, ids: r.kernel("gather", table, ids),
   vjp=gather_vjp,
   stack=looked_up,
   cases=(([("f32", (5, 3)), ("i32", (2, 4), -2, 8)], {}), ([("f32", (5,)), ("i64", (), 0, 5)], {}),
          ([("i32", (5, 2, 2)), ("u8", (3,), 0, 9)], {}),
          ([("bool", (4, 2)), ("i8", (3,), -3, 9)], {}), ([("bf16", (6, 3)), ("u32", (4,), 0, 2**32)], {}),
          ([("f64", (300, 2)), ("u8", (7,), 0, 256)], {})),
   grad_cases=(([("f32", (5, 3)), ("i32", (2, 4), -2, 8)], {}), ([("f32", (300, 2)), ("u8", (7,), 0, 256)], {}),
               ([("f32", (5,)), ("i64", (), 0, 5)], {})))

op("scatter-add", "Base [n ...] with updates [ids... ...] added at the rows `ids`, in their order; an id out of range "
   "is dropped.",
   group="index", precision="f32", args=(tensor("base"), index("ids"), tensor("updates")), type=scattered,
   ref=halves_in_f32(scatter_ref),
   work=per_read(SCATTER),
   relax=lambda r, base, ids, updates: r.kernel("scatter-add", base, ids, updates),
   vjp=scatter_vjp,
   stack=added_at,
   cases=(([("f32", (5, 3)), ("i32", (2, 4), -2, 8), ("f32", (2, 4, 3))], {}),
          ([("f32", (5,)), ("i64", (40,), 0, 5), ("f32", (40,))], {}),
          ([("i32", (5, 2, 2)), ("u8", (30,), 0, 9), ("i32", (30, 2, 2))], {}),
          ([("f64", (4, 200)), ("u32", (20,), 0, 6), ("f64", (20, 200))], {}),
          ([("f32", (3, 2)), ("i32", (), 1, 2), ("f32", (2,))], {}),
          ([("bf16", (4, 3)), ("i32", (5,), 0, 4), ("bf16", (5, 3))], {})))


def scatter_rows_type(updates: TensorType, ids: TensorType, n: int) -> TensorType:
    return TensorType((n, *updates.shape[ids.rank:]), updates.dtype)


def scatter_rows_ref(np: Any, updates: Any, ids: Any, n: int) -> Any:
    out = np.zeros((n, *updates.shape[ids.ndim:]), updates.dtype)
    at = np.clip(ids.reshape(-1).astype("int64"), 0, n - 1)
    np.add.at(out, at, updates.reshape(-1, *updates.shape[ids.ndim:]))
    return out


op("scatter-rows", "The gradient of gather: zeros of `n` rows, to which the updates are added at `ids`, clamped, in "
   "their order.",
   group="index", internal=True, args=(tensor("updates"), index("ids"), key("n", "int")), type=scatter_rows_type,
   ref=halves_in_f32(scatter_rows_ref),
   work=per_element(SCATTER), merged=scatter_rows_merged,
   relax=lambda r, updates, ids, n: r.kernel("scatter-rows", updates, ids),
   vjp=lambda b, dy, y, updates, ids, n: (b("gather", dy, ids), None),
   stack=added_rows,
   cases=(([("f32", (2, 4, 3)), ("i32", (2, 4), -2, 8)], {"n": 5}), ([("f32", (40,)), ("i64", (40,), 0, 5)], {"n": 5}),
          ([("f64", (20, 200)), ("u32", (20,), 0, 6)], {"n": 4}), ([("f32", (2,)), ("i32", (), 1, 2)], {"n": 3}),
          ([("bf16", (5, 3)), ("i32", (5,), 0, 4)], {"n": 4}), ([("f32", (3, 2, 2)), ("u8", (3,), 0, 9)], {"n": 9})))


# -- take-along: one element a place --------------------------------------------------------------------------------


def along(x: TensorType, ids: TensorType, axis: int) -> TensorType:
    """The type rule of take-along: along ``axis`` as long as ``ids``, the other axes broadcast."""
    need(WHOLE, ids, hint=IDS_HINT)
    if x.rank != ids.rank or not x.rank:
        raise ShapeFault(f"{x} and the indices {listed(ids.shape)} must have one rank, of 1 or more")
    rest = [s[:axis] + (1,) + s[axis + 1:] for s in (x.shape, ids.shape)]
    out = broadcast(*rest)
    return TensorType(out[:axis] + (ids.shape[axis],) + out[axis + 1:], x.dtype)


def along_normal(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> dict[str, Any]:
    return {"axis": axis_of(attrs.get("axis", -1), types[0].rank)}


def along_ref(np: Any, x: Any, ids: Any, axis: int = -1) -> Any:
    return np.take_along_axis(x, np.clip(ids.astype("int64"), 0, x.shape[axis] - 1), axis)


def along_vjp(b: Any, dy: Any, y: Any, x: Any, ids: Any, axis: int) -> tuple[Any, None]:
    return b.fit(b("scatter-along", dy, ids, n=x.type.shape[axis], axis=axis), x), None


def scatter_along_type(dy: TensorType, ids: TensorType, n: int, axis: int) -> TensorType:
    return TensorType(dy.shape[:axis] + (n,) + dy.shape[axis + 1:], dy.dtype)


def scatter_along_ref(np: Any, dy: Any, ids: Any, n: int, axis: int) -> Any:
    out = np.zeros(dy.shape[:axis] + (n,) + dy.shape[axis + 1:], dy.dtype)
    at = list(np.ogrid[tuple(slice(m) for m in dy.shape)])
    at[axis] = np.clip(np.broadcast_to(ids, dy.shape).astype("int64"), 0, n - 1)
    np.add.at(out, tuple(at), dy)
    return out


op("take-along", "x at the indices `ids` along `:axis`, the last by default; the other axes broadcast. An index out of "
   "range reads the nearest.",
   group="index", args=(tensor("x"), index("ids"), key("axis", "int", -1)), normal=along_normal, type=along,
   ref=along_ref,
   fusion="move", work=moving(LOOK_UP), reads_part=True, index_range=lambda x, ids, axis: (1, x.shape[axis]),
   relax=lambda r, x, ids, axis: r.kernel("take-along", x, ids, axis=axis),
   vjp=along_vjp,
   stack=taken,
   cases=(([("f32", (3, 5)), ("i32", (3, 2), -2, 8)], {}),
          ([("f32", (2, 5, 3)), ("i64", (2, 4, 1), 0, 5)], {"axis": 1}),
          ([("f32", (5,)), ("u8", (7,), 0, 9)], {}), ([("i32", (1, 5)), ("i32", (4, 2), 0, 5)], {"axis": 1}),
          ([("f64", (4, 3)), ("i32", (2, 3), 0, 4)], {"axis": 0}),
          ([("bf16", (3, 5)), ("i32", (3, 1), 0, 5)], {}), ([("bool", (3, 5)), ("u32", (3, 4), 0, 2**32)], {})))

op("scatter-along", "The gradient of take-along: zeros with `n` places along `axis`, to which dy is added at `ids`, "
   "clamped.",
   group="index", internal=True, args=(tensor("dy"), index("ids"), key("n", "int"), key("axis", "int")),
   type=scatter_along_type,
   ref=halves_in_f32(scatter_along_ref),
   work=per_element(SCATTER), merged=scatter_along_merged,
   relax=lambda r, dy, ids, n, axis: r.kernel("scatter-along", dy, ids, axis=axis),
   vjp=lambda b, dz, z, dy, ids, n, axis: (b("take-along", dz, ids, axis=axis), None),
   stack=added_along,
   cases=(([("f32", (3, 2)), ("i32", (3, 2), -2, 8)], {"n": 5, "axis": 1}),
          ([("f32", (2, 4, 3)), ("i64", (2, 4, 1), 0, 5)], {"n": 5, "axis": 1}),
          ([("f64", (2, 3)), ("i32", (2, 3), 0, 4)], {"n": 4, "axis": 0}),
          ([("bf16", (3, 4)), ("u8", (3, 4), 0, 9)], {"n": 5, "axis": 1})))


# -- update-slice: a window -----------------------------------------------------------------------------------------


def window_start(at: int, starts: Shape, axis: int, whole: Shape, part: Shape) -> Shape:
    """``starts`` with ``at`` added on ``axis``, clamped there so that the window fits."""
    moved = min(max(starts[axis] + at, 0), whole[axis] - part[axis])
    return starts[:axis] + (moved,) + starts[axis + 1:]


def check_window(whole: Shape, part: Shape, starts: Shape, axis: int, at: TensorType) -> None:
    """TypeFault unless ``at`` is of integers; ShapeFault unless it is a scalar, and the window ``part`` at ``starts``
    lies within ``whole``: along ``axis``, on which it is clamped, it need only fit. An ``axis`` of -1 is none."""
    need(WHOLE, at, hint=IDS_HINT)
    if at.rank:
        raise ShapeFault(f"the moving start is {listed(at.shape)}, but must be a scalar")
    if not len(whole) == len(part) == len(starts) or not whole:
        raise ShapeFault(f"{listed(whole)}, {listed(part)} and {len(starts)} starts must have one rank, of 1 or more")
    for i, (n, m, start) in enumerate(zip(whole, part, starts, strict=True)):
        if m > n or start < 0 or (start + m > n and i != axis):
            raise ShapeFault(f"a window of {listed(part)} at {listed(starts)} does not lie within {listed(whole)}")


def written(x: TensorType, part: TensorType, at: TensorType, starts: Shape, axis: int) -> TensorType:
    """The type rule of write-window, that of ``x``."""
    same_dtype(x, part)
    check_window(x.shape, part.shape, starts, axis, at)
    return x


def window(np: Any, at: Any, starts: Shape, axis: int, whole: Shape, part: Shape) -> tuple[slice, ...]:
    """The window as slices for NumPy."""
    first = window_start(int(at), starts, axis, whole, part)
    return tuple(slice(i, i + n) for i, n in zip(first, part, strict=True))


def write_ref(np: Any, x: Any, part: Any, at: Any, starts: Shape, axis: int) -> Any:
    out = x.copy()
    out[window(np, at, starts, axis, x.shape, part.shape)] = part
    return out


def write_vjp(b: Any, dz: Any, z: Any, x: Any, part: Any, at: Any, starts: Shape, axis: int) -> tuple[Any, Any, None]:
    dx = b("write-window", dz, b.full(0, part.type), at, starts=starts, axis=axis)
    return dx, b("read-window", dz, at, starts=starts, axis=axis, sizes=part.type.shape), None


def read_type(x: TensorType, at: TensorType, starts: Shape, axis: int, sizes: Shape) -> TensorType:
    check_window(x.shape, sizes, starts, axis, at)
    return TensorType(sizes, x.dtype)


def read_vjp(b: Any, dz: Any, z: Any, x: Any, at: Any, starts: Shape, axis: int, sizes: Shape) -> tuple[Any, None]:
    return b("write-window", b.full(0, x.type), dz, at, starts=starts, axis=axis), None


def window_box(value: Any, at: Any, shape: Shape, size: Shape) -> Box | None:
    """Where the window of ``size`` is in ``shape``; None where that is computed."""
    if not at.op or not (literal := OPS[at.op].literal):
        return None
    number = literal(**at.attrs)
    first = window_start(int(number), value.attrs["starts"], value.attrs["axis"], shape, size)
    return tuple((i, i + n) for i, n in zip(first, size, strict=True))


def write_origins(value: Any, box: Box) -> Origins:
    x, part, at = value.args
    window = window_box(value, at, x.type.shape, part.type.shape)
    if window is None:
        yield x, box
        yield part, whole(part)
        return
    yield from ((x, rest) for rest in without(box, window))
    for both in overlap(box, window):
        yield part, moved(both, (-a for a, _ in window))


def read_origins(value: Any, box: Box) -> Origins:
    x, at = value.args
    window = window_box(value, at, x.type.shape, value.type.shape)
    axis, starts = value.attrs["axis"], value.attrs["starts"]
    if window is None:
        yield x, on_axis(moved(box, starts), axis, (0, x.type.shape[axis]))
    else:
        yield x, moved(box, (a for a, _ in window))


def update_slice(b: Any, x: Any, part: Any, at: Any = None, starts: Shape = (), axis: int = 0) -> Any:
    """Without ``at`` no axis is clamped: ShapeFault for a window that leaves x."""
    axis = axis_of(axis, x.type.rank)
    if at is None:
        check_window(x.type.shape, part.type.shape, starts, -1, TensorType((), "i32"))
    return b("write-window", x, part, b.const(0, "i32") if at is None else at, starts=starts, axis=axis)


def update_slice_ref(np: Any, x: Any, part: Any, at: Any = 0, starts: Shape = (), axis: int = 0) -> Any:
    return write_ref(np, x, part, at, starts, axis % x.ndim)


op("update-slice", "x with the window that begins at `starts`, one for each axis, replaced by part. `:at`, an integer "
   "scalar, moves the window along `:axis` (0 by default); there it is clamped to fit.",
   group="index", args=(tensor("x"), tensor("part"), attr("starts", "ints"),
                        index("at", key=True, default=None, number="i32"), key("axis", "int", 0)),
   expand=update_slice, ref=update_slice_ref,
   cases=(([("f32", (4, 5)), ("f32", (2, 3))], {"starts": (1, 2)}),
          ([("f32", (4, 5)), ("f32", (4, 1)), ("i32", (), 3, 4)], {"starts": (0, 0), "axis": 1}),
          ([("i32", (4, 5)), ("i32", (2, 5)), ("i64", (), 9, 10)], {"starts": (1, 0)}),
          ([("bool", (5,)), ("bool", (2,))], {"starts": (3,)})))

op("write-window", "x with the window at `starts`, moved by the scalar `at` along `axis` and clamped there, replaced "
   "by part.",
   group="index", internal=True, type=written,
   args=(tensor("x"), tensor("part"), index("at"), key("starts", "ints"), key("axis", "int")),
   ref=write_ref,
   work=moving(), origins=write_origins,
   relax=lambda r, x, part, at, starts, axis: r.kernel("write-window", x, part, at, starts=starts, axis=axis),
   vjp=write_vjp,
   stack=windowed,
   cases=(([("f32", (4, 5)), ("f32", (2, 3)), ("i32", (), -9, -8)], {"starts": (1, 2), "axis": 0}),
          ([("f32", (4, 5)), ("f32", (2, 3)), ("u8", (), 1, 2)], {"starts": (1, 0), "axis": 1}),
          ([("bool", (4,)), ("bool", (3,)), ("i64", (), 1, 2)], {"starts": (0,), "axis": 0}),
          ([("bf16", (40,)), ("bf16", (18,)), ("i64", (), 1, 2)], {"starts": (3,), "axis": 0})))

op("read-window", "The window of `sizes` that write-window would replace.",
   group="index", internal=True, type=read_type,
   args=(tensor("x"), index("at"), key("starts", "ints"), key("axis", "int"), key("sizes", "ints")),
   ref=lambda np, x, at, starts, axis, sizes: x[window(np, at, starts, axis, x.shape, sizes)],
   fusion="move", work=moving(), reads_part=True, origins=read_origins,
   relax=lambda r, x, at, starts, axis, sizes: r.kernel("read-window", x, at, starts=starts, axis=axis),
   vjp=read_vjp,
   stack=windowed,
   cases=(([("f32", (4, 5)), ("i32", (), 9, 10)], {"starts": (1, 2), "axis": 0, "sizes": (2, 3)}),
          ([("i32", (4, 5)), ("i32", (), 1, 2)], {"starts": (1, 0), "axis": 1, "sizes": (1, 4)}),
          ([("bf16", (4,)), ("i64", (), -3, -2)], {"starts": (0,), "axis": 0, "sizes": (2,)})))
