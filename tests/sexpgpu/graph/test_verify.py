"""Each invariant broken once, and reported by its name, the value, and the transformation."""

import pytest
from attrs import evolve

from sexpgpu.graph.core import Builder, Graph, Value
from sexpgpu.graph.verify import INVARIANTS, BrokenGraph, verify
from sexpgpu.ops import OPS
from sexpgpu.ops.types import TensorType

F = TensorType((2, 3), "f32")


def sound() -> Graph:
    b = Builder()
    x = b.input("x", F)
    return Graph("g", (x,), (("y", b("sum", b("+", x, b.const(1.0, "f32")), axes=(1,), keepdims=False)),))


def ending(value: Value, *inputs: Value) -> Graph:
    graph = sound()
    return Graph("g", graph.inputs + inputs, (("y", value),))


def x() -> Value:
    return Value("", (), {}, F, "x")


def cycle() -> Graph:
    a = Value("neg", (x(),), {}, F)
    b = Value("neg", (a,), {}, F)
    object.__setattr__(a, "args", (b,))
    return Graph("g", (), (("y", b),))


def reaching(value: Value) -> Graph:
    leaves = [v for v in value.args if not v.op]
    return Graph("g", tuple(leaves), (("y", value),))


def twice_named() -> Graph:
    a, b = x(), x()
    return Graph("g", (a, b), (("y", a),))


def double_output() -> Graph:
    graph = sound()
    return graph.with_outputs(graph.outputs * 2)


BROKEN = {
    "arguments come before their use": (cycle, "neg f32[2 3]: it needs itself"),
    "every input in use is listed": (lambda: Graph("g", (), (("y", x()),)), "input 'x' f32[2 3]: it is used"),
    "inputs are bare": (lambda: Graph("g", (evolve(x(), region=2),), ()), "input 'x' f32[2 3]: an input has"),
    "input names are unique": (twice_named, "'x': 2 inputs have this name"),
    "output names are unique": (double_output, "'y': 2 outputs have this name"),
    "only primitive operators": (lambda: reaching(Value("softplus", (x(),), {}, F)), "softplus f32[2 3]: a composite"),
    "types are sound": (lambda: Graph("g", (Value("", (), {}, TensorType((0,), "f32"), "z"),), ()),
                        "input 'z' f32[0]: "),
    "attributes are plain": (lambda: reaching(Value("cast", (x(),), {"dtype": ["f32"]}, F)), "the attribute dtype is"),
    "attributes are in normal form": (
        lambda: reaching(Value("sum", (x(),), {"axes": (-1,), "keepdims": False}, TensorType((2,), "f32"))),
        "in normal form {'axes': (1,), 'keepdims': False}"),
    "types follow the operator's rule": (lambda: reaching(Value("neg", (x(),), {}, TensorType((2,), "f32"))),
                                         "neg f32[2]: the operator's rule gives f32[2 3]"),
    "regions are counted from 0": (lambda: reaching(Value("neg", (x(),), {}, F, region=-1)), "the region -1"),
}


def test_a_sound_graph_passes():
    graph = sound()
    assert verify(graph, "trace") is graph


@pytest.mark.parametrize("name", INVARIANTS)
def test_a_broken_invariant_is_named(name):
    make, said = BROKEN[name]
    with pytest.raises(BrokenGraph) as caught:
        verify(make(), "mangling")
    message = str(caught.value)
    assert message.startswith(f"after mangling, graph g breaks {name!r}: ")
    assert said in message


def test_an_operator_that_is_no_operator_and_a_named_value():
    with pytest.raises(BrokenGraph, match="frobnicate.*no operator"):
        verify(reaching(Value("frobnicate", (x(),), {}, F)), "mangling")
    with pytest.raises(BrokenGraph, match="the name 'q'"):
        verify(reaching(Value("neg", (x(),), {}, F, name="q")), "mangling")


def test_what_was_verified_before_is_not_asked_of_its_row_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph made of sound values and a new one: only the new one's type is worked out, and it must be right."""
    graph, verified = sound(), set()
    verify(graph, "one step", verified)
    ((_, y),) = graph.outputs
    assert verified == {y, *y.args, *(a for v in y.args for a in v.args)}
    asked: list[str] = []
    for name in ("sum", "+", "neg"):
        row = OPS[name]
        counted = lambda *types, row=row, **attrs: (asked.append(row.name), row.type(*types, **attrs))[1]  # noqa: E731
        monkeypatch.setitem(OPS, name, evolve(row, type=counted))
    new = Value("neg", (y,), {}, y.type)
    verify(graph.with_outputs([("y", new)]), "another", verified)
    assert asked == ["neg"] and new in verified
    wrong = Value("neg", (new,), {}, F)
    with pytest.raises(BrokenGraph, match="types follow the operator's rule"):
        verify(graph.with_outputs([("y", wrong)]), "a third", verified)
