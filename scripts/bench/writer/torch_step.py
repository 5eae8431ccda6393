"""The writer's step in PyTorch.   torch_step.py ROWS.npz INITIAL.npz STEPS {eager,compile}

Attention is the fused one (scaled_dot_product_attention), the optimizer is the fused AdamW; ``compile`` compiles the
trip, the labelling and the loss. Prints a line of JSON a step.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

HEADS, LAYERS, SEQ, GIVEN, TRIPS, BATCH = 4, 4, 32, 2, 24, 16
column = torch.arange(SEQ, dtype=torch.int32)[None]


def norm(x, p, name):
    return F.layer_norm(x, x.shape[-1:], p[f"{name}/scale"], p[f"{name}/shift"])


def attention(x, p, name):
    batch, seq, width = x.shape
    parts = (x @ p[f"{name}/qkv/weight"]).split(width, -1)
    q, k, v = (t.reshape(batch, seq, HEADS, width // HEADS).transpose(1, 2) for t in parts)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.transpose(1, 2).reshape(batch, seq, width) @ p[f"{name}/out/weight"]


def writer(p, row):
    x = F.embedding(row, p["value"]) + p["position"]
    for i in range(LAYERS):
        name = f"block-{i}"
        x = x + attention(norm(x, p, f"{name}/norm-1"), p, name)
        up = norm(x, p, f"{name}/norm-2") @ p[f"{name}/mlp/up/weight"]
        x = x + F.gelu(up, approximate="tanh") @ p[f"{name}/mlp/down/weight"]
    return norm(x, p, "norm") @ p["head/weight"]


@torch.no_grad()
def trip(p, row, at):
    best = writer(p, row).argmax(-1).to(torch.int32)
    guess = torch.where(column == at - 1, best, 0).sum(1, keepdim=True).to(torch.int32)
    return torch.where(column == at, guess, row)


@torch.no_grad()
def label(p, row):
    return writer(p, row).argmax(-1)


def loss(p, row, wanted):
    logits = writer(p, row)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), wanted.reshape(-1))


def main(rows: str, initial: str, steps: int, mode: str) -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0)))))
    batches = torch.tensor(np.load(rows)["row"].reshape(-1, BATCH, SEQ))
    given = np.load(initial)
    student, teacher = (
        {k.split("/", 1)[1]: torch.tensor(given[k]) for k in given.files if k.startswith(f"{who}/")}
        for who in ("student", "teacher")
    )
    for tensor in student.values():
        tensor.requires_grad_(True)
    optimizer = torch.optim.AdamW(student.values(), lr=3e-4, weight_decay=0.01, fused=True)
    trip_, label_, loss_ = (torch.compile(f) if mode == "compile" else f for f in (trip, label, loss))
    spent: dict[str, list[float]] = {"generation": [], "labelling": [], "training": [], "update": []}

    def mark(name: str, since: float) -> float:
        spent[name].append(1e3 * (time.perf_counter() - since))
        return time.perf_counter()

    for n in range(steps):
        start = at = time.perf_counter()
        row = torch.where(column < GIVEN, batches[n % len(batches)], 0)
        for i in range(TRIPS):
            row = trip_(student, row, torch.tensor(i + GIVEN, dtype=torch.int32))
        at = mark("generation", at)
        wanted = label_(teacher, row)
        at = mark("labelling", at)
        value = loss_(student, row, wanted)
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        at = mark("training", at)
        optimizer.step()
        mark("update", at)
        print(json.dumps({"step": n + 1, "loss": value.item(), "seconds": time.perf_counter() - start}), flush=True)
    parts = {name: round(statistics.median(ms[len(ms) // 4 :]), 3) for name, ms in spent.items()}
    print(json.dumps({"version": f"PyTorch {torch.__version__}", "parts": parts}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
