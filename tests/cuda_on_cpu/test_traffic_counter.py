"""The counter of memory requests, on kernels whose sectors and turns of the banks are known."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("ziglang")

from . import traffic
from .emulator import Guarded, Launch, Text, core
from .test_harness import kernel

pytestmark = pytest.mark.build

S = "__shared__ alignas(16) float s[2048]; int t = threadIdx.x;"
AT = "unsigned at = __cvta_generic_to_shared({});"
MATRICES = """asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
  : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "r"(at)); b[t] = x + y + z + w;"""
COPY = """asm volatile("cp.async.cg.shared.global [%0], [%1], %2;" :: "r"(at), "l"(a + {}), "n"(16));
  asm volatile("cp.async.wait_all;"); b[t] = s[t];"""
GLOBAL, SHARED = False, True
LOAD, STORE = False, True
# What it is, of which memory and direction -> requests, sectors or turns, and the least of them.
CASES = {
    "neighbours": ("b[t] = a[t];", GLOBAL, LOAD, (1, 4, 4)),
    "every second": ("b[t] = a[2 * t];", GLOBAL, LOAD, (1, 8, 4)),
    "a row a thread": ("b[64 * t] = a[t];", GLOBAL, STORE, (1, 32, 4)),
    "one for all": ("b[t] = a[7];", GLOBAL, LOAD, (1, 1, 1)),
    "vectors": ("*(float4*)(b + 4 * t) = *(float4*)(a + 4 * t);", GLOBAL, LOAD, (1, 16, 16)),
    "every second vector": ("*(float4*)(b + 8 * t) = *(float4*)(a + 4 * t);", GLOBAL, STORE, (1, 32, 16)),
    "vectors of two bytes": ("*(uint2*)(b + 4 * t) = *(uint2*)(a + 2 * t);", GLOBAL, STORE, (1, 16, 8)),
    "not at the start of a sector": ("b[t] = a[t + 4];", GLOBAL, LOAD, (1, 5, 4)),
    "some lanes": ("if (t % 4 == 0) b[t] = a[t];", GLOBAL, LOAD, (1, 4, 1)),
    "turns of a loop": ("for (int i = 0; i < 8; i++) b[32 * i + t] = a[32 * i + t];", GLOBAL, LOAD, (8, 32, 32)),
    "a read before a write": ("a[2 * t] += 1;", GLOBAL, LOAD, (1, 8, 4)),
    "a word a bank": ("s[t] = a[t];", SHARED, STORE, (1, 1, 1)),
    "one bank": ("s[32 * t] = a[t];", SHARED, STORE, (1, 32, 1)),
    "every second bank": ("s[2 * t] = a[t];", SHARED, STORE, (1, 2, 1)),
    "padded": ("s[33 * t] = a[t];", SHARED, STORE, (1, 1, 1)),
    "a word for all": ("s[t] = a[t]; __syncthreads(); b[t] = s[5];", SHARED, LOAD, (1, 1, 1)),
    "words for four": ("s[t] = a[t]; __syncthreads(); b[t] = s[32 * (t / 8)];", SHARED, LOAD, (1, 4, 1)),
    "halves of words": ("((short*)s)[t] = t;", SHARED, STORE, (1, 1, 1)),
    "vectors of shared memory": ("*(float4*)(s + 4 * t) = *(float4*)(a + 4 * t);", SHARED, STORE, (1, 4, 4)),
    "vectors of one bank": ("*(float4*)(s + 32 * t) = *(float4*)(a + 4 * t);", SHARED, STORE, (1, 32, 4)),
    "halves of a warp": ("*(float2*)(s + 2 * t) = *(float2*)(a + 2 * t);", SHARED, STORE, (1, 2, 2)),
    "pairs of one bank": ("*(float2*)(s + 4 * t) = *(float2*)(a + 2 * t);", SHARED, STORE, (1, 4, 2)),
    "a copy's reads": (AT.format("s + 4 * t") + COPY.format("8 * t"), GLOBAL, LOAD, (1, 32, 16)),
    "a copy's writes": (AT.format("s + 32 * t") + COPY.format("4 * t"), SHARED, STORE, (1, 32, 4)),
    "matrices side by side": (AT.format("s + 4 * t") + MATRICES, SHARED, LOAD, (1, 4, 4)),
    "rows of matrices in one bank": (AT.format("s + 32 * t") + MATRICES, SHARED, LOAD, (1, 32, 4)),
}


LATER = {
    "later": "if (t < 5) b[t] = s[0] = 1; __syncwarp(); b[t] = a[t];",
    "many blocks": "b[t] = a[32 * (blockIdx.x % 100) + t];",
}


@pytest.fixture(scope="module")
def loaded() -> tuple[Text, dict[str, str]]:
    """All kernels in one text, and what each is called."""
    bodies = [body for body, *_ in CASES.values()] + list(LATER.values())
    texts = [kernel(f"{S} unsigned x, y, z, w;\n{body}", "float* a", "float* b") for body in bodies]
    source = "".join(text.replace(" k(", f" k{n}(") for n, text in enumerate(texts))
    return Text.load(source, "counted"), {what: f"k{n}" for n, what in enumerate([*CASES, *LATER])}


def counted(loaded: tuple[Text, dict[str, str]], what: str, blocks: int = 1) -> list[traffic.Access]:
    text, names = loaded
    tensors = [Guarded.make((4096,), "float32", np.zeros(4096, "float32")) for _ in range(2)]
    text.launch(names[what], [t.array.ctypes.data for t in tensors], Launch((blocks, 1, 1), (32, 1, 1)))
    (total,) = traffic.counted(core(), [text.source])
    assert total.kernel == names[what]
    return list(total.accesses)


@pytest.mark.parametrize("what", CASES)
def test_what_a_warp_asks(what: str, loaded: tuple[Text, dict[str, str]]) -> None:
    body, shared, write, want = CASES[what]
    found = [a for a in counted(loaded, what) if (a.shared, a.write) == (shared, write)]
    assert [(a.requests, a.units, a.least) for a in found] == [want]
    assert "asm" in body or found[0].text == body


def test_the_turns_of_lanes_are_counted_anew_where_they_wait(loaded: tuple[Text, dict[str, str]]) -> None:
    read = [a for a in counted(loaded, "later") if not a.write]
    assert [(a.requests, a.units) for a in read] == [(1, 4)]


def test_a_few_blocks_stand_for_all(loaded: tuple[Text, dict[str, str]]) -> None:
    read = [a for a in counted(loaded, "many blocks", 1000) if not a.write]
    assert [(a.requests, a.moved, a.units) for a in read] == [(1000, 1000 * 128, 4000)]


def test_the_table_has_the_worst_first() -> None:
    row = lambda kernel, units: traffic.Access(kernel, "x[t] = y;", True, True, 4, 100, 12800, units, 100)  # noqa: E731
    made = traffic.table(traffic._totals([row("better", 150), row("worse", 3200)]), 1).splitlines()
    assert [line.split()[-1] for line in made if line.endswith(("better", "worse"))] == ["worse", "better"]
    assert made[1].split() == ["0.00", "1.00x", "0.01", "32.00x", "0.38", "worse"]
