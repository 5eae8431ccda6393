"""A random program: what it is, the graph that it makes, and the numbers that it is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import frozen

from sexpgpu.graph.autodiff import gradients
from sexpgpu.graph.core import Graph, Value, order
from sexpgpu.graph.interpreter import numpy_dtype
from sexpgpu.graph.simplify import simplify
from sexpgpu.graph.verify import verify
from sexpgpu.ops.types import TensorType
from sexpgpu.trace.random_draws import DrawBuilder

Step = tuple[str, tuple[int, ...], Mapping[str, Any]]
Input = tuple[str, tuple[int, ...], str]
SEED = np.array([7, 2**31], "uint32")  # of the program's draws


@frozen
class Program:
    """``inputs`` of (dtype, shape, kind of numbers), then ``steps`` of (operator, arguments, attributes). A value is
    known by its number, inputs first.

    ``outputs``    what is returned
    ``gradients``  inputs for which d loss / d input is returned too; the loss is the sum of all float outputs, each
                   times weights that are inputs of their own, or of their means where ``even``
    ``in_place``   inputs that the first output of their type may be written over
    """

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    gradients: tuple[int, ...] = ()
    in_place: tuple[int, ...] = ()
    even: bool = False

    def graph(self) -> Graph:
        """Raises TypeFault, ShapeFault and UserError, as the language would. Inputs that nothing needs are left out."""
        b = builder()
        values = [b.input(f"x{n}", TensorType(tuple(s), d)) for n, (d, s, _) in enumerate(self.inputs)]
        for op, args, attrs in self.steps:
            values.append(b(op, *(values[a] for a in args), **attrs))
        outputs = [values[n] for n in self.outputs]
        if self.gradients:
            outputs += gradients(b, (evenly if self.even else loss)(b, outputs), [values[n] for n in self.gradients])
        inputs = tuple(v for v in order(outputs) if not v.op)
        named = tuple((f"y{n}", y) for n, y in enumerate(outputs))
        return verify(simplify(Graph("main", inputs, named)), "simplify")

    def pairs(self, graph: Graph) -> list[tuple[int, int]]:
        """(output, input) of the graph, as a phase would ask for."""
        found: list[tuple[int, int]] = []
        for name in (f"x{n}" for n in self.in_place):
            for i, x in enumerate(graph.inputs):
                fits = [o for o, (_, y) in enumerate(graph.outputs) if y.type == x.type and y is not x]
                free = [o for o in fits if o not in [p for p, _ in found]]
                found += [(free[0], i)] if x.name == name and free else []
        return found

    def feeds(self, graph: Graph, seed: int) -> dict[str, np.ndarray]:
        """Numbers for each of the graph's inputs."""
        kinds = {f"x{n}": kind for n, (_, _, kind) in enumerate(self.inputs)}
        out = {}
        for v in graph.inputs:
            rng = np.random.default_rng([seed, *v.name.encode()])
            out[v.name] = SEED if v.name == "seed" else numbers(rng, v.type, kinds.get(v.name, "normal"))
        return out

    def __str__(self) -> str:
        """As it can be pasted into a test."""
        rows = [f"    inputs=({''.join(f'{i!r}, ' for i in self.inputs)}),", "    steps=("]
        rows += [f"        {step!r},  # {n}" for n, step in enumerate(self.steps, len(self.inputs))]
        rest = {"outputs": self.outputs, "gradients": self.gradients, "in_place": self.in_place, "even": self.even}
        return "\n".join(["Program(", *rows, "    ),", *(f"    {k}={v!r}," for k, v in rest.items() if v), ")"])


def builder() -> DrawBuilder:
    """For the values of one program; draws read the input ``seed``."""
    return DrawBuilder(Value("", (), {}, TensorType((2,), "u32"), "seed"), iter(range(1000, 10**6)))


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def loss(b: DrawBuilder, outputs: list[Value]) -> Value:
    """A float32 scalar that hangs on every element of every float output, on each by another weight."""
    total = b.const(0.0, "f32")
    for n, y in enumerate(outputs):
        if y.type.kind == "float":
            y = b("cast", y, dtype="f32")
            total = b("+", total, b("sum", b("*", y, b.input(f"w{n}", y.type))))
    return total


def evenly(b: DrawBuilder, outputs: list[Value]) -> Value:
    """A float32 scalar whose gradient is one number for all elements of an output: means, every other one in the
    output's own dtype."""
    total = b.const(0.0, "f32")
    for n, y in enumerate(outputs):
        if y.type.kind == "float":
            y = b("mean", b("cast", y, dtype="f32") if n % 2 else y)
            total = b("+", total, b("cast", y, dtype="f32"))
    return total


def numbers(rng: np.random.Generator, type: TensorType, kind: str) -> np.ndarray:
    """``kind``: normal, positive, whole (small integers, of which sums and products are exact) or index (of which a few
    lie outside of any table)."""
    if type.kind == "bool":
        return np.asarray(rng.random(type.shape) < 0.5)
    if type.kind != "float":
        low, high = (-2, 40) if kind == "index" else (-9, 10)
        drawn = rng.integers(max(low, 0) if type.kind == "uint" else low, high, type.shape)
    elif kind == "whole":
        drawn = rng.integers(-3, 4, type.shape)
    else:
        drawn = rng.uniform(0.25, 4.0, type.shape) if kind == "positive" else rng.standard_normal(type.shape)
    return np.asarray(drawn).astype(numpy_dtype(type))
