"""The recurrent step in JAX, its phases jitted.   jax_step.py ROWS.npz INITIAL.npz STEPS {phases,whole}

Positions are a lax.scan, in writing as in training. ``phases``: one program for writing, one for labelling, one for
training and update; ``whole``: one program for the step. Prints a line of JSON a step.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

POSITIONS, BATCH = 16, 128
RATE, BETA1, BETA2, EPS, DECAY = 2e-3, 0.9, 0.999, 1e-8, 0.01
PARTS = 10  # steps at the end that wait for each part, to give the parts' times


def next_state(p, token, state):
    a = p["symbol"][token] @ p["cell/input/weight"] + p["cell/input/bias"]
    b = state @ p["cell/hidden/weight"] + p["cell/hidden/bias"]
    n = state.shape[-1]
    reset, update = jnp.split(jax.nn.sigmoid(a[:, : 2 * n] + b[:, : 2 * n]), 2, -1)
    candidate = jnp.tanh(a[:, 2 * n :] + reset * b[:, 2 * n :])
    return update * state + (1 - update) * candidate


def head(p, state):
    return state @ p["head/weight"] + p["head/bias"]


def unrolled(p, row, state):
    def position(s, token):
        s = next_state(p, token, s)
        return s, s

    _, states = jax.lax.scan(position, state, row.T)
    return head(p, jnp.swapaxes(states, 0, 1))


def write(p, first, state):
    def position(carried, _):
        token, s = carried
        s = next_state(p, token, s)
        return (jnp.argmax(head(p, s), -1).astype(jnp.int32), s), token

    _, read = jax.lax.scan(position, (first, state), None, POSITIONS)
    return read.T


def label(p, read, state):
    return jax.nn.log_softmax(unrolled(p, read, state))


def loss(p, read, state, wanted):
    have = jax.nn.log_softmax(unrolled(p, read, state))
    return jnp.sum(jnp.exp(wanted) * (wanted - have), -1).mean()


def train(p, m, v, t, read, state, wanted):
    value, g = jax.value_and_grad(loss)(p, read, state, wanted)
    t = t + 1
    m = jax.tree.map(lambda a, b: BETA1 * a + (1 - BETA1) * b, m, g)
    v = jax.tree.map(lambda a, b: BETA2 * a + (1 - BETA2) * b * b, v, g)

    def move(x, a, b):
        direction = (a / (1 - BETA1**t)) / (jnp.sqrt(b / (1 - BETA2**t)) + EPS)
        return x - RATE * (direction + DECAY * x)

    return jax.tree.map(move, p, m, v), m, v, t, value


def whole(p, m, v, t, teacher, first, state):
    read = write(p, first, state)
    return train(p, m, v, t, read, state, label(teacher, read, state))


def main(rows: str, initial: str, steps: int, mode: str) -> None:
    data, given = np.load(rows), np.load(initial)
    firsts, states = data["first"].reshape(-1, BATCH), data["state"].reshape(-1, BATCH, data["state"].shape[-1])
    student, teacher = (
        {k.split("/", 1)[1]: jnp.asarray(given[k]) for k in given.files if k.startswith(f"{who}/")}
        for who in ("student", "teacher")
    )
    kept = (student, *(jax.tree.map(jnp.zeros_like, student) for _ in range(2)), jnp.float32(0))
    write_, label_, train_ = jax.jit(write), jax.jit(label), jax.jit(train, donate_argnums=(0, 1, 2, 3))
    whole_ = jax.jit(whole, donate_argnums=(0, 1, 2, 3))
    spent: dict[str, list[float]] = {"generation": [], "labelling": [], "training and update": []}
    for n in range(steps + (PARTS if mode == "phases" else 0)):
        start = at = time.perf_counter()

        def mark(name: str, made, waits: bool = n >= steps) -> None:
            nonlocal at
            if waits:
                jax.block_until_ready(made)
                spent[name].append(1e3 * (time.perf_counter() - at))
                at = time.perf_counter()

        first, state = firsts[n % len(firsts)], states[n % len(firsts)]
        if mode == "whole":
            *kept, value = whole_(*kept, teacher, first, state)
        else:
            read = write_(kept[0], first, state)
            mark("generation", read)
            wanted = label_(teacher, read, state)
            mark("labelling", wanted)
            *kept, value = train_(*kept, read, state, wanted)
        value = float(value)
        mark("training and update", kept)
        if n < steps:
            print(json.dumps({"step": n + 1, "loss": value, "seconds": time.perf_counter() - start}), flush=True)
    parts = {name: round(statistics.median(ms), 3) for name, ms in spent.items() if ms}
    print(json.dumps({"version": f"JAX {jax.__version__}", **({"parts": parts} if parts else {})}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
