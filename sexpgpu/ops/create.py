"""Tensors made from numbers, and the triangles of a matrix."""

from __future__ import annotations

from typing import Any

from .spec import ZERO_GRAD, attr, index, key, op, tensor
from .type_rules import NUMBERS, WHOLE, held, need, numpy_dtype
from .types import DTYPES, ShapeFault, TensorType, TypeFault, axis_of, check_shape
from .work import moving, nothing

X = (tensor("x"),)


def dtype_of(value: Any) -> str:
    """The dtype of a number that no tensor stands beside."""
    return "bool" if isinstance(value, bool) else "i32" if isinstance(value, int) else "f32"


def made(shape: tuple[int, ...], dtype: str, **attrs: Any) -> TensorType:
    """A ``type`` column of rows that have their type in their attributes."""
    return TensorType(shape, dtype)


def full_normal(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> dict[str, Any]:
    """``value`` as its dtype holds it: TypeFault where it cannot, or where it is a vector."""
    value = attrs["value"]
    if isinstance(value, tuple):
        raise TypeFault("the value is a vector, not a number; a tensor of given numbers is made by constant")
    dtype = attrs.get("dtype") or dtype_of(value)
    return {"shape": check_shape(attrs["shape"]), "value": held(value, dtype), "dtype": dtype}


def full_relax(r: Any, shape: tuple[int, ...], value: Any, dtype: str) -> Any:
    scalar = r.const(value, dtype)
    if not shape:
        return scalar
    return r.kernel("spread-bf16", scalar) if dtype == "bf16" else r.full(shape, scalar, r.dt(dtype))


def number_of(v: Any) -> Any:
    """The number that fills ``v``, a graph's value, where it is a ``full``; None of any other."""
    return v.attrs["value"] if v.op == "full" else None


def iota_normal(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> dict[str, Any]:
    """ShapeFault for a scalar, TypeFault where the dtype cannot hold the last number."""
    shape, dtype = check_shape(attrs["shape"]), attrs.get("dtype", "i32")
    if not shape:
        raise ShapeFault("iota needs an axis to count along; [] has none")
    if DTYPES[dtype].kind not in NUMBERS:
        raise TypeFault(f"iota counts in numbers, not in {dtype}")
    axis = axis_of(attrs.get("axis", -1), len(shape))
    held(shape[axis] - 1, dtype)
    return {"shape": shape, "axis": axis, "dtype": dtype}


def iota_ref(np: Any, shape: tuple[int, ...], axis: int, dtype: str) -> Any:
    along = [1] * len(shape)
    along[axis] = shape[axis]
    return np.broadcast_to(np.arange(shape[axis]).reshape(along), shape).astype(numpy_dtype(np, dtype))


def of_one(value: int) -> dict[str, Any]:
    """The columns of zeros and ones."""
    return {
        "group": "make",
        "args": (attr("shape", "shape"), key("dtype", "dtype", "f32")),
        "normal": lambda types, attrs: {"shape": check_shape(attrs["shape"]), "dtype": attrs.get("dtype", "f32")},
        "ref": lambda np, shape, dtype: np.full(shape, value, numpy_dtype(np, dtype)),
        "expand": lambda b, shape, dtype: b("full", shape=shape, value=value, dtype=dtype),
        "cases": (([], {"shape": (2, 3)}), ([], {"shape": (), "dtype": "bool"}), ([], {"shape": (4,), "dtype": "i32"}),
                  ([], {"shape": (33,), "dtype": "bf16"})),
    }


def like_one(value: int) -> dict[str, Any]:
    """The columns of zeros-like and ones-like."""
    return {
        "group": "make",
        "args": X,
        "ref": lambda np, x: np.full_like(x, value),
        "expand": lambda b, x: b.full(value, x.type),
        "cases": (([("f32", (2, 3))], {}), ([("bool", ())], {}), ([("i64", (4,))], {})),
    }


def shape_of(data: Any) -> tuple[int, ...]:
    """The shape of nested tuples; ShapeFault when they are ragged."""
    if not isinstance(data, tuple):
        return ()
    shapes = {shape_of(d) for d in data}
    if len(shapes) > 1:
        raise ShapeFault("the vectors of a constant differ in length or depth")
    return (len(data), *(shapes.pop() if shapes else ()))


def leaves(data: Any) -> list[Any]:
    """The numbers of nested tuples, in row-major order."""
    return [leaf for d in data for leaf in leaves(d)] if isinstance(data, tuple) else [data]


def mapped(data: Any, dtype: str) -> Any:
    """Nested tuples with each number as ``dtype`` holds it; TypeFault where it cannot."""
    return tuple(mapped(d, dtype) for d in data) if isinstance(data, tuple) else held(data, dtype)


def constant_normal(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> dict[str, Any]:
    """Without :dtype: f32 when any number is a float, else i32, else bool."""
    check_shape(shape_of(attrs["data"]))
    found = {dtype_of(leaf) for leaf in leaves(attrs["data"])}
    dtype = attrs.get("dtype") or next(d for d in ("f32", "i32", "bool") if d in found)
    return {"data": mapped(attrs["data"], dtype), "dtype": dtype}


def as_lists(data: Any) -> Any:
    """Nested tuples as the nested lists that NumPy and TVM make tensors of."""
    return [as_lists(d) for d in data] if isinstance(data, tuple) else data


def one_hot_expand(b: Any, ids: Any, depth: int, dtype: str) -> Any:
    """TypeFault where the dtype of ``ids`` cannot hold depth - 1."""
    need(WHOLE, ids.type)
    (depth,) = check_shape((depth,))
    held(depth - 1, ids.type.dtype)
    column = b("iota", shape=(1,) * ids.type.rank + (depth,), dtype=ids.type.dtype)
    return b("cast", b("=", b("expand-dims", ids, axis=-1), column), dtype=dtype)


def one_hot_ref(np: Any, ids: Any, depth: int, dtype: str) -> Any:
    return (ids[..., None] == np.arange(depth)).astype(numpy_dtype(np, dtype))


def eye_expand(b: Any, n: int, dtype: str) -> Any:
    row, column = b("iota", shape=(n, 1), axis=0), b("iota", shape=(1, n), axis=1)
    return b("cast", b("=", row, column), dtype=dtype)


def triangle_expand(test: str) -> Any:
    """An ``expand`` column that keeps x where (its column) ``test`` (its row + diagonal) holds, and else has 0."""

    def expand(b: Any, x: Any, diagonal: int) -> Any:
        if x.type.rank < 2:
            raise ShapeFault(f"{x.type} is not a matrix, nor a stack of them")
        rows, columns = x.type.shape[-2:]
        row = b("+", b("iota", shape=(rows, 1), axis=0), b.const(diagonal, "i32"))
        return b("where", b(test, b("iota", shape=(1, columns), axis=1), row), x, b.const(0, x.type.dtype))

    return expand


TRIANGLE: dict[str, Any] = {
    "group": "make",
    "args": (*X, key("diagonal", "int", 0)),
    "normal": lambda types, attrs: {"diagonal": attrs.get("diagonal", 0)},
    "cases": (([("f32", (4, 6))], {}), ([("f32", (2, 5, 3))], {"diagonal": -1}), ([("i32", (3, 3))], {"diagonal": 1}),
              ([("bool", (3, 4))], {}), ([("bf16", (16, 16))], {})),
}

op("iota", "0, 1, 2 ... counted along `:axis` (the last by default) of a tensor of `shape`, the same along every "
   "other axis.",
   group="make", args=(attr("shape", "shape"), key("axis", "int", -1), key("dtype", "dtype", "i32")),
   normal=iota_normal, type=made, vjp=ZERO_GRAD,
   ref=iota_ref,
   fusion="elementwise", work=moving(),
   relax=lambda r, shape, axis, dtype: r.kernel("iota", axis=axis),
   cases=(([], {"shape": (7,)}), ([], {"shape": (1, 5), "axis": 1}),
          ([], {"shape": (3, 2, 4), "axis": -3, "dtype": "i64"}),
          ([], {"shape": (3, 2), "axis": 0, "dtype": "f32"}), ([], {"shape": (5,), "dtype": "u8"}),
          ([], {"shape": (300,), "dtype": "bf16"}), ([], {"shape": (5,), "dtype": "u32"})))

op("full", "`value` everywhere in a tensor of `shape`. The default `:dtype` is :f32 for a float, :i32 for an integer, "
   ":bool for true or false.",
   group="make", args=(attr("shape", "shape"), attr("value", "data"), key("dtype", "dtype", None)),
   normal=full_normal, type=made, vjp=ZERO_GRAD,
   ref=lambda np, shape, value, dtype: np.full(shape, value, numpy_dtype(np, dtype)),
   work=nothing, literal=lambda shape, value, dtype: value,
   relax=full_relax,
   cases=(([], {"shape": (2, 3), "value": 0.1}), ([], {"shape": (), "value": 7}), ([], {"shape": (5,), "value": True}),
          ([], {"shape": (3,), "value": 0.1, "dtype": "bf16"}), ([], {"shape": (3,), "value": 2**40, "dtype": "i64"}),
          ([], {"shape": (2, 1), "value": 255, "dtype": "u8"}), ([], {"shape": (), "value": 0.1, "dtype": "f64"}),
          ([], {"shape": (2,), "value": 2**32 - 1, "dtype": "u32"})))

op("zeros", "0 everywhere in a tensor of `shape`, :f32 by default.", **of_one(0))

op("ones", "1 everywhere in a tensor of `shape`, :f32 by default.", **of_one(1))

op("zeros-like", "0 everywhere, in the shape and dtype of x.", **like_one(0))

op("ones-like", "1 everywhere, in the shape and dtype of x.", **like_one(1))

op("constant", "The tensor of the given numbers: a number, or vectors nested to equal depth and length. The default "
   "`:dtype` is :f32 if any is a float, else :i32; for true and false :bool.",
   group="make", args=(attr("data", "data"), key("dtype", "dtype", None)),
   normal=constant_normal, vjp=ZERO_GRAD,
   type=lambda data, dtype: TensorType(shape_of(data), dtype),
   ref=lambda np, data, dtype: np.array(as_lists(data), numpy_dtype(np, dtype)),
   work=nothing, literal=lambda data, dtype: data,
   relax=lambda r, data, dtype: r.const(as_lists(data), dtype),
   cases=(([], {"data": ((1, 2, 3), (4, 5, 6))}), ([], {"data": 0.1}), ([], {"data": (True, False)}),
          ([], {"data": (1, 0.1), "dtype": "bf16"}), ([], {"data": (1, -2), "dtype": "i8"}),
          ([], {"data": ((0.1,),), "dtype": "f64"})))

op("one-hot", "Integers [...] to rows [... depth] that are 1 at the integer's place and 0 elsewhere; an integer "
   "outside 0 to depth - 1 gives "
   "zeros. :f32 by default.",
   group="make", args=(index("ids"), attr("depth", "int"), key("dtype", "dtype", "f32")),
   normal=lambda types, attrs: {"depth": attrs["depth"], "dtype": attrs.get("dtype", "f32")},
   ref=one_hot_ref, expand=one_hot_expand,
   cases=(([("i32", (3, 4), -1, 6)], {"depth": 5}), ([("u8", (), 0, 5)], {"depth": 5, "dtype": "bool"}),
          ([("i64", (7,), 0, 3)], {"depth": 3, "dtype": "i32"})))

op("eye", "The identity matrix [n n], :f32 by default.",
   group="make", args=(attr("n", "int"), key("dtype", "dtype", "f32")),
   normal=lambda types, attrs: {"n": attrs["n"], "dtype": attrs.get("dtype", "f32")},
   ref=lambda np, n, dtype: np.eye(n, dtype=numpy_dtype(np, dtype)),
   expand=eye_expand,
   cases=(([], {"n": 5}), ([], {"n": 1, "dtype": "bool"}), ([], {"n": 3, "dtype": "i64"})))

op("tril", "The matrices x [... rows columns] with zeros above the diagonal that lies `:diagonal` places right of the "
   "main one.",
   ref=lambda np, x, diagonal: np.tril(x, diagonal), expand=triangle_expand("<="), **TRIANGLE)

op("triu", "The matrices x [... rows columns] with zeros below the diagonal that lies `:diagonal` places right of the "
   "main one.",
   ref=lambda np, x, diagonal: np.triu(x, diagonal), expand=triangle_expand(">="), **TRIANGLE)
