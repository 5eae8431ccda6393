"""Values and gradients of a sample of rows against PyTorch's, both in float64.

The bound is 1e-12 of the largest element: both sides do the same few hundred float64 operations (2e-16 each) in other
orders. A formula that differs (another eps, another tie, another alignment) misses it by many orders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from sexpgpu.graph.autodiff import gradients
from sexpgpu.graph.core import Builder, Value
from sexpgpu.graph.interpreter import evaluate
from sexpgpu.ops.types import TensorType

torch = pytest.importorskip("torch", reason="needs the extra `torch`")
F = torch.nn.functional
attend = F.scaled_dot_product_attention
pytestmark = pytest.mark.torch
BOUND = 1e-12
KINDS = {"f": "f64", "i": "i64", "b": "bool"}


def row(name: str, **attrs: Any) -> Callable[..., Value]:
    return lambda b, *xs: b(name, *xs, **attrs)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape) + 7).normal(size=shape)


def ids(limit: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, limit, shape)


def seen(*shape: int) -> np.ndarray:
    """A mask in which every query sees at least the first key."""
    out = np.random.default_rng(4).random(shape) < 0.6
    out[..., 0] = True
    return out


QKV = [normal(2, 3, 6, 4), normal(2, 3, 6, 4) + 0.1, normal(2, 3, 6, 5)]
ZEROS = np.array([[2.0, 0, 3], [0, 0, 1], [1, 2, 3]])
TIES = np.array([[1.0, 3.0, 3.0], [2.0, -1.0, 2.0]])

CASES: dict[str, tuple[Callable[..., Value], Callable[..., Any], Sequence[np.ndarray]]] = {
    "softmax": (row("softmax", axis=1), lambda x: F.softmax(x, 1), [normal(3, 5, 2)]),
    "log-softmax": (row("log-softmax"), lambda x: F.log_softmax(x, -1), [normal(3, 5) * 20]),
    "logsumexp": (row("logsumexp", axes=(0, 2)), lambda x: torch.logsumexp(x, (0, 2)), [normal(3, 5, 2) * 20]),
    "variance": (row("variance", axes=(1,)), lambda x: torch.var(x, 1, unbiased=False), [normal(3, 5, 2)]),
    "prod with zeros": (row("prod", axes=(1,)), lambda x: torch.prod(x, 1), [ZEROS]),
    "reduce-max with ties": (row("reduce-max", axes=(1,)), lambda x: torch.amax(x, 1), [TIES]),
    "cumsum": (row("cumsum", axis=0), lambda x: torch.cumsum(x, 0), [normal(70, 3)]),
    "relu": (row("relu"), F.relu, [np.array([-1.0, 0.0, 2.0])]),
    "gelu": (row("gelu"), lambda x: F.gelu(x, approximate="tanh"), [normal(50)]),
    "silu": (row("silu"), F.silu, [normal(50)]),
    "softplus": (row("softplus"), F.softplus, [np.array([-40.0, -1.0, 0.0, 1.0, 15.0])]),
    "normalize": (row("normalize", eps=1e-5), lambda x: F.layer_norm(x, x.shape[-1:], eps=1e-5), [normal(3, 4, 8)]),
    "normalize over two axes": (row("normalize", axes=(1, 2)), lambda x: F.layer_norm(x, (4, 8)), [normal(3, 4, 8)]),
    "rms-normalize": (row("rms-normalize", eps=1e-3), lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-3), [normal(3, 8)]),
    "matmul": (row("matmul"), torch.matmul, [normal(2, 1, 3, 4), normal(5, 4, 6)]),
    "matmul of a shared matrix": (row("matmul"), torch.matmul, [normal(2, 3, 4), normal(4, 6)]),
    "attention": (row("attention"), attend, QKV),
    "attention causal": (row("attention", causal=True), lambda *qkv: attend(*qkv, is_causal=True), QKV),
    "attention masked": (row("attention"), attend, [*QKV, seen(2, 1, 6, 6)]),
    "cross-entropy": (row("cross-entropy"), lambda x, t: F.cross_entropy(x, t, reduction="none"),
                      [normal(9, 5) * 9, ids(5, 9)]),
    "gather": (row("gather"), lambda t, i: F.embedding(i, t), [normal(5, 3), ids(5, 4, 6)]),
    "take-along": (row("take-along", axis=1), lambda x, i: torch.take_along_dim(x, i, 1),
                   [normal(3, 5, 2), ids(5, 3, 7, 1)]),
    "scatter-add": (row("scatter-add"), lambda x, i, u: torch.index_add(x, 0, i, u),
                    [normal(5, 3), ids(5, 9), normal(9, 3)]),
    "dot": (row("dot"), torch.dot, [normal(7), normal(7) + 1]),
}  # fmt: skip


def ours(make: Callable[..., Value], arrays: Sequence[np.ndarray], weight: np.ndarray) -> list[np.ndarray]:
    """The value, and the gradient of its sum weighted by ``weight`` to every float input."""
    b = Builder()
    xs = [b.input(f"x{i}", TensorType(x.shape, KINDS[x.dtype.kind])) for i, x in enumerate(arrays)]
    y = make(b, *xs)
    w = b.input("w", y.type)
    loss = b("sum", b("*", y, w))
    wrt = [x for x in xs if x.type.kind == "float"]
    feeds = {f"x{i}": x for i, x in enumerate(arrays)}
    return evaluate([y, *gradients(b, loss, wrt)], {**feeds, "w": weight})


def theirs(function: Callable[..., Any], arrays: Sequence[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
    """The same from PyTorch, and the weight it was taken with."""
    xs = [torch.tensor(x, requires_grad=x.dtype.kind == "f") for x in arrays]
    y = function(*xs)
    weight = np.random.default_rng(11).uniform(0.5, 1.5, tuple(y.shape))
    (y * torch.tensor(weight)).sum().backward()
    return [y.detach().numpy(), *(x.grad.numpy() for x in xs if x.requires_grad)], weight


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_pytorchs(name: str) -> None:
    make, function, arrays = CASES[name]
    want, weight = theirs(function, arrays)
    got = ours(make, arrays, weight)
    for part, g, w in zip(("value", "gradient 0", "gradient 1", "gradient 2"), got, want, strict=False):
        assert g.shape == w.shape
        np.testing.assert_allclose(g, w, rtol=0, atol=BOUND * max(1.0, np.abs(w).max()), err_msg=part)
    assert len(got) == len(want)
