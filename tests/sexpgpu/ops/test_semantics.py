"""What the language says about the edges of each operator: by the reference, and by the code compiled for this CPU.

Values are chosen here and the results written out by hand, so that a shared mistake of reference and kernel shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from row_cases import compiled, inlined, plain, scheduled

from sexpgpu.graph.core import Builder, Graph, Value
from sexpgpu.graph.interpreter import evaluate, numpy_dtype
from sexpgpu.ops.types import DTYPES, TensorType

NAN, INF = float("nan"), float("inf")
I32, I64 = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)
U32 = 2**32 - 1

Make = Callable[..., Value]


def op(name: str, **attrs: Any) -> Make:
    return lambda b, *xs: b(name, *xs, **attrs)


def constant(name: str, value: float) -> Make:
    """The operator with a number, not an input, on the right: what the compiler could fold."""
    return lambda b, x: b(name, x, b.const(value, x.type.dtype))


# what it says; dtype of the inputs; the inputs; how it is made; the result
EDGES: tuple[tuple[str, str, list[list[Any]], Make, list[Any]], ...] = (
    ("i32 + wraps", "i32", [[I32[1], I32[0], 5], [1, -1, -7]], op("+"), [I32[0], I32[1], -2]),
    ("i32 - wraps", "i32", [[I32[0], 0], [1, I32[0]]], op("-"), [I32[1], I32[0]]),
    ("i32 * wraps", "i32", [[65536, I32[0], -3], [65537, -1, 5]], op("*"), [65536, I32[0], -15]),
    ("u32 + wraps", "u32", [[U32, 7], [2, 8]], op("+"), [1, 15]),
    ("u32 - wraps", "u32", [[0, 7], [1, 8]], op("-"), [U32, U32]),
    ("u32 * wraps", "u32", [[U32, 65536], [U32, 65537]], op("*"), [1, 65536]),
    ("u8 + wraps", "u8", [[255, 200], [1, 100]], op("+"), [0, 44]),
    ("i64 + wraps", "i64", [[I64[1], I64[0], -1, 2**32], [1, -1, 1, -1]], op("+"), [I64[0], I64[1], 0, 2**32 - 1]),
    ("i64 - wraps", "i64", [[I64[0], 0, 0, 2**32], [1, I64[0], 1, 1]], op("-"), [I64[1], I64[0], -1, 2**32 - 1]),
    ("i64 * wraps", "i64", [[2**62, -(2**40), I64[0], -7], [4, 2**30 + 1, -1, 6]], op("*"),
     [0, -(2**40), I64[0], -42]),
    ("neg of the smallest", "i32", [[I32[0], 3]], op("neg"), [I32[0], -3]),
    ("neg of the smallest i64", "i64", [[I64[0], 3]], op("neg"), [I64[0], -3]),
    ("abs of the smallest", "i32", [[I32[0], -3]], op("abs"), [I32[0], 3]),
    ("quot truncates", "i32", [[7, -7, 7, -7, 6], [2, 2, -2, -2, 3]], op("quot"), [3, -3, -3, 3, 2]),
    ("quot by 0 is 0", "i32", [[7, -7, 0, I32[0]], [0, 0, 0, 0]], op("quot"), [0, 0, 0, 0]),
    ("quot by the number 0", "i32", [[7, -7]], constant("quot", 0), [0, 0]),
    ("quot of the smallest by -1", "i32", [[I32[0], I32[1]], [-1, -1]], op("quot"), [I32[0], -I32[1]]),
    ("quot of the smallest by the number -1", "i32", [[I32[0], 5]], constant("quot", -1), [I32[0], -5]),
    ("i64 quot", "i64", [[I64[0], 9, 9], [-1, 0, -2]], op("quot"), [I64[0], 0, -4]),
    ("i8 quot", "i8", [[-128, 9, 9], [-1, 0, -2]], op("quot"), [-128, 0, -4]),
    ("u32 quot", "u32", [[U32, 9], [2, 0]], op("quot"), [2**31 - 1, 0]),
    ("floordiv rounds down", "i32", [[7, -7, 7, -7, 6], [2, 2, -2, -2, 3]], op("floordiv"), [3, -4, -4, 3, 2]),
    ("floordiv by 0 is 0", "i32", [[7, -7, 0, I32[0]], [0, 0, 0, 0]], op("floordiv"), [0, 0, 0, 0]),
    ("floordiv of the smallest by -1", "i32", [[I32[0], I32[1]], [-1, -1]], op("floordiv"), [I32[0], -I32[1]]),
    ("i64 floordiv", "i64", [[I64[0], 9, 9, -9, I64[0]], [-1, 0, -2, 2, 3]], op("floordiv"),
     [I64[0], 0, -5, -5, I64[0] // 3]),
    ("i8 floordiv", "i8", [[-128, 9, 9], [-1, 0, -2]], op("floordiv"), [-128, 0, -5]),
    ("u32 floordiv", "u32", [[U32, 9], [2, 0]], op("floordiv"), [2**31 - 1, 0]),
    ("float floordiv goes with mod", "f32", [[1.0, 7.5, -7.5, 7.5, -7.5, 6.0], [0.1, 2.0, 2.0, -2.0, -2.0, 3.0]],
     op("floordiv"), [9, 3, -4, -4, 3, 2]),
    ("float floordiv by infinity", "f32", [[-1.0, 1.0], [INF, INF]], op("floordiv"), [-1, 0]),
    ("f64 floordiv", "f64", [[1.0, 0.7, -1.0], [0.1, 0.1, 0.1]], op("floordiv"), [9, 6, -10]),
    ("float floordiv by 0 and of infinity", "f32", [[1.0, 0.0, INF], [0.0, 0.0, 2.0]], op("floordiv"), [NAN, NAN, NAN]),
    ("mod has the sign of the divisor", "i32", [[7, -7, 7, -7, 6], [3, 3, -3, -3, -3]], op("mod"), [1, 2, -2, -1, 0]),
    ("mod by 0 is 0", "i32", [[7, -7, 0], [0, 0, 0]], op("mod"), [0, 0, 0]),
    ("mod by the number 0", "i32", [[7, -7]], constant("mod", 0), [0, 0]),
    ("mod of the smallest by -1", "i32", [[I32[0]], [-1]], op("mod"), [0]),
    ("u32 mod", "u32", [[U32, 9], [10, 0]], op("mod"), [5, 0]),
    ("float mod", "f32", [[7.5, -7.5, 7.5, -7.5, 6.0], [2.0, 2.0, -2.0, -2.0, 3.0]], op("mod"),
     [1.5, 0.5, -0.5, -1.5, 0.0]),
    ("float mod is exact", "f32", [[1e10, 3.0], [3.0, 0.1]], op("mod"),
     [1.0, float(np.fmod(np.float32(3.0), np.float32(0.1)))]),
    ("float mod by 0 and of infinity", "f32", [[1.0, INF, -1.0], [0.0, 2.0, INF]], op("mod"), [NAN, NAN, INF]),
    ("division by 0", "f32", [[1.0, -1.0, 0.0], [0.0, 0.0, 0.0]], op("/"), [INF, -INF, NAN]),
    ("min keeps NaN", "f32", [[NAN, 1.0, NAN, 2.0, -INF], [1.0, NAN, NAN, 1.0, 5.0]], op("min"),
     [NAN, NAN, NAN, 1.0, -INF]),
    ("max keeps NaN", "f32", [[NAN, 1.0, NAN, 2.0, -INF], [1.0, NAN, NAN, 1.0, 5.0]], op("max"),
     [NAN, NAN, NAN, 2.0, 5.0]),
    ("max with a number keeps NaN", "f32", [[NAN, -1.0, 1.0]], constant("max", 0.0), [NAN, 0.0, 1.0]),
    ("bf16 max keeps NaN", "bf16", [[NAN, 1.0, 2.0], [1.0, NAN, 1.0]], op("max"), [NAN, NAN, 2.0]),
    ("f64 min keeps NaN", "f64", [[NAN, 1.0, 2.0], [1.0, NAN, 1.0]], op("min"), [NAN, NAN, 1.0]),
    ("clip keeps NaN", "f32", [[NAN, -INF, 7.0, 0.5]], op("clip", lo=0, hi=1), [NAN, 0.0, 1.0, 0.5]),
    ("sign", "f32", [[NAN, -INF, -0.0, 1e-30]], op("sign"), [NAN, -1.0, 0.0, 1.0]),
    ("round takes the even of two", "f32", [[0.5, 1.5, 2.5, -0.5, -1.5, 2.6]], op("round"),
     [0.0, 2.0, 2.0, -0.0, -2.0, 3.0]),
    ("exp at the ends", "f32", [[INF, -INF, NAN, 0.0, 200.0]], op("exp"), [INF, 0.0, NAN, 1.0, INF]),
    ("log at the ends", "f32", [[0.0, -1.0, INF, 1.0, NAN]], op("log"), [-INF, NAN, INF, 0.0, NAN]),
    ("log1p at the ends", "f32", [[-1.0, -2.0, INF, NAN, 1e-20]], op("log1p"), [-INF, NAN, INF, NAN, 1e-20]),
    ("log1p near 0", "f32", [[1e-5, -1e-5]], op("log1p"), [9.999949747714609e-06, -1.000004974770956e-05]),
    ("expm1 near 0", "f32", [[1e-5]], op("expm1"), [1.0000049747542893e-05]),
    ("expm1 at the ends", "f32", [[-INF, INF, NAN, 1e-20, 0.0]], op("expm1"), [-1.0, INF, NAN, 1e-20, 0.0]),
    ("tanh at the ends", "f32", [[-INF, INF, NAN, 0.0]], op("tanh"), [-1.0, 1.0, NAN, 0.0]),
    ("sigmoid at the ends", "f32", [[-INF, INF, NAN, 0.0]], op("sigmoid"), [0.0, 1.0, NAN, 0.5]),
    ("erf at the ends", "f32", [[-INF, INF, NAN, 0.0]], op("erf"), [-1.0, 1.0, NAN, 0.0]),
    ("sqrt at the ends", "f32", [[-1.0, INF, NAN, 0.0]], op("sqrt"), [NAN, INF, NAN, 0.0]),
    ("pow at the ends", "f32", [[0.0, -8.0, NAN, 2.0, -2.0], [0.0, 0.5, 0.0, -INF, 3.0]], op("pow"),
     [1.0, NAN, 1.0, 0.0, -8.0]),
    ("= of NaN", "f32", [[NAN, 1.0, 0.0], [NAN, 1.0, -0.0]], op("="), [False, True, True]),
    ("/= of NaN", "f32", [[NAN, 1.0, 0.0], [NAN, 1.0, -0.0]], op("/="), [True, False, False]),
    ("/= of x and x finds NaN", "f32", [[NAN, 1.0]], lambda b, x: b("/=", x, x), [True, False]),
    ("= of x and x finds NaN", "f32", [[NAN, 1.0, INF]], lambda b, x: b("=", x, x), [False, True, True]),
    ("<= of x and x finds NaN", "f32", [[NAN, 1.0]], lambda b, x: b("<=", x, x), [False, True]),
    ("< of x and x is false", "f32", [[NAN, 1.0]], lambda b, x: b("<", x, x), [False, False]),
    ("not > finds NaN", "f32", [[NAN, 1.0, 3.0]],
     lambda b, x: b("not", b(">", x, b.const(2.0, "f32"))), [True, True, False]),
    ("not = is /=", "f32", [[NAN, 1.0], [NAN, 1.0]], lambda b, x, y: b("not", b("=", x, y)), [True, False]),
    ("not /= is =", "f32", [[NAN, 1.0], [NAN, 1.0]], lambda b, x, y: b("not", b("/=", x, y)), [False, True]),
    ("< or >= is not all", "f32", [[NAN, 1.0], [1.0, 1.0]],
     lambda b, x, y: b("or", b("<", x, y), b(">=", x, y)), [False, True]),
    ("= or /= is all", "f32", [[NAN, 1.0], [1.0, 1.0]], lambda b, x, y: b("or", b("=", x, y), b("/=", x, y)),
     [True, True]),
    ("< and >= is none", "f32", [[NAN, 1.0], [1.0, 1.0]],
     lambda b, x, y: b("and", b("not", b("<", x, y)), b("not", b(">=", x, y))), [True, False]),
    ("e - e of infinity", "f32", [[1e38, 1.0, 0.1], [1e38, 2.0, 0.1]],
     lambda b, x, y: (lambda e: b("-", e, e))(b("*", x, y)), [NAN, 0.0, 0.0]),
    ("x - x of infinity", "f32", [[INF, NAN, 1.0]], lambda b, x: b("-", x, x), [NAN, NAN, 0.0]),
    ("x / x of 0", "f32", [[0.0, INF, 2.0]], lambda b, x: b("/", x, x), [NAN, NAN, 1.0]),
    ("infinity times the number 0", "f32", [[INF, NAN, 2.0]], constant("*", 0.0), [NAN, NAN, 0.0]),
    ("the number 0 over 0", "f32", [[0.0, NAN, 2.0]], lambda b, x: b("/", b.const(0.0, "f32"), x), [NAN, NAN, 0.0]),
    ("x + y - y of infinity", "f32", [[1.0, 1.0], [INF, 1.0]],
     lambda b, x, y: b("-", b("+", x, y), y), [NAN, 1.0]),
    ("x + y - y rounds", "f32", [[1e-9, 1.0], [1.0, 1.0]], lambda b, x, y: b("-", b("+", x, y), y), [0.0, 1.0]),
    ("x * y / y of 0", "f32", [[1.0, 1.0], [0.0, 1.0]], lambda b, x, y: b("/", b("*", x, y), y), [NAN, 1.0]),
    ("x + 1 - 1 rounds", "f32", [[1e-9, 1.0]],
     lambda b, x: b("-", b("+", x, b.const(1.0, "f32")), b.const(1.0, "f32")), [0.0, 1.0]),
    ("x * 3 * 1/3 rounds twice", "f32", [[1e38, 1.0]],
     lambda b, x: b("*", b("*", x, b.const(10.0, "f32")), b.const(0.1, "f32")), [INF, 1.0]),
    ("x / 10 * 10 of a tiny number", "f32", [[1e-45, 1.0]],
     lambda b, x: b("*", b("/", x, b.const(10.0, "f32")), b.const(10.0, "f32")), [0.0, 1.0]),
    ("max of x and -x", "f32", [[NAN, -2.0]], lambda b, x: b("max", x, b("neg", x)), [NAN, 2.0]),
    ("where of x = x", "f32", [[NAN, 1.0]], lambda b, x: b("where", b("=", x, x), x, b.const(7.0, "f32")), [7.0, 1.0]),
    (">= of NaN", "f32", [[NAN, 1.0], [1.0, NAN]], op(">="), [False, False]),
    ("shift-left out of range", "i32", [[1, 1, 1, 3, -1], [31, 32, -1, 30, 4]], op("shift-left"),
     [I32[0], 0, 0, -(2**30), -16]),
    ("shift-left by the number 32", "u32", [[5, U32]], constant("shift-left", 32), [0, 0]),
    ("shift-right keeps the sign", "i32", [[-8, -8, -8, 8, 8], [1, 32, -1, 32, 1]], op("shift-right"),
     [-4, -1, -1, 0, 4]),
    ("shift-right of unsigned", "u32", [[U32, U32, U32], [31, 32, 4]], op("shift-right"), [1, 0, 2**28 - 1]),
    ("i64 shifts", "i64", [[1, -1, -1], [63, 64, 1]], op("shift-left"), [I64[0], 0, -2]),
    ("u8 shifts", "u8", [[255, 255, 1], [7, 8, 9]], op("shift-right"), [1, 0, 0]),
    ("cast f32 to i32 saturates", "f32", [[NAN, INF, -INF, 3e9, -3e9, -2.7, 2.7]], op("cast", dtype="i32"),
     [0, I32[1], I32[0], I32[1], I32[0], -2, 2]),
    ("cast f32 to i32 at the ends", "f32", [[2147483520.0, 2147483648.0, -2147483648.0]], op("cast", dtype="i32"),
     [2147483520, I32[1], I32[0]]),
    ("cast f64 to i32 at the ends", "f64", [[2147483647.9, -2147483648.9, 2147483648.0]], op("cast", dtype="i32"),
     [I32[1], I32[0], I32[1]]),
    ("cast f32 to u8 saturates", "f32", [[NAN, 300.0, -1.0, -0.5, 255.9]], op("cast", dtype="u8"), [0, 255, 0, 0, 255]),
    ("cast f32 to u32 saturates", "f32", [[5e9, -1.0, 4e9]], op("cast", dtype="u32"), [U32, 0, 4000000000]),
    ("cast f64 to i64 saturates", "f64", [[1e30, -1e30, NAN, 2.0**62]], op("cast", dtype="i64"),
     [I64[1], I64[0], 0, 2**62]),
    ("cast bf16 to i8 saturates", "bf16", [[500.0, -500.0, NAN, -3.5]], op("cast", dtype="i8"), [127, -128, 0, -3]),
    ("cast i32 to i8 wraps", "i32", [[127, 128, 255, 256, -129, I32[0]]], op("cast", dtype="i8"),
     [127, -128, -1, 0, 127, 0]),
    ("cast i32 to u8 wraps", "i32", [[-1, 256, 255]], op("cast", dtype="u8"), [255, 0, 255]),
    ("cast i32 to u32 wraps", "i32", [[-1, 5, I32[0]]], op("cast", dtype="u32"), [U32, 5, 2**31]),
    ("cast u32 to i32 wraps", "u32", [[U32, 5, 2**31]], op("cast", dtype="i32"), [-1, 5, I32[0]]),
    ("cast u32 to i8 wraps", "u32", [[U32, 128, 5]], op("cast", dtype="i8"), [-1, -128, 5]),
    ("cast i8 to u32 wraps", "i8", [[-1, 5]], op("cast", dtype="u32"), [U32, 5]),
    ("cast i8 to u8 wraps", "i8", [[-1, 5]], op("cast", dtype="u8"), [255, 5]),
    ("cast u8 to i8 wraps", "u8", [[255, 5]], op("cast", dtype="i8"), [-1, 5]),
    ("cast i64 to u32 wraps", "i64", [[-1, 2**40 + 5]], op("cast", dtype="u32"), [U32, 5]),
    ("cast u32 to i64 is exact", "u32", [[U32, 5]], op("cast", dtype="i64"), [U32, 5]),
    ("cast f32 to bool", "f32", [[NAN, 0.0, -0.0, 0.25]], op("cast", dtype="bool"), [True, False, False, True]),
    ("cast i32 to bool", "i32", [[256, 0, -1]], op("cast", dtype="bool"), [True, False, True]),
    ("cast f32 to bf16 takes the even of two", "f32", [[1.00390625, 1.01171875]], op("cast", dtype="bf16"),
     [1.0, 1.015625]),
    ("one-hot out of range", "i32", [[-1, 0, 3]], op("one-hot", depth=2), [[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]]),
    # a kernel of several operators, which the compiler simplifies as one
    ("an overflow is seen", "i32", [[I32[1], 5], [1, 1]], lambda b, x, y: b("<", b("+", x, y), x), [True, False]),
    ("an unsigned overflow is seen", "u32", [[U32, 5], [1, 1]], lambda b, x, y: b("<", b("+", x, y), x), [True, False]),
    ("x + 1 > x fails at the end", "i32", [[I32[1], 5]],
     lambda b, x: b(">", b("+", x, b.const(1, "i32")), x), [False, True]),
    ("a cast that wraps is negative", "u32", [[U32, 5]],
     lambda b, x: b("<", b("cast", x, dtype="i32"), b.const(0, "i32")), [True, False]),
    ("a cast that wraps is large", "i32", [[-1, 5]],
     lambda b, x: b(">", b("cast", x, dtype="u32"), b.const(2**31, "u32")), [True, False]),
    ("what is counted wraps", "i32", [[0, 0, 0]],
     lambda b, x: b("cast", b("+", b("iota", shape=(3,)), b.const(255, "i32")), dtype="u8"), [255, 0, 1]),
    ("numbers wrap too", "i32", [[0]],
     lambda b, x: b("+", b("+", x, b.const(I32[1], "i32")), b.const(I32[1], "i32")), [-2]),
    ("a guarded quotient does not trap", "i32", [[7, 7, I32[0]], [0, 2, -1]],
     lambda b, x, y: b("where", b("/=", y, b.const(0, "i32")), b("quot", x, y), b.const(9, "i32")), [9, 3, I32[0]]),
    ("a guarded remainder does not trap", "i64", [[7, 7, I64[0]], [0, 2, -1]],
     lambda b, x, y: b("where", b(">", y, b.const(0, "i64")), b("mod", x, y), b.const(9, "i64")), [9, 1, 9]),
    ("NaN is found after arithmetic", "f32", [[INF, 1.0], [INF, 1.0]],
     lambda b, x, y: b("max", b("-", x, y), b.const(0.0, "f32")), [NAN, 0.0]),
)


def graph_of(
    edge: tuple[str, str, list[list[Any]], Make, list[Any]],
) -> tuple[tuple[Value, ...], Value, list[np.ndarray]]:
    _, dtype, given, make, _ = edge
    b = Builder()
    xs = tuple(b.input(f"x{i}", TensorType((len(x),), dtype)) for i, x in enumerate(given))
    return xs, make(b, *xs), [np.array(x, dtype="float64" if DTYPES[dtype].kind == "float" else None).astype(
        numpy_dtype(TensorType((), dtype))) for x in given]


def check(got: np.ndarray, value: Value, want: list[Any], rtol: float) -> None:
    expected = np.array(want, "float64" if value.type.kind == "float" else None)
    assert got.dtype == numpy_dtype(value.type)
    if value.type.kind != "float":
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(got.astype("float64"), expected, rtol=rtol, atol=0)


@pytest.mark.parametrize("edge", [pytest.param(e, id=e[0]) for e in EDGES])
def test_the_reference_says_so(edge: Any) -> None:
    xs, y, arrays = graph_of(edge)
    (got,) = evaluate([y], {x.name: a for x, a in zip(xs, arrays, strict=True)})
    check(got, y, edge[-1], rtol=1e-7)  # the results above are exact, or written in decimals for a float32


@pytest.fixture(scope="module", params=[plain, scheduled, inlined])
def machine(request: Any) -> Any:
    pytest.importorskip("tvm", reason="needs the extra `build`")
    graphs = []
    for i, edge in enumerate(EDGES):
        xs, y, _ = graph_of(edge)
        graphs.append(Graph(f"edge_{i}", xs, (("y", y),)))
    return compiled(graphs, request.param)


@pytest.mark.build
@pytest.mark.parametrize("number", [pytest.param(i, id=e[0]) for i, e in enumerate(EDGES)])
def test_the_compiled_code_does_so(machine: Any, number: int) -> None:
    import tvm

    _, y, arrays = graph_of(EDGES[number])
    (got,) = machine[f"edge_{number}"](*map(tvm.runtime.tensor, arrays))
    check(got.numpy(), y, EDGES[number][-1], rtol=1e-6)  # a few units in the last place of libm's functions


def test_the_gradient_at_a_tie_goes_to_the_first_argument() -> None:
    from sexpgpu.graph.autodiff import gradients

    for name in ("min", "max"):
        b = Builder()
        x, y = (b.input(n, TensorType((), "f32")) for n in "xy")
        found = evaluate(gradients(b, b(name, x, y), [x, y]), {n: np.array(2, "float32") for n in "xy"})
        assert [float(g) for g in found] == [1.0, 0.0]


def test_the_gradient_stops_at_an_integer() -> None:
    from sexpgpu.graph.autodiff import gradients

    b = Builder()
    x = b.input("x", TensorType((), "f32"))
    loss = b("*", x, b("cast", b("cast", x, dtype="i32"), dtype="f32"))
    (g,) = evaluate(gradients(b, loss, [x]), {"x": np.array(2.5, "float32")})
    assert float(g) == 2.0


def test_the_gradient_of_pow_is_finite_where_it_has_a_value() -> None:
    from sexpgpu.graph.autodiff import gradients

    b = Builder()
    x, y = (b.input(n, TensorType((3,), "f32")) for n in "xy")
    loss = b("sum", b("pow", x, y), axes=(0,), keepdims=False)
    feeds = {"x": np.array([0.0, -2.0, 0.0], "float32"), "y": np.array([2.0, 2.0, 0.0], "float32")}
    dx, dy = evaluate(gradients(b, loss, [x, y]), feeds)
    assert dx.tolist() == [0.0, -4.0, 0.0] and dy.tolist() == [0.0, 0.0, 0.0]
