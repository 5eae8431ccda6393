"""The kernels that scripts/bench/kernels compares: what each computes, on which shapes, from which numbers.

HELD_OUT are shapes that were never looked at while the schedule rules were written or tuned: primes, tall, wide, and
batches of tiny ones. A shape is ragged where its last axis, or a product's columns or depth, is no multiple of 8.
Dataclasses and not attrs, which the peers' environment lacks.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """``what`` is computed on ``sizes``, whose meaning depends on it (see ``inputs``)."""

    group: str
    what: str
    sizes: tuple[int, ...]
    held_out: bool = False

    @property
    def name(self) -> str:
        if self.group == "product":
            batch, m, k, n = self.sizes
            return f"{self.what} [{m},{k}]x[{k},{n}]" + (f" x{batch}" if batch > 1 else "")
        return f"{self.what} {list(self.sizes)}"

    @property
    def is_ragged(self) -> bool:
        ends = self.sizes[2:] if self.group == "product" else self.sizes[-1:]
        return any(n % 8 for n in ends)

    @property
    def gflop(self) -> float:
        """Of a product; else 0."""
        batch, m, k, n = self.sizes if self.group == "product" else (0, 0, 0, 0)
        return 2e-9 * batch * m * k * n

    def inputs(self) -> list[np.ndarray]:
        """The same numbers wherever they are made."""
        r = np.random.default_rng(zlib.crc32(self.name.encode()))
        floats = lambda *shape: r.standard_normal(shape, np.float32)  # noqa: E731
        s = self.sizes
        if self.group == "product":
            batch, m, k, n = s
            a, b = ((k, m) if self.what[0] == "T" else (m, k)), ((n, k) if self.what[1] == "T" else (k, n))
            lead = (batch,) if batch > 1 else ()
            return [floats(*lead, *a), floats(*lead, *b)]
        return {
            "add": lambda: [floats(*s), floats(*s)],
            "gelu gradient": lambda: [floats(*s), floats(*s)],
            "softmax gradient": lambda: [floats(*s), floats(*s)],
            "normalize": lambda: [floats(*s), floats(s[-1]), floats(s[-1])],
            "normalize gradient": lambda: [floats(*s), floats(s[-1]), floats(s[-1]), floats(*s)],
            "cross-entropy": lambda: [floats(*s), r.integers(0, s[-1], s[:-1]).astype("int32")],
            "cross-entropy gradient": lambda: [floats(*s), r.integers(0, s[-1], s[:-1]).astype("int32")],
            "gather": lambda: [floats(*s[1:]), r.integers(0, s[1], s[0]).astype("int32")],
            "embedding gradient": lambda: [r.integers(0, s[1], s[0]).astype("int32"), floats(s[0], s[2])],
            "scatter-add": lambda: [floats(*s[1:]), r.integers(0, s[1], s[0]).astype("int32"), floats(s[0], s[2])],
            "adamw": lambda: [floats(*s) * 0.1, floats(*s), floats(*s) * 0.1, floats(*s) ** 2],
            "uniform draw": lambda: [],
            "normal draw": lambda: [],
        }.get(self.what, lambda: [floats(*s)])()


def _cases(held_out: bool, rows: dict[str, dict[str, list[tuple[int, ...]]]]) -> tuple[Case, ...]:
    return tuple(
        Case(group, what, sizes, held_out) for group, of in rows.items() for what, all_ in of.items() for sizes in all_
    )


# Products: (batch, rows, depth, columns). gather and its like: (ids, rows of the table, columns).
KNOWN = _cases(
    False,
    {
        "product": {
            "NN": [(1, 512, 128, 384), (1, 512, 512, 128), (64, 32, 32, 32), (1, 8, 512, 1000), (1, 4096, 64, 3)],
            "TN": [(1, 128, 512, 512), (1, 64, 4096, 64), (64, 32, 32, 32)],
            "NT": [(1, 512, 384, 128), (1, 8, 512, 512), (64, 32, 32, 32), (1, 509, 127, 131)],
        },
        "elementwise": {
            "add": [(512, 128)],
            "gelu": [(512, 512)],
            "gelu gradient": [(512, 512)],
            "transpose": [(512, 384)],
            "adamw": [(512, 128), (777,)],
        },
        "row reduction": {
            "softmax": [(64, 32, 32), (512, 65)],
            "softmax gradient": [(64, 32, 32)],
            "normalize": [(512, 128), (509, 100)],
            "argmax": [(512, 64)],
            "cross-entropy": [(512, 64)],
            "sum of columns": [(512, 777)],
        },
        "column reduction": {"sum of rows": [(4096, 128), (512, 130)]},
        "mixed": {
            "normalize gradient": [(512, 128)],
            "cross-entropy gradient": [(512, 64)],
            "sum of all": [(1000, 1000)],
        },
        "indexing, random": {
            "embedding gradient": [(512, 64, 128)],
            "gather": [(512, 64, 128)],
            "scatter-add": [(2048, 100, 33)],
            "uniform draw": [(512, 128)],
            "normal draw": [(512, 128)],
        },
    },
)
HELD_OUT = _cases(
    True,
    {
        "product": {
            "NN": [(1, 347, 211, 163), (1, 6007, 40, 24), (1, 24, 56, 5003), (700, 5, 7, 3)],
            "TN": [(1, 229, 1013, 83), (1, 40, 72, 3001)],
            "NT": [(1, 241, 97, 307), (300, 13, 19, 11)],
        },
        "elementwise": {"gelu": [(1, 99991)], "gelu gradient": [(3001, 7)], "transpose": [(251, 397), (6000, 10)]},
        "row reduction": {
            "softmax": [(16, 20011), (5003, 11)],
            "softmax gradient": [(307, 89)],
            "normalize": [(73, 1009)],
            "argmax": [(3001, 29)],
        },
        "column reduction": {"sum of rows": [(10007, 17), (12, 30011)]},
        "mixed": {"normalize gradient": [(307, 83)], "cross-entropy gradient": [(97, 1511)]},
        "indexing, random": {"embedding gradient": [(4001, 997, 24)], "normal draw": [(313, 101)]},
    },
)
CASES = KNOWN + HELD_OUT


# The same in NumPy


def turned(x: np.ndarray, how: str) -> np.ndarray:
    return x.swapaxes(-1, -2) if how == "T" else x


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def _gelu_gradient(x: np.ndarray, dy: np.ndarray) -> np.ndarray:
    t = np.tanh(0.7978845608 * (x + 0.044715 * x * x * x))
    inner = 0.7978845608 * (1 + 3 * 0.044715 * x * x)
    return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner)


def _normalized(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    centred = x - x.mean(-1, keepdims=True)
    scale = 1 / np.sqrt((centred * centred).mean(-1, keepdims=True) + np.float32(1e-5))
    return centred * scale, scale


def _normalize_gradient(x: Any, g: Any, b: Any, dy: Any) -> list[np.ndarray]:
    y, scale = _normalized(x)
    d = dy * g
    dx = scale * (d - d.mean(-1, keepdims=True) - y * (d * y).mean(-1, keepdims=True))
    return [dx, (dy * y).sum(0), dy.sum(0)]


def _softmax_gradient(x: np.ndarray, dy: np.ndarray) -> np.ndarray:
    y = _softmax(x)
    return y * (dy - (dy * y).sum(-1, keepdims=True))


def _cross_entropy(x: np.ndarray, label: np.ndarray) -> np.ndarray:
    top = x.max(-1, keepdims=True)
    total = np.log(np.exp(x - top).sum(-1)) + top[..., 0]
    return total - np.take_along_axis(x, label[..., None].astype("int64"), -1)[..., 0]


def _cross_entropy_gradient(x: np.ndarray, label: np.ndarray) -> np.ndarray:
    y = _softmax(x)
    y[np.arange(len(x)), label] -= 1
    return y / np.float32(len(x))


def _scattered(base: np.ndarray, ids: np.ndarray, rows: np.ndarray) -> np.ndarray:
    out = base.copy()
    np.add.at(out, ids, rows)
    return out


ADAMW = {"lr": 3e-4, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 0.01}


def _adamw(p: Any, g: Any, m: Any, v: Any) -> list[np.ndarray]:
    """The first step's bias correction; p, m and v are changed."""
    m *= np.float32(0.9)
    m += np.float32(0.1) * g
    v *= np.float32(0.999)
    v += np.float32(0.001) * g * g
    p -= np.float32(3e-4) * ((m / np.float32(0.1)) / (np.sqrt(v / np.float32(0.001)) + 1e-8) + np.float32(0.01) * p)
    return [p, m, v]


