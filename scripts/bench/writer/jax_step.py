"""The writer's step in JAX, its phases jitted one by one.   jax_step.py ROWS.npz INITIAL.npz STEPS

Prints a line of JSON a step. Buffers that a phase no longer needs are donated to it. Five more steps, which wait for
each part, give the parts' times.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

HEADS, LAYERS, SEQ, GIVEN, TRIPS, BATCH = 4, 4, 32, 2, 24, 16
RATE, BETA1, BETA2, EPS, DECAY = 3e-4, 0.9, 0.999, 1e-8, 0.01
PARTS = 5  # steps at the end
SEEN = np.tril(np.ones((SEQ, SEQ), bool))
column = np.arange(SEQ, dtype=np.int32)[None]


def norm(x, p, name):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * p[f"{name}/scale"] + p[f"{name}/shift"]


def attention(x, p, name):
    batch, seq, width = x.shape
    heads = lambda t: t.reshape(batch, seq, HEADS, width // HEADS).transpose(0, 2, 1, 3)  # noqa: E731
    q, k, v = map(heads, jnp.split(x @ p[f"{name}/qkv/weight"], 3, -1))
    scores = q @ k.transpose(0, 1, 3, 2) / np.float32(np.sqrt(width // HEADS))
    mixed = jax.nn.softmax(jnp.where(SEEN, scores, -jnp.inf), -1) @ v
    return mixed.transpose(0, 2, 1, 3).reshape(batch, seq, width) @ p[f"{name}/out/weight"]


def writer(p, row):
    x = p["value"][row] + p["position"]
    for i in range(LAYERS):
        name = f"block-{i}"
        x = x + attention(norm(x, p, f"{name}/norm-1"), p, name)
        up = norm(x, p, f"{name}/norm-2") @ p[f"{name}/mlp/up/weight"]
        x = x + jax.nn.gelu(up, approximate=True) @ p[f"{name}/mlp/down/weight"]
    return norm(x, p, "norm") @ p["head/weight"]


def begin(batch):
    return jnp.where(column < GIVEN, batch, 0)


def trip(p, row, n):
    at = n + GIVEN
    best = jnp.argmax(writer(p, row), -1).astype(jnp.int32)
    guess = jnp.sum(jnp.where(column == at - 1, best, 0), 1, keepdims=True)
    return jnp.where(column == at, guess, row)


def label(p, row):
    return jnp.argmax(writer(p, row), -1).astype(jnp.int32)


def loss(p, row, wanted):
    chosen = jnp.take_along_axis(jax.nn.log_softmax(writer(p, row), -1), wanted[..., None], -1)
    return -chosen.mean()


def train(p, m, v, t, row, wanted):
    value, g = jax.value_and_grad(loss)(p, row, wanted)
    t = t + 1
    m = jax.tree.map(lambda a, b: BETA1 * a + (1 - BETA1) * b, m, g)
    v = jax.tree.map(lambda a, b: BETA2 * a + (1 - BETA2) * b * b, v, g)

    def move(x, a, b):
        direction = (a / (1 - BETA1**t)) / (jnp.sqrt(b / (1 - BETA2**t)) + EPS)
        return x - RATE * (direction + DECAY * x)

    return jax.tree.map(move, p, m, v), m, v, t, value


def main(rows: str, initial: str, steps: int) -> None:
    batches = np.load(rows)["row"].reshape(-1, BATCH, SEQ)
    given = np.load(initial)
    student, teacher = (
        {k.split("/", 1)[1]: jnp.asarray(given[k]) for k in given.files if k.startswith(f"{who}/")}
        for who in ("student", "teacher")
    )
    state = (student, *(jax.tree.map(jnp.zeros_like, student) for _ in range(2)), jnp.float32(0))
    begin_, trip_, label_ = jax.jit(begin), jax.jit(trip, donate_argnums=1), jax.jit(label)
    train_ = jax.jit(train, donate_argnums=(0, 1, 2, 3))
    spent: dict[str, list[float]] = {"generation": [], "labelling": [], "training and update": []}
    for n in range(steps + PARTS):
        start = at = time.perf_counter()

        def mark(name: str, made, waits: bool = n >= steps) -> None:
            nonlocal at
            if waits:
                jax.block_until_ready(made)
                spent[name].append(1e3 * (time.perf_counter() - at))
                at = time.perf_counter()

        row = begin_(batches[n % len(batches)])
        for i in range(TRIPS):
            row = trip_(state[0], row, np.int32(i))
        mark("generation", row)
        wanted = label_(teacher, row)
        mark("labelling", wanted)
        *state, value = train_(*state, row, wanted)
        value = float(value)
        mark("training and update", state)
        if n < steps:
            print(json.dumps({"step": n + 1, "loss": value, "seconds": time.perf_counter() - start}), flush=True)
    parts = {name: round(statistics.median(ms), 3) for name, ms in spent.items()}
    print(json.dumps({"version": f"JAX {jax.__version__}", "parts": parts}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
