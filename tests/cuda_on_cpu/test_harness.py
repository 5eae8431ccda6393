"""What the harness must do as a GPU does, and each thing that it must see go wrong."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("ziglang")

from .compile import CompileError
from .emulator import ORDERS, KernelError, text

pytestmark = pytest.mark.build

FULL = "0xffffffffu"


def kernel(body: str, *parameters: str, bounds: int = 1024) -> str:
    """The text of a kernel of one body."""
    return f'extern "C" __global__ void __launch_bounds__({bounds}) k({", ".join(parameters)}) {{\n{body}\n}}\n'


def lanes(expression: str, threads: int = 32, x: np.ndarray | None = None, order: str = "forward") -> list[int]:
    """What each thread of a warp makes of ``expression``, over int ``x``, its own element of the input."""
    given = np.arange(threads, dtype="int32") if x is None else x
    body = f"int x = a[threadIdx.x]; int t = threadIdx.x; b[t] = {expression};"
    return text(kernel(body, "int* a", "int* b"), given, given * 0, threads=threads, order=order)[1].tolist()


@pytest.mark.parametrize("order", ORDERS)
def test_every_thread_of_every_block_runs_once(order: str) -> None:
    body = "int i = (blockIdx.x * blockDim.x + threadIdx.x); a[i] = a[i] + 1000 * i + gridDim.x;"
    for end in ("", "__syncthreads();"):  # without fibers, and with
        (got,) = text(kernel(body + end, "int* a"), np.ones(7 * 45, "int32"), blocks=7, threads=45, order=order)
        np.testing.assert_array_equal(got, 1000 * np.arange(315) + 8)


@pytest.mark.parametrize("order", ORDERS)
def test_a_barrier_lets_threads_read_what_others_wrote(order: str) -> None:
    body = """__shared__ float s[96]; for (int i = 0; i < 3; i++) {
      s[threadIdx.x] = a[threadIdx.x] + i; __syncthreads(); a[threadIdx.x] = s[95 - threadIdx.x]; __syncthreads(); }"""
    x = np.arange(96, dtype="float32")
    (got,) = text(kernel(body, "float* a"), x, threads=96, order=order)
    np.testing.assert_array_equal(got, x[::-1] + 3)


@pytest.mark.parametrize("order", ORDERS)
def test_shuffles_take_the_lanes_that_ptx_names(order: str) -> None:
    t = np.arange(32)
    assert lanes(f"__shfl_sync({FULL}, x, 5)", order=order) == [5] * 32
    assert lanes(f"__shfl_sync({FULL}, x, t + 1, 8)", order=order) == list(t // 8 * 8 + (t + 1) % 8)
    assert lanes(f"__shfl_down_sync({FULL}, x, 3)", order=order) == list(np.where(t + 3 < 32, t + 3, t))
    assert lanes(f"__shfl_down_sync({FULL}, x, 3, 16)", order=order) == list(np.where(t % 16 < 13, t + 3, t))
    assert lanes(f"__shfl_up_sync({FULL}, x, 2, 16)", order=order) == list(np.where(t % 16 > 1, t - 2, t))
    assert lanes(f"__shfl_xor_sync({FULL}, x, 16)", order=order) == list(t ^ 16)
    assert lanes(f"__shfl_xor_sync({FULL}, x, 5, 4)", order=order) == list(np.where(t ^ 5 <= t | 3, t ^ 5, t))


@pytest.mark.parametrize("order", ORDERS)
def test_votes_are_of_the_lanes_of_the_mask(order: str) -> None:
    odd = 0xAAAAAAAA - 2**32
    assert lanes(f"__ballot_sync({FULL}, x & 1)", order=order) == [odd] * 32
    assert lanes("t & 1 ? __all_sync(0xaaaaaaaau, x & 1) : __any_sync(0x55555555u, x & 1)", order=order) == [0, 1] * 16
    assert lanes("t < 20 ? __activemask() : 0", order=order) == [0xFFFFF] * 20 + [0] * 12


@pytest.mark.parametrize("order", ORDERS)
def test_warps_sum_as_a_tree_whoever_goes_first(order: str) -> None:
    body = f"""float v = a[threadIdx.x];
      for (int d = 16; d; d /= 2) v += __shfl_down_sync({FULL}, v, d); b[threadIdx.x] = v;"""
    x = np.random.default_rng(0).standard_normal(128).astype("float32")
    got = text(kernel(body, "float* a", "float* b"), x, x, threads=128, order=order)[1][::32]
    want = x.reshape(4, 32).copy()
    for d in (16, 8, 4, 2, 1):
        want[:, :d] += want[:, d : 2 * d]
    np.testing.assert_array_equal(got, want[:, 0])


def test_a_lane_that_is_not_there_gives_poison() -> None:
    got = lanes(f"__shfl_down_sync({FULL}, x, 4)", threads=20)
    assert got == [*range(4, 20), -1, -1, -1, -1]


def test_values_of_eight_bytes_and_of_two_are_shuffled_whole() -> None:
    body = f"a[threadIdx.x] = __shfl_xor_sync({FULL}, a[threadIdx.x], 1);"
    for kind, dtype in (("double", "float64"), ("int64_t", "int64"), ("short", "int16")):
        x = np.arange(32).astype(dtype) - 7
        (got,) = text("#include <cstdint>\n" + kernel(body, f"{kind}* a"), x)
        np.testing.assert_array_equal(got, x.reshape(16, 2)[:, ::-1].ravel())


@pytest.mark.parametrize("order", ORDERS)
def test_dynamic_shared_memory(order: str) -> None:
    body = """extern __shared__ unsigned char room[]; float* s = (float*)room;
      s[threadIdx.x] = a[threadIdx.x]; __syncthreads(); a[threadIdx.x] = s[threadIdx.x ^ 1];"""
    (got,) = text(kernel(body, "float* a"), np.arange(64, dtype="float32"), threads=64, dynamic=256, order=order)
    np.testing.assert_array_equal(got, np.arange(64) ^ 1)


def test_a_race_shows_in_some_order() -> None:
    body = "__shared__ float s[64]; s[threadIdx.x] = a[threadIdx.x]; b[threadIdx.x] = s[threadIdx.x ^ 33];"
    x = np.arange(64, dtype="float32")
    racy = kernel(body, "float* a", "float* b") + "// __syncthreads"
    right = kernel(body.replace("; b[", "; __syncthreads(); b["), "float* a", "float* b")
    assert len({text(right, x, x, threads=64, order=o)[1].tobytes() for o in ORDERS}) == 1
    assert len({text(racy, x, x, threads=64, order=o)[1].tobytes() for o in ORDERS}) > 1


def test_what_blocks_write_over_each_other_shows_in_some_order() -> None:
    source = kernel("a[threadIdx.x] = blockIdx.x;", "float* a")
    assert len({text(source, np.zeros(32, "float32"), blocks=5, order=o)[0].tobytes() for o in ORDERS}) > 1


def test_shared_and_own_memory_begin_as_nan() -> None:
    body = """__shared__ float s[32]; float own[4];
      a[threadIdx.x] = threadIdx.x % 2 ? s[threadIdx.x] : own[a[0] > 5]; __syncthreads();"""
    for _ in range(2):  # also where another block was there before
        (got,) = text(kernel(body + "s[threadIdx.x] = 1;", "float* a"), np.zeros(32, "float32"), blocks=2)
        assert np.isnan(got).all()


@pytest.mark.parametrize(
    "body",
    [
        "if (threadIdx.x < 40) __syncthreads();",
        "if (threadIdx.x < 40) {\n__syncthreads();\n} else {\n__syncthreads();\n}",
        "if (threadIdx.x == 63) return; __syncthreads();",
    ],
)
@pytest.mark.parametrize("order", ORDERS)
def test_a_divergent_barrier(body: str, order: str) -> None:
    with pytest.raises(KernelError, match=r"k: divergent barrier: .* of 64 threads did not reach it \(block 0,0,0"):
        text(kernel(body, "float* a"), np.zeros(64, "float32"), threads=64, order=order)


@pytest.mark.parametrize(
    "body",
    [
        f"if (threadIdx.x < 7) a[0] = __shfl_sync({FULL}, a[0], 0); __syncthreads();",
        f"if (threadIdx.x < 7) a[0] = __shfl_sync({FULL}, a[0], 0); else a[1] = __any_sync({FULL}, 1);",
        "if (threadIdx.x < 7) __syncwarp(0x7f); else __syncwarp(); __syncthreads();",
    ],
)
def test_a_divergent_operation_of_a_warp(body: str) -> None:
    with pytest.raises(KernelError, match="divergent operation of a warp"):
        text(kernel(body, "float* a"), np.zeros(64, "float32"))


def test_a_lane_outside_its_own_mask() -> None:
    with pytest.raises(KernelError, match="outside its own mask"):
        text(kernel("__syncwarp(0xff);", "float* a"), np.zeros(1, "float32"))


@pytest.mark.parametrize("wait", ["", "__syncthreads();"])
@pytest.mark.parametrize("index", [40, 41, 2000, -4096, 200_000])
def test_a_load_outside_of_a_tensor(index: int, wait: str) -> None:
    body = f"{wait} b[threadIdx.x] = a[threadIdx.x + (threadIdx.x == 31) * {index - 31}];"
    with pytest.raises(KernelError, match=r"k: a load or store outside of every tensor.*thread 31,0,0\)"):
        text(kernel(body, "float* a", "float* b"), np.zeros(40, "float32"), np.zeros(40, "float32"))


def test_a_load_between_a_tensor_and_the_next_sixteen_bytes_is_poison() -> None:
    got = text(kernel("a[threadIdx.x] = a[threadIdx.x + 1];", "float* a"), np.zeros(5, "float32"), threads=5)
    assert np.isnan(got[0][4]) and not got[0][:4].any()


def test_a_vector_that_is_not_aligned() -> None:
    body = "*(float4*)(a + threadIdx.x * 4 + (threadIdx.x == 3)) = make_float4(1, 2, 3, 4);"
    with pytest.raises(KernelError, match=r"not aligned.*thread 3,0,0\)"):
        text(kernel(body, "float* a"), np.zeros(64, "float32"), threads=4)


@pytest.mark.parametrize("where", ["__shared__ float s[32];", "float s[32];"])
def test_an_index_outside_of_an_array_of_the_kernel(where: str) -> None:
    body = f"{where} s[threadIdx.x + (int)a[0]] = 1; __syncthreads(); a[threadIdx.x] = s[threadIdx.x];"
    text(kernel(body, "float* a"), np.zeros(32, "float32"))
    with pytest.raises(KernelError, match=r"outside of an array.*thread 31,0,0\)"):
        text(kernel(body, "float* a"), np.ones(32, "float32"))


@pytest.mark.parametrize(
    ("why", "options"),
    [
        ("too many threads in a block", {"threads": 1025}),
        ("too many threads in a block", {"threads": 65, "bounds": 64}),
        ("too much dynamic shared memory", {"dynamic": 228 << 10}),
        ("a launch of nothing", {"blocks": 0}),
    ],
)
def test_launches_beyond_the_limits_of_a_gpu(why: str, options: dict[str, int]) -> None:
    with pytest.raises(KernelError, match=why):
        bounds = options.pop("bounds", 1024)
        text(kernel("a[0] = 0;", "float* a", bounds=bounds), np.zeros(1, "float32"), **options)


def test_too_much_static_shared_memory() -> None:
    with pytest.raises(KernelError, match="too much static shared memory"):
        text(kernel("__shared__ float s[12289]; s[0] = 1; a[0] = s[0];", "float* a"), np.zeros(1, "float32"))


def test_text_that_is_not_cuda_is_refused_with_what_is_wrong() -> None:
    with pytest.raises(CompileError, match="undeclared identifier 'nowhere'"):
        text(kernel("a[0] = nowhere;", "float* a"), np.zeros(1, "float32"))
    with pytest.raises(CompileError, match="ptx_bar_sync"):
        text(kernel('asm volatile("bar.sync 0;");', "float* a"), np.zeros(1, "float32"))
    with pytest.raises(CompileError, match="not one instruction"):
        text(kernel('asm volatile("bar.sync 0; bar.sync 1;");', "float* a"), np.zeros(1, "float32"))


def test_integers_saturate_and_wrap_and_fused_products_are_only_those_of_the_text() -> None:
    body = """b[0] = (int)a[0]; b[1] = (int)a[1]; b[2] = (int)a[2]; b[3] = b[3] + 1;
      b[4] = fmaf(a[3], a[3], -1.0f) != a[3] * a[3] - 1.0f;"""
    x = np.array([3e9, -3e9, np.nan, 1 + 2.0**-20], "float32")
    got = text(kernel(body, "float* a", "int* b"), x, np.array([0, 0, 0, 2**31 - 1, 0], "int32"), threads=1)[1]
    assert got.tolist() == [2**31 - 1, -(2**31), 0, -(2**31), 1]


@pytest.mark.parametrize(("kind", "name"), [("nv_bfloat16", "bfloat16"), ("half", "float16")])
def test_halves_round_to_the_nearest_once(kind: str, name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    half = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else "float16")
    r = np.random.default_rng(0)
    x = np.concatenate([r.standard_normal(500), 10.0 ** r.uniform(-9, 6, 500), [0, -0.0, np.inf, -np.inf, 1e-40]])
    x = x.astype("float32")[-1000:]
    source = "#include <cuda_bf16.h>\n" + kernel(
        f"int i = threadIdx.x; {kind} h = ({kind})a[i]; b[i] = h; c[i] = h * h + h; a[i] = (float)h;",
        "float* a", f"{kind}* b", f"{kind}* c",
    )  # fmt: skip
    a, b, c = text(source, x, np.zeros(1000, half), np.zeros(1000, half), threads=1000)
    with np.errstate(all="ignore"):
        want = x.astype(half)
        wide = want.astype("float64")
        assert b.tobytes() == want.tobytes() and a.tobytes() == want.astype("float32").tobytes()
        sums = ((wide * wide).astype(half).astype("float64") + wide).astype(half)
    numbers = ~np.isnan(sums)
    assert c[numbers].tobytes() == sums[numbers].tobytes() and np.isnan(c[~numbers]).all()