_random = np.random.Generator(np.random.Philox(7))


def numpy_call(case: Case) -> Any:
    """A function of the case's inputs."""
    s = case.sizes
    if case.group == "product":
        return lambda a, b: np.matmul(turned(a, case.what[0]), turned(b, case.what[1]))
    return {
        "add": np.add,
        "gelu": _gelu,
        "gelu gradient": _gelu_gradient,
        "transpose": lambda x: np.ascontiguousarray(x.T),
        "adamw": _adamw,
        "softmax": _softmax,
        "softmax gradient": _softmax_gradient,
        "normalize": lambda x, g, b: _normalized(x)[0] * g + b,
        "normalize gradient": _normalize_gradient,
        "argmax": lambda x: x.argmax(-1),
        "cross-entropy": _cross_entropy,
        "cross-entropy gradient": _cross_entropy_gradient,
        "sum of columns": lambda x: x.sum(1),
        "sum of rows": lambda x: x.sum(0),
        "sum of all": np.sum,
        "gather": lambda table, ids: table[ids],
        "embedding gradient": lambda ids, rows: _scattered(np.zeros(s[1:], np.float32), ids, rows),
        "scatter-add": _scattered,
        "uniform draw": lambda: _random.random(s, np.float32),
        "normal draw": lambda: _random.standard_normal(s, np.float32),
    }[case.what]
