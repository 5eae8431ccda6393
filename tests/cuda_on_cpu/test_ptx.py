"""The instructions that the text has as assembly: matrices of a warp, and copies that land when they are waited for."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("ziglang")

import ml_dtypes

from .assembly import replaced
from .emulator import ORDERS, KernelError, text
from .test_harness import kernel

pytestmark = pytest.mark.build

HALVES = {"bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype("float16")}


def multiply(kind: str) -> str:
    """One warp: fragments of A [16 16] and B [16 8] from global memory by the ISA's layout, D to d."""
    return kernel(
        f"""int g = threadIdx.x / 4, t = threadIdx.x % 4; unsigned x[4], y[2]; float s[4];
      for (int i = 0; i < 4; i++) x[i] = *(unsigned*)(a + (g + i % 2 * 8) * 16 + t * 2 + i / 2 * 8);
      for (int i = 0; i < 2; i++) y[i] = b[(t * 2 + i * 8) * 8 + g] | b[(t * 2 + i * 8 + 1) * 8 + g] << 16;
      for (int i = 0; i < 4; i++) s[i] = d[(g + i / 2 * 8) * 8 + t * 2 + i % 2];
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 "
        "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};\\n"
        : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
      for (int i = 0; i < 4; i++) d[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = s[i];""",
        "unsigned short* a", "unsigned short* b", "float* d",
    )  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_a_product_of_matrices(kind: str, order: str) -> None:
    r = np.random.default_rng(0)
    a, b = (r.standard_normal(shape).astype(HALVES[kind]) for shape in ((16, 16), (16, 8)))
    c = r.standard_normal((16, 8)).astype("float32")
    got = text(multiply(kind), a.view("uint16"), b.view("uint16"), c, order=order)[2]
    exact = a.astype("float64") @ b.astype("float64") + c
    # cut off to f32 after a sum in f64: within one unit of the last place, and never away from zero
    assert (np.abs(got - exact) <= np.spacing(np.abs(got)) * 1.001).all()
    assert (np.abs(got) <= np.abs(exact) * (1 + 1e-12)).all()


def test_a_product_of_less_than_a_warp_is_refused() -> None:
    x = np.zeros((16, 16), "uint16")
    with pytest.raises(KernelError, match="mma of a warp with fewer than 32 threads"):
        text(multiply("bf16"), x, x, np.zeros((16, 8), "float32"), threads=20)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_matrices_are_loaded_by_rows_or_by_columns(count: int, trans: str, order: str) -> None:
    outs = [f'"=r"(to[{i}])' for i in range(count)]
    registers = ", ".join(f"%{i}" for i in range(count))
    body = f"""__shared__ __align__(16) unsigned short s[256]; unsigned to[4];
      for (int i = 0; i < 8; i++) s[threadIdx.x * 8 + i] = a[threadIdx.x * 8 + i]; __syncthreads();
      unsigned at = (unsigned)__cvta_generic_to_shared(s + threadIdx.x % {8 * count} * 8);
      asm volatile("ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{registers}}}, [%{count}];"
        : {", ".join(outs)} : "r"(at) : "memory");
      for (int i = 0; i < {count}; i++) b[threadIdx.x * {count} + i] = to[i];"""
    x = np.arange(256, dtype="uint16").reshape(4, 8, 8)
    (_, got) = text(kernel(body, "unsigned short* a", "unsigned* b"), x, np.zeros(32 * count, "uint32"), order=order)
    pairs = got.view("uint16").reshape(32, count, 2)
    want = x.swapaxes(1, 2) if trans else x
    t = np.arange(32)
    for m in range(count):
        np.testing.assert_array_equal(pairs[:, m], want[m].reshape(8, 4, 2)[t // 4, t % 4])


COPY = """__shared__ __align__(16) float s[2][64];
  for (int i = 0; i < 2; i++) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
      :: "r"((unsigned)__cvta_generic_to_shared(&s[i][threadIdx.x * 2])), "l"(a + i * 64 + threadIdx.x * 2), "r"(SIZE)
      : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  WAIT
  b[threadIdx.x * 2] = s[STAGE][63 - threadIdx.x * 2]; b[threadIdx.x * 2 + 1] = s[STAGE][62 - threadIdx.x * 2];
  asm volatile("cp.async.wait_group 0;" ::: "memory");"""


def copied(stage: int, wait: str, size: str = "8", order: str = "forward") -> np.ndarray:
    """What threads find of others' copies after ``wait``."""
    body = COPY.replace("WAIT", wait).replace("STAGE", str(stage)).replace("SIZE", size)
    x = np.arange(128, dtype="float32")
    return text(kernel(body, "float* a", "float* b"), x, x[:64], order=order)[1]


@pytest.mark.parametrize("order", ORDERS)
def test_a_copy_lands_where_its_group_is_waited_for(order: str) -> None:
    one, none = (f'asm volatile("cp.async.wait_group {n};" ::: "memory"); __syncthreads();' for n in (1, 0))
    whole = 'asm volatile("cp.async.wait_all;"); __syncthreads();'
    for stage, wait in ((0, one), (0, none), (1, none), (1, whole)):
        np.testing.assert_array_equal(copied(stage, wait, order=order), 64 * stage + np.arange(64)[::-1])
    assert np.isnan(copied(1, one, order=order)).any()
    assert np.isnan(copied(0, "__syncthreads();", order=order)).any()


@pytest.mark.parametrize("order", ORDERS)
def test_what_a_copy_does_not_fill_is_zero(order: str) -> None:
    wait = 'asm volatile("cp.async.wait_all;"); __syncthreads();'
    got = copied(0, wait, "threadIdx.x % 2 ? 0 : 4", order)[::-1]
    np.testing.assert_array_equal(got, np.where(np.arange(64) % 4, 0, np.arange(64)))


def test_copies_seen_without_a_barrier_depend_on_the_order() -> None:
    wait = 'asm volatile("cp.async.wait_all;");'
    assert len({copied(0, wait, order=order).tobytes() for order in ORDERS}) > 1


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ('asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" :: "r"(at + 4), "l"(a));', "not aligned"),
        ('asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" :: "r"(at), "l"(a + 1));', "not aligned"),
        ('asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at + 256), "l"(a));', "outside of shared"),
        ('asm volatile("cp.async.cg.shared.global [%0], [%1], 8;" :: "r"(at), "l"(a));', "copies 16 bytes"),
        ('at = __cvta_generic_to_shared(a); asm volatile("cp.async.wait_all;");', "none of shared memory"),
        ('unsigned x; asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(x) : "r"(at + 8));',
         "not aligned"),
    ],
)  # fmt: skip
def test_wrong_addresses(code: str, why: str) -> None:
    body = f"__shared__ __align__(16) float s[64]; unsigned at = __cvta_generic_to_shared(s); {code} a[0] = at;"
    with pytest.raises(KernelError, match=why):
        text(kernel(body, "float* a"), np.zeros(64, "float32"))


def test_assembly_becomes_calls_with_the_operands_in_their_places() -> None:
    assert replaced('asm volatile("cp.async.wait_group 1;" ::: "memory");') == "ptx_cp_async_wait_group(1);"
    made = replaced(
        'x; __asm__ __volatile__("a.b::c {%1,\\n" " %0}, [%2], 7;\\n" : "=r"(p[f(1, 2)]) : "r"(q), "l"(")"));'
    )
    assert made == 'x; ptx_a_b_c((q), (p[f(1, 2)]), (")"), 7);'
