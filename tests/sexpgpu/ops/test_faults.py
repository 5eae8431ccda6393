"""What a user is told who gives an operator what it cannot take."""

from __future__ import annotations

from typing import Any

import pytest

from sexpgpu.graph.core import Builder
from sexpgpu.ops.types import ShapeFault, TensorType, TypeFault

F, W, U, B = "f32", "i32", "u32", "bool"

# operator, types of its arguments, attributes, kind of fault, what the message says
FAULTS: tuple[tuple[str, list[tuple[str, tuple[int, ...]]], dict[str, Any], type[Exception], str], ...] = (
    ("+", [(F, (3, 4)), (W, (4,))], {}, TypeFault, "dtypes differ: f32[3 4] and i32[4]; convert one with cast"),
    ("+", [(F, (3, 4)), (F, (3,))], {}, ShapeFault, "[3 4] and [3] do not broadcast: axis -1 has sizes 3 and 4"),
    ("+", [(B, (2,)), (B, (2,))], {}, TypeFault, "bool[2] is not a tensor of numbers; convert with cast"),
    ("/", [(W, (2,)), (W, (2,))], {}, TypeFault,
     "i32[2] is not a float tensor; the quotient of integers is quot; cast them for a float one"),
    ("quot", [(F, ()), (F, ())], {}, TypeFault, "f32[] is not an integer tensor; of floats it is floordiv"),
    ("pow", [(W, ()), (W, ())], {}, TypeFault, "i32[] is not a float tensor; cast it to a float dtype first"),
    ("exp", [(W, (2,))], {}, TypeFault, "i32[2] is not a float tensor; cast it to a float dtype first"),
    ("neg", [(U, (2,))], {}, TypeFault, "u32[2] is not a signed tensor; an unsigned integer has no negative: cast it"),
    ("clip", [(W, (2,))], {"lo": 0, "hi": 0.5}, TypeFault, "0.5 cannot be held in i32"),
    ("<", [(B, ()), (B, ())], {}, TypeFault, "bool[] is not a tensor of numbers; bools have = and /="),
    ("=", [(F, (2,)), (W, (2,))], {}, TypeFault, "dtypes differ: f32[2] and i32[2]; convert one with cast"),
    ("and", [(W, (2,)), (B, (2,))], {}, TypeFault,
     "i32[2] is not a bool tensor; compare it first, for example with /= 0"),
    ("where", [(W, (2,)), (F, (2,)), (F, (2,))], {}, TypeFault,
     "the condition is i32[2], not a bool tensor; compare it, for example with /= 0"),
    ("where", [(B, (2,)), (F, (2,)), (W, (2,))], {}, TypeFault,
     "dtypes differ: f32[2] and i32[2]; convert one with cast"),
    ("shift-left", [(F, (2,)), (F, (2,))], {}, TypeFault, "f32[2] is not an integer tensor; convert with cast"),
    ("iota", [], {"shape": ()}, ShapeFault, "iota needs an axis to count along; [] has none"),
    ("iota", [], {"shape": (300,), "dtype": "u8"}, TypeFault, "299 cannot be held in u8"),
    ("iota", [], {"shape": (3,), "axis": 1}, ShapeFault, "axis 1 is out of range for rank 1"),
    ("iota", [], {"shape": (3,), "dtype": "bool"}, TypeFault, "iota counts in numbers, not in bool"),
    ("full", [], {"shape": (2,), "value": (1, 2)}, TypeFault,
     "the value is a vector, not a number; a tensor of given numbers is made by constant"),
    ("full", [], {"shape": (2,), "value": -1, "dtype": "u32"}, TypeFault, "-1 cannot be held in u32"),
    ("full", [], {"shape": (2,), "value": 1e39, "dtype": "f32"}, TypeFault, "1e+39 is too large for f32"),
    ("full", [], {"shape": (0,), "value": 1}, ShapeFault, "[0] has the dimension 0; a dimension is 1 to 2147483647"),
    ("constant", [], {"data": ((1, 2), (3,))}, ShapeFault,
     "the vectors of a constant differ in length or depth"),
    ("constant", [], {"data": (1, 2.5), "dtype": "i32"}, TypeFault, "2.5 cannot be held in i32"),
    ("one-hot", [(F, (2,))], {"depth": 3}, TypeFault, "f32[2] is not an integer tensor; convert with cast"),
    ("one-hot", [(W, (2,))], {"depth": 0}, ShapeFault, "[0] has the dimension 0; a dimension is 1 to 2147483647"),
    ("tril", [(F, (2,))], {}, ShapeFault, "f32[2] is not a matrix, nor a stack of them"),
    ("reshape", [(F, (2, 3))], {"shape": (4, -1)}, ShapeFault,
     "f32[2 3] has 6 elements and cannot have the shape [4 -1]"),
    ("reshape", [(F, (2, 3))], {"shape": (-1, -1)}, ShapeFault, "[-1 -1] leaves more than one dimension open"),
    ("reshape", [(F, (2, 3))], {"shape": (-2, -3)}, ShapeFault,
     "[-2 -3] has the dimension -2; a dimension is 1 to 2147483647"),
    ("reshape", [(F, (2, 3))], {"shape": (0, -1)}, ShapeFault,
     "f32[2 3] has 6 elements and cannot have the shape [0 -1]"),
    ("transpose", [(F, (2, 3))], {"perm": (0, 0)}, ShapeFault, "[0 0] does not name each axis of f32[2 3] once"),
    ("broadcast", [(F, (2, 3))], {"shape": (3,)}, ShapeFault, "f32[2 3] does not broadcast to [3]"),
    ("squeeze", [(F, (2, 3))], {"axes": (1,)}, ShapeFault, "axis 1 of f32[2 3] has size 3, not 1"),
    ("squeeze", [(F, (1, 3))], {"axes": (0, -2)}, ShapeFault, "axis 0 is named twice"),
    ("expand-dims", [(F, (2,))], {"axis": 3}, ShapeFault, "axis 3 is out of range for rank 2"),
    ("concat", [(F, (2, 3)), (F, (2, 4))], {}, ShapeFault, "f32[2 3] and f32[2 4] differ in more than axis 0"),
    ("concat", [(F, (2,)), (W, (2,))], {}, TypeFault, "dtypes differ: f32[2] and i32[2]; convert one with cast"),
    ("stack", [(F, (2,)), (F, (3,))], {}, ShapeFault, "f32[2] and f32[3] differ in shape"),
    ("split", [(F, (5, 2))], {"parts": (2,)}, ShapeFault,
     "axis 0 of f32[5 2] has size 5 and cannot be split into 2 equal parts"),
    ("split", [(F, (5, 2))], {"parts": (2, 2)}, ShapeFault, "the parts [2 2] are not the size 5 of axis 0 of f32[5 2]"),
    ("slice", [(F, (5,))], {"from": 3, "to": 3}, ShapeFault,
     "from 3 to 3 holds no elements of axis 0 of f32[5], or leaves it"),
    ("slice", [(F, (5,))], {"to": 6}, ShapeFault, "from 0 to 6 holds no elements of axis 0 of f32[5], or leaves it"),
    ("pad", [(F, (2, 3))], {"widths": ((1, 1),)}, ShapeFault,
     "f32[2 3] is padded by a vector [before after] of counts for each of its axes: 2 of them"),
    ("pad", [(F, (2,))], {"widths": ((1, -1),)}, ShapeFault,
     "f32[2] is padded by a vector [before after] of counts for each of its axes: 1 of them"),
    ("pad", [(W, (2,))], {"widths": ((1, 1),), "value": 0.5}, TypeFault, "0.5 cannot be held in i32"),
    ("repeat", [(F, (2,))], {"times": 0}, ShapeFault, "an element cannot be repeated 0 times"),
    ("flip", [(F, (2,))], {"axes": (1,)}, ShapeFault, "axis 1 is out of range for rank 1"),
    ("roll", [(F, ())], {"shift": 1}, ShapeFault, "axis 0 is out of range for rank 0"),
)


@pytest.mark.parametrize("fault", [pytest.param(f, id=f"{i}-{f[0]}") for i, f in enumerate(FAULTS)])
def test_a_misuse_is_told_in_words(fault: Any) -> None:
    name, types, attrs, kind, words = fault
    b = Builder()
    xs = [b.input(f"x{i}", TensorType(shape, dtype)) for i, (dtype, shape) in enumerate(types)]
    with pytest.raises(kind) as caught:
        b(name, *xs, **attrs)
    assert str(caught.value) == words
