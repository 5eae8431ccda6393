"""Kernels that are watched: what nothing orders fails, whatever its outcome, and what is ordered does not."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("ziglang")

from .emulator import KernelError, text
from .test_harness import FULL, kernel

pytestmark = pytest.mark.build

S = "__shared__ float s[64]; int t = threadIdx.x; "
RACES = {
    "a barrier is missing": ("shared", S + "s[t] = a[t]; a[t] = s[t ^ 33];"),
    "a barrier is missing between turns": (
        "shared",
        S + "for (int i = 0; i < 3; i++) { s[t] = i; __syncthreads(); a[t] = s[t ^ 33]; }",
    ),
    "one thread alone is read by its neighbour": ("shared", S + "if (t == 5) s[5] = 1; if (t == 6) a[6] = s[5];"),
    "two write the same": ("shared", S + "s[t / 2] = 1;"),
    "two of several reads are before a write": ("shared", S + "a[t] = s[0]; if (t == 40) s[0] = 1;"),
    "a shuffle orders no memory": (
        "shared",
        S + f"s[t] = a[t]; float x = __shfl_xor_sync({FULL}, a[t], 1); __syncwarp(1u << t % 32); a[t] = s[t ^ 1] + x;",
    ),
    "lanes outside of the mask": (
        "shared",
        S + "s[t] = a[t]; if (t % 32 < 16) __syncwarp(0xffffu); else __syncwarp(0xffff0000u); a[t] = s[t ^ 16];",
    ),
    "another warp": ("shared", S + "s[t] = a[t]; __syncwarp(); a[t] = s[t ^ 32];"),
    "a copy that has landed for the thread alone that waited": (
        "shared",
        """__shared__ alignas(16) float s[64]; int t = threadIdx.x; unsigned at = __cvta_generic_to_shared(s + t);
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(at), "l"(a + t), "n"(4));
        asm volatile("cp.async.wait_all;"); a[t + 64] = s[t ^ 1]; __syncthreads();""",
    ),
    "matrices that another warp wrote": (
        "shared",
        """__shared__ alignas(16) unsigned short s[2][64]; int t = threadIdx.x; unsigned x;
        for (int i = 0; i < 2; i++) s[t / 32][t % 32 * 2 + i] = i;
        unsigned at = __cvta_generic_to_shared(&s[1 - t / 32][t % 8 * 8]);
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(x) : "r"(at));
        a[t] = x; __syncthreads();""",
    ),
    "a byte of a word": ("shared", S + "if (t == 1) s[0] = 1; if (t == 2) ((char*)s)[3] = 1;"),
    "a word of which another wrote a byte": ("shared", S + "if (t == 1) ((char*)s)[3] = 1; if (t == 2) s[0] = 1;"),
    "threads of a block": ("global", "a[threadIdx.x / 2] = 1;"),
    "blocks that write the same": ("global", "a[threadIdx.x] = 1;"),
    "a block that reads what another writes": (
        "global",
        "int i = blockIdx.x * 64 + threadIdx.x; a[i] = a[(i + 64) % 128];",
    ),
    "barriers do not order blocks": (
        "global",
        "int i = blockIdx.x * 64 + threadIdx.x; float x = a[(i + 64) % 128]; __syncthreads(); a[i] = x;",
    ),
}
ORDERED = {
    "barriers": S + "for (int i = 0; i < 3; i++) { s[t] = i; __syncthreads(); a[t] = s[t ^ 33]; __syncthreads(); }",
    "its own": S + "s[t] = a[t]; s[t] += 1; a[t] = s[t]; __syncwarp();",
    "many readers": S + "if (t == 9) s[0] = 1; __syncthreads(); a[t] = s[0] + a[64]; __syncthreads(); s[t] = 2;",
    "lanes of a warp": S + "for (int i = 0; i < 3; i++) { s[t] = a[t]; __syncwarp(); a[t] = s[t ^ 1]; __syncwarp(); }",
    "lanes of a mask": S + "if (t % 32 < 16) { s[t] = a[t]; __syncwarp(0xffffu); a[t] = s[t ^ 1]; }",
    "by way of a third": S
    + """if (t == 0) s[0] = 1; if (t < 2) __syncwarp(3u);
      if (t == 1 || t == 2) __syncwarp(6u); if (t == 2) s[0] = 2;""",
    "neighbours in a word": "__shared__ char s[64]; int t = threadIdx.x; s[t] = 1; a[t] = s[t]; __syncwarp();",
    "another block's shared memory": S + "s[t] = a[t]; __syncthreads(); b[blockIdx.x * 64 + t] = s[63 - t];",
    "an array of its own": """float own[64]; for (int i = 0; i < 64; i++) own[i] = a[i];
      b[blockIdx.x * 64 + threadIdx.x] = own[(int)a[threadIdx.x] & 63];""",
}


def run(body: str, blocks: int = 1) -> None:
    a, b = np.zeros(128, "float32"), np.zeros(128, "float32")
    text(kernel(body, "float* a", "float* b"), a, b, threads=64, blocks=blocks, mode="watched")


@pytest.mark.parametrize("what", RACES)
def test_a_race_fails(what: str) -> None:
    where, body = RACES[what]
    with pytest.raises(KernelError, match=f"k: a race in {where} memory: a thread "):
        run(body, 2 if where == "global" else 1)


@pytest.mark.parametrize("what", ORDERED)
def test_what_is_ordered_does_not(what: str) -> None:
    run(ORDERED[what], 2 if "b[" in ORDERED[what] else 1)


def test_launches_are_ordered() -> None:
    a = np.zeros(64, "float32")
    for _ in range(2):
        (a,) = text(kernel("a[threadIdx.x ^ (int)a[64 - 1 - threadIdx.x] & 1] += 1;", "float* a"), a, mode="watched")
