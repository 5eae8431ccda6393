"""The step of the route planner in JAX, one jitted program.   jax_step.py DRAWS.npz INITIAL.npz STEPS {gather,product}

``gather`` and ``product`` say how rows of a table are picked: by index, or by a product with one-hot rows. The first
steps read our draws, so that their losses can be compared; the others draw their own, in a jitted program before the
step. Prints a line of JSON a step.
"""

from __future__ import annotations

import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

CITIES, STARTS, WIDTH, LAYERS, HEADS, BATCH = 20, 8, 64, 2, 4, 64
TRIPS = CITIES - 1
RATE, RISING, BETA1, BETA2, EPS = 5e-4, 50, 0.9, 0.99, 1e-8
BEGIN = jnp.broadcast_to(jnp.arange(STARTS, dtype=jnp.int32) * (CITIES // STARTS), (BATCH, STARTS))
column = jnp.arange(CITIES, dtype=jnp.int32)


def by_gather(table, at):
    return jnp.take_along_axis(table, at[..., None], 1)


def by_product(table, at):
    return jax.nn.one_hot(at, CITIES) @ table


def norm(x, p, name):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * p[f"{name}/scale"] + p[f"{name}/shift"]


def linear(x, p, name):
    y = x @ p[f"{name}/weight"]
    return y + p[f"{name}/bias"] if f"{name}/bias" in p else y


def heads_first(x):
    return x.reshape(*x.shape[:2], HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3)


def attention(q, k, v, visited=None):
    scores = q @ k.transpose(0, 1, 3, 2) / np.float32(np.sqrt(WIDTH // HEADS))
    if visited is not None:
        scores = jnp.where(visited[:, None], -1e30, scores)
    mixed = jax.nn.softmax(scores, -1) @ v
    return mixed.transpose(0, 2, 1, 3).reshape(mixed.shape[0], mixed.shape[2], WIDTH)


def block(x, p, name):
    y = norm(x, p, f"{name}/norm-1")
    q, k, v = (heads_first(linear(y, p, f"{name}/attention/{part}")) for part in ("query", "key", "value"))
    x = x + linear(attention(q, k, v), p, f"{name}/attention/out")
    up = jax.nn.relu(linear(norm(x, p, f"{name}/norm-2"), p, f"{name}/mlp/up"))
    return x + linear(up, p, f"{name}/mlp/down")


def planner(p, points, pick):
    places = linear(points, p, "planner/lift")
    for i in range(LAYERS):
        places = block(places, p, f"planner/block-{i}")
    start = linear(pick(places, BEGIN), p, "planner/start")
    return {
        "start": start + linear(places.mean(1, keepdims=True), p, "planner/whole"),
        "here": linear(places, p, "planner/here"),
        "key": heads_first(linear(places, p, "planner/key")),
        "value": heads_first(linear(places, p, "planner/value")),
        "goal": linear(places, p, "planner/goal"),
    }


def chooser(p, tables, query, visited):
    seen = attention(heads_first(query), tables["key"], tables["value"], visited)
    glimpse = linear(seen, p, "chooser/glimpse")
    score = glimpse @ tables["goal"].transpose(0, 2, 1) / np.float32(np.sqrt(WIDTH))
    return jnp.where(visited, -1e9, 10 * jnp.tanh(score))


def written(p, points, choices, pick):
    """Tours [batch starts cities] by Gumbel's trick from uniform draws [trips batch starts cities]."""
    tables = planner(p, points, pick)

    def trip(state, given):
        tour, last, visited = state
        at, uniform = given
        logits = chooser(p, tables, tables["start"] + pick(tables["here"], last), visited)
        noise = -jnp.log(-jnp.log(jnp.maximum(uniform, 2.0**-25)))
        chosen = jnp.argmax(logits + noise, -1).astype(jnp.int32)
        here = column == chosen[..., None]
        return (jnp.where(column == at, chosen[..., None], tour), chosen, visited | here), None

    state = (jnp.where(column == 0, BEGIN[..., None], 0), BEGIN, column == BEGIN[..., None])
    return lax.scan(trip, state, (jnp.arange(1, CITIES), choices))[0][0]


def length(points, tour):
    stops = jnp.take_along_axis(points[:, None], tour[..., None], 2)
    return jnp.sqrt(((stops - jnp.roll(stops, -1, 2)) ** 2).sum(-1)).sum(-1)


def loss(p, points, tour, advantage, pick):
    tables = planner(p, points, pick)
    flat = lambda x: x.reshape(BATCH, STARTS * TRIPS, *x.shape[3:])  # noqa: E731
    here = pick(tables["here"], flat(tour[:, :, :-1])).reshape(BATCH, STARTS, TRIPS, WIDTH)
    when = jnp.where(tour[..., None] == column, jnp.arange(CITIES)[:, None], 0).sum(2)  # [batch starts cities]
    visited = when[:, :, None, :] <= jnp.arange(TRIPS)[:, None]
    logits = chooser(p, tables, flat(tables["start"][:, :, None] + here), flat(visited))
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits, -1), flat(tour[:, :, 1:])[..., None], -1)
    return (advantage * chosen.reshape(BATCH, STARTS, TRIPS).sum(-1)).mean()


def step(p, m, v, t, points, choices, pick):
    tour = written(p, points, choices, pick)
    lengths = length(points, tour)
    advantage = lengths - lengths.mean(1, keepdims=True)
    value, g = jax.value_and_grad(loss)(p, points, tour, advantage, pick)
    t = t + 1
    rate = RATE * jnp.minimum(1, t / RISING)
    m = jax.tree.map(lambda a, b: BETA1 * a + (1 - BETA1) * b, m, g)
    v = jax.tree.map(lambda a, b: BETA2 * a + (1 - BETA2) * b * b, v, g)

    def move(x, a, b):
        return x - rate * (a / (1 - BETA1**t)) / (jnp.sqrt(b / (1 - BETA2**t)) + EPS)

    return jax.tree.map(move, p, m, v), m, v, t, value


def draw(n):
    maps, choices = jax.random.split(jax.random.fold_in(jax.random.key(3), n))
    shape = (TRIPS, BATCH, STARTS, CITIES)
    return jax.random.uniform(maps, (BATCH, CITIES, 2)), jax.random.uniform(choices, shape)


def main(draws: str, initial: str, steps: int, how: str) -> None:
    ours, given = np.load(draws), np.load(initial)
    pick = {"gather": by_gather, "product": by_product}[how]
    p = {name: jnp.asarray(given[name]) for name in given.files}
    state = (p, *(jax.tree.map(jnp.zeros_like, p) for _ in range(2)), jnp.float32(0))
    step_ = jax.jit(lambda *x: step(*x, pick), donate_argnums=(0, 1, 2, 3))
    draw_ = jax.jit(draw)
    for n in range(steps):
        start = time.perf_counter()
        drawn = draw_(np.int32(n))  # in the first steps too, so that they compile all and do the same work
        if n < len(ours["maps"]):
            drawn = (jnp.asarray(ours["maps"][n]), jnp.asarray(ours["choices"][n]))
        *state, value = step_(*state, *drawn)
        value = float(value)
        print(json.dumps({"step": n + 1, "loss": value, "seconds": time.perf_counter() - start}), flush=True)
    print(json.dumps({"version": f"JAX {jax.__version__}"}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
