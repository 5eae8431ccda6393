"""Attention of halves on matrix units: weights and gradients of scores stay float32, and only the order of columns and
depth is in the bits."""

from __future__ import annotations

import functools
from functools import partial
from math import prod
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from tvm import te, tirx
from tvm.sym import Analyzer

from lowering.kernels.attention import attention_scores, sum_of_products, wide_at
from lowering.kernels.normalization import sum_over
from lowering.kernels.registry import KERNELS
from schedules.gpu.attention import tensor_core_plan
from schedules.gpu.attention.causal_mask import EARLIER, LATER
from schedules.gpu.audit.launch_audit import audit
from schedules.gpu.threads import ptx
from schedules.tir.builder import Call
from schedules.tir.rewrite import collect
from schedules.tir.stages import substitute, variables
from sexpgpu.ops.backward import attend_grads
from sexpgpu.ops.nn import attention_ref
from sexpgpu.ops.types import TensorType
from tests.cuda_on_cpu import emulator

from ..tensor_programs import program
from .cpu_and_cuda import GPU, scheduled
from .half_precision import DTYPES
from .test_matmul_tensor_core import UNIT

pytestmark = pytest.mark.build

ROUND = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 0.0}  # unit roundoff of what is stored
CUT = 2.0**-15  # relative error of a float32 that enters mma.sync as the sum of two bfloat16
LEAST = 2.0**-25  # half of the least float16

# heads, queries, keys, width of a key, width of a value: one warp and one group of columns; a batch of one, several
# blocks, none of them whole; causal. The same ones all over, since what takes long is to compile them.
SMALL, RAGGED, CAUSAL = ((2,), 16, 16, 16, 16), ((1, 2), 37, 70, 32, 48), ((2,), 70, 70, 16, 32)
EXACT = ((2,), 20, 70, 16, 16)


def exact_attend(q: te.Tensor, k: te.Tensor, v: te.Tensor) -> Any:
    """attend without the rounding of its result."""
    heads = attention_scores(q, k, [], False)
    weigh = lambda at, j: heads.probs(*at[:-1], j) * wide_at(v, *at[:-2], j, at[-1])  # noqa: E731
    return sum_of_products([*q.shape[:-1], v.shape[-1]], k.shape[-2], weigh, "attended")


def attend_and_square(q: te.Tensor, k: te.Tensor, v: te.Tensor) -> list[Any]:
    """And each query's sum of the squares of its weights."""
    heads = attention_scores(q, k, [], False)
    squares = sum_over(lambda at: heads.probs(*at) * heads.probs(*at), heads.probs, [len(heads.shape) - 1], "squares")
    weigh = lambda at, j: heads.probs(*at[:-1], j) * wide_at(v, *at[:-2], j, at[-1])  # noqa: E731
    return [squares, sum_of_products([*q.shape[:-1], v.shape[-1]], k.shape[-2], weigh, "attended")]


def attend_by_half(q: te.Tensor, k: te.Tensor, v: te.Tensor) -> Any:
    """Powers of half the scores, less the largest whole one."""
    shape, i = [*q.shape[:-1], k.shape[-2]], te.reduce_axis((0, k.shape[-2]), "i")
    scores = sum_of_products(
        shape,
        q.shape[-1],
        lambda at, d: wide_at(q, *at[:-1], d) * wide_at(k, *at[:-2], at[-1], d),
        "scores",
    )
    top: Any = te.compute(shape[:-1], lambda *at: te.max(scores(*at, i), axis=i), "top")
    power: Any = te.compute(shape, lambda *at: tirx.exp(scores(*at) / 2 - top(*at[:-1])), "power")
    whole = sum_over(lambda at: power(*at), power, [len(shape) - 1], "whole")
    weights: Any = te.compute(shape, lambda *at: power(*at) / whole(*at[:-1]), "weights")
    weigh = lambda at, j: weights(*at[:-1], j) * wide_at(v, *at[:-2], j, at[-1])  # noqa: E731
    return sum_of_products([*q.shape[:-1], v.shape[-1]], k.shape[-2], weigh, "attended")


def shapes_of(size: tuple[Any, ...], gradient: bool = False) -> list[tuple[int, ...]]:
    heads, q, k, d, e = size
    return [*([(*heads, q, e)] if gradient else []), (*heads, q, d), (*heads, k, d), (*heads, k, e)]


def attend(size: tuple[Any, ...], causal: bool, mask: Any = None, gradient: bool = False, dtype: str = "bf16") -> Any:
    heads, q, _, _, e = size
    told = {} if gradient else {"out": TensorType((*heads, q, e), dtype)}
    made = partial(KERNELS["attend-grad" if gradient else "attend"], causal=causal, **told)
    long = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}[dtype]
    masks = [] if mask is None else [(mask.shape, "bool")]
    return program(made, *((s, long) for s in shapes_of(size, gradient)), *masks)


def random_inputs(size: tuple[Any, ...], gradient: bool = False, dtype: str = "bfloat16") -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(DTYPES[dtype]) for s in shapes_of(size, gradient)]


def results(func: Any, *arrays: np.ndarray) -> list[np.ndarray]:
    """What the program makes, with the threads in each of three orders the same, and without a race."""
    return emulator.compile(scheduled(func, "tensor-core"), GPU).every_order(*arrays)[len(arrays) :]


@functools.cache
def compiled(size: tuple[Any, ...], gradient: bool = False) -> Any:
    """Attention, or its gradients, as it is done where no test says otherwise; causal if there is a key a query."""
    return emulator.compile(scheduled(attend(size, size[1] == size[2], gradient=gradient), "tensor-core"), GPU)


@functools.cache
def outputs_of(size: tuple[Any, ...], gradient: bool = False) -> list[np.ndarray]:
    """Its results of ``given``."""
    arrays = random_inputs(size, gradient)
    return compiled(size, gradient).every_order(*arrays)[len(arrays) :]


# -- numbers: forward error bounds, derived in docs/tensor-core-error.md -----------------------------------------------


def as_float64(arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [x.astype("f8") for x in arrays]


def off(depth: int, instructions: int = 1) -> float:
    """A product of that depth, relative to the sum of |terms|; ``instructions``: for each 16 of the depth."""
    return 17 * instructions * -(-depth // 16) * UNIT


def added(count: int) -> float:
    """A sum of so many positive numbers, relative."""
    return (-(-count // 16) + 4) * UNIT


def weights_off(q: np.ndarray, k: np.ndarray) -> float:
    """A weight, relative; step by step in docs/tensor-core-error.md, "Attention: a weight"."""
    scale = q.shape[-1] ** -0.5
    terms = np.abs(q) @ np.abs(k).swapaxes(-1, -2) * scale
    larger = -(-k.shape[-2] // 16) - 1
    scores = 2 * (off(q.shape[-1]) + 4 * UNIT) * float(terms.max())
    return scores + added(k.shape[-2]) + (8 + 7 * larger) * UNIT


def softmax(q: np.ndarray, k: np.ndarray, seen: Any) -> np.ndarray:
    scores = np.where(seen, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -1e30)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.where(seen, powers / powers.sum(-1, keepdims=True), 0)


def want(arrays: list[np.ndarray], causal: bool, mask: Any = None) -> np.ndarray:
    """What the operator's row says, in float64."""
    q, k, v = as_float64(arrays)
    return attention_ref(np, q, k, v, mask, causal)


def want_gradients(arrays: list[np.ndarray], causal: bool, mask: Any = None) -> tuple[np.ndarray, ...]:
    dy, q, k, v = as_float64(arrays)
    return attend_grads(np, dy, q, k, v, *([] if mask is None else [mask]), causal=causal)


def forward_bound(arrays: list[np.ndarray], seen: Any) -> np.ndarray:
    """Of a float32 result: docs/tensor-core-error.md, "Attention: the result"."""
    q, k, v = as_float64(arrays)
    return (weights_off(q, k) + CUT + off(k.shape[-2], 2)) * (softmax(q, k, seen) @ np.abs(v))


def gradient_bounds(arrays: list[np.ndarray], seen: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of dq, dk and dv in float32: docs/tensor-core-error.md, "Attention: the gradients"."""
    dy, q, k, v = as_float64(arrays)
    w, part = softmax(q, k, seen), weights_off(q, k)
    dweights = np.abs(dy) @ np.abs(v).swapaxes(-1, -2)
    dscores = w * (dweights + (w * dweights).sum(-1, keepdims=True)) / np.sqrt(q.shape[-1])
    apart = 2 * part + off(v.shape[-1]) + added(k.shape[-2]) + 8 * UNIT + CUT
    turned = dscores.swapaxes(-1, -2)
    return (
        (apart + off(k.shape[-2], 2)) * (dscores @ np.abs(k)),
        (apart + off(q.shape[-2], 2)) * (turned @ np.abs(q)),
        (part + CUT + off(q.shape[-2], 2)) * (w.swapaxes(-1, -2) @ np.abs(dy)),
    )


def assert_within(got: np.ndarray, want: np.ndarray, bound: np.ndarray) -> None:
    """``bound``, and the one rounding to a half."""
    half = ROUND[str(got.dtype)] * (np.abs(want) + bound) + LEAST
    assert (np.abs(got.astype("f8") - want) <= bound + half).all()


def visible_keys(size: tuple[Any, ...]) -> Any:
    return np.tri(size[1], size[2], dtype=bool) if size[1] == size[2] else np.bool_(True)


@pytest.mark.parametrize("size", [SMALL, RAGGED, CAUSAL], ids=str)
def test_attention_of_any_size(size: tuple[Any, ...]) -> None:
    arrays, (got,) = random_inputs(size), outputs_of(size)
    assert_within(got, want(arrays, size[1] == size[2]), forward_bound(arrays, visible_keys(size)))


@pytest.mark.parametrize("size", [RAGGED, CAUSAL], ids=str)
def test_gradients_of_any_size(size: tuple[Any, ...]) -> None:
    arrays, got = random_inputs(size, True), outputs_of(size, True)[-3:]
    exact, bounds = want_gradients(arrays, size[1] == size[2]), gradient_bounds(arrays, visible_keys(size))
    for each in zip(got, exact, bounds, strict=True):
        assert_within(*each)


@pytest.mark.parametrize("gradient", [False, True])
def test_a_mask(gradient: bool) -> None:
    """Of one head for all, where a query sees nothing: its result is 0, and so is its gradient. Another sees nothing
    but its last key: nothing is left of the powers before, of which each is 1."""
    size = ((3, 2), 24, 40, 16, 16)
    mask = np.random.default_rng(3).random((3, 1, 24, 40)) < 0.5
    mask[0, 0, 2] = mask[1, 0, 3, :-1] = False
    mask[1, 0, 3, -1] = True
    arrays = random_inputs(size, gradient)
    got = results(attend(size, False, mask, gradient), *arrays, mask)
    if gradient:
        exact, bounds = want_gradients(arrays, False, mask), gradient_bounds(arrays, mask)
    else:
        exact, bounds = (want(arrays, False, mask),), (forward_bound(arrays, mask),)
    for each in zip(got[-len(exact) :], exact, bounds, strict=True):
        assert_within(*each)
    assert not got[-len(exact)][0, :, 2].any()


@pytest.mark.parametrize("scale", [1, 30])
def test_float16(scale: float) -> None:
    """Weights that are as small as float16's least numbers, and weights that are far apart. Gradients of scores may be
    larger than float16's largest, and are the other kernel's."""
    size = ((2,), 20, 600, 16, 16)
    q, k, v = random_inputs(size, dtype="float16")
    q *= np.float16(scale)
    (got,) = results(attend(size, False, dtype="f16"), q, k, v)
    least = LEAST * np.abs(as_float64([v])[0]).sum(-2, keepdims=True)
    assert_within(got, want([q, k, v], False), forward_bound([q, k, v], np.bool_(True)) + least)
    scheduled(attend(size, False, gradient=True, dtype="f16"), "attention")


@functools.cache
def exact(size: tuple[Any, ...]) -> Any:
    func = program(exact_attend, *((s, "bfloat16") for s in shapes_of(size)))
    return emulator.compile(scheduled(func, "tensor-core"), GPU)


def test_weights_are_not_rounded_to_halves() -> None:
    """70 equal ones of 1, whose sum is exact: each would be 2^-9.3 away as a bfloat16, on the same side."""
    q, k, v = random_inputs(EXACT)
    assert_within(exact(EXACT).run(q, k, v)[-1], want([q, k, v], False), forward_bound([q, k, v], np.bool_(True)))
    k[:], v[:] = 0, 1
    assert np.abs(exact(EXACT).run(q, k, v)[-1].astype("f8") - 1).max() <= CUT + 8 * UNIT


@pytest.mark.parametrize("scale", [1, 100])
def test_scores_that_grow(scale: float) -> None:
    """With each key for half of the queries, which are among those for which they fall; slowly, and so that nothing is
    left of earlier ones."""
    q, k, v = random_inputs(EXACT)
    q[:], k[..., 0] = 0, np.arange(70) / 8
    q[..., 0] = (np.arange(20) * 7 % 20 - 10) / 4 * scale
    assert_within(exact(EXACT).run(q, k, v)[-1], want([q, k, v], False), forward_bound([q, k, v], np.bool_(True)))


def test_what_takes_three_passes() -> None:
    """Weights are finished before they are squared, and powers of what need not be below 0 are not of the largest so
    far: three passes."""
    func, other = (
        program(each, *((s, "bfloat16") for s in shapes_of(EXACT))) for each in (attend_and_square, attend_by_half)
    )
    assert all(multiplications(scheduled(x, "tensor-core")) == 1 + 1 + 3 for x in (func, other))
    arrays = random_inputs(EXACT)
    squares, got = results(func, *arrays)
    assert_within(got, want(arrays, False), forward_bound(arrays, np.bool_(True)))
    q, k, _ = as_float64(arrays)
    exact = (softmax(q, k, np.bool_(True)) ** 2).sum(-1)
    assert_within(squares, exact, (2 * weights_off(q, k) + added(70) + UNIT) * exact)


# -- bits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradient", [False, True])
def test_bits_follow_from_columns_and_depth(gradient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from the rows of a block nor the columns of a tile, from what stays in registers, nor from what is left out.
    Sums of several widths leave by way of the same memory."""
    func, arrays = attend(CAUSAL, True, gradient=gradient), random_inputs(CAUSAL, gradient)
    assert audit(scheduled(func))[0].threads == 32 and "a_fragment_ptr" in compiled(CAUSAL, gradient).text
    bits = [x.tobytes() for x in outputs_of(CAUSAL, gradient)]
    for name, value in {"MIN_BLOCKS": 1, "WARPS": (4,), "COLUMNS": (16,), "MAX_HELD_REGISTERS": 0}.items():
        monkeypatch.setattr(tensor_core_plan, name, value)
    monkeypatch.setattr(tensor_core_plan, "masked_columns", lambda _: "")
    other = scheduled(func, "tensor-core")
    assert audit(other)[0].threads == 128
    done = emulator.compile(other, GPU)
    assert "a_fragment_ptr" not in done.text
    assert [x.tobytes() for x in done.every_order(*arrays)[len(arrays) :]] == bits


def test_bits_do_not_depend_on_what_stands_beside() -> None:
    """Neither on other queries, of the warp or not, nor on heads that are stacked: of sums that are not rounded."""
    q, k, v = random_inputs(EXACT)
    many = exact(EXACT).run(q, k, v)[-1]
    assert exact(EXACT).run(q[:, ::-1], k, v)[-1].tobytes() == many[:, ::-1].tobytes()
    few = exact(((1,), 17, *EXACT[2:])).run(q[:1, :17], k[:1], v[:1])[-1]
    assert few.tobytes() == many[:1, :17].tobytes()


# -- columns that count for nothing ------------------------------------------------------------------------------------


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What of each launch's columns counts for nothing."""
    found: list[str] = []
    read = tensor_core_plan.masked_columns
    monkeypatch.setattr(tensor_core_plan, "masked_columns", lambda stream: found.append(read(stream)) or found[-1])
    return found


def test_keys_after_their_query_are_left_out(found: list[str]) -> None:
    size = ((4,), 32, 32, 16, 16)
    for gradient in (False, True):
        scheduled(attend(size, True, gradient=gradient), "tensor-core")
    assert found == [LATER, LATER, EARLIER]


def test_keys_that_a_mask_hides_are_not(found: list[str]) -> None:
    """Nor those of a causal one with a mask: a query may see nothing, and then all its powers are 1. Their weights are
    0 even so, and the launch by keys needs no more."""
    mask = np.ones((1, 32, 32), bool)
    for causal, given_mask in ((False, None), (False, mask), (True, mask)):
        for gradient in (False, True):
            scheduled(attend(((4,), 32, 32, 16, 16), causal, given_mask, gradient), "tensor-core")
    assert found == [*[""] * 8, EARLIER]


def test_half_of_the_work_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    func = attend(((3,), 1024, 1024, 64, 64), True, gradient=True)
    few = [one.flops for one in audit(scheduled(func))]  # as of the block in the middle
    monkeypatch.setattr(tensor_core_plan, "masked_columns", lambda _: "")
    assert all(a < 0.6 * b for a, b in zip(few, (one.flops for one in audit(scheduled(func))), strict=True))


def multiplications(func: Any) -> int:
    """By matrix units, as they stand in the program: one where scores are made, two where sums over them are."""
    return sum(ptx.flops(x) > 0 for x in collect(func.body, Call))


def powers(func: Any) -> int:
    return sum(x.op.name == "tirx.exp" for x in collect(func.body, Call))


def kv_loop_calls(func: Any) -> tuple[Any, list[tuple[str, Any]]]:
    """The number of the K/V tile in the loop over them, and the PTX calls of its body in order: the name of each, and
    where its first thread reads or writes shared memory, as a function of the tile's number."""
    (kv_loop,) = (node for node in collect(func.body, tirx.For) if node.loop_var.name == "kv_tile")
    calls = []
    for call in (x for x in collect(kv_loop.body, Call) if x.op.name == "tirx.cuda.func_call"):
        addresses = [x for x in call.args if isinstance(x, Call) and x.op.name == "tirx.address_of"]
        calls.append((str(call.args[0].value), addresses[0].args[0].indices[0] if addresses else None))
    return kv_loop.loop_var, calls


def test_the_next_tile_is_on_its_way_while_one_is_multiplied() -> None:
    """Of a pass with K and V: after the only wait for tile t the copies of tile t + 1 are issued, before anything of
    tile t is read, and into another buffer than what is read."""
    number, calls = kv_loop_calls(scheduled(attend(CAUSAL, True), "tensor-core"))
    names = [name for name, _ in calls]
    assert names[:5] == ["cp_async_wait_0", "cp_async_8", "cp_async_8", "cp_async_commit", "ldmatrix_x4"]
    assert not any(name.startswith("cp_async") for name in names[4:])

    def touched(names: tuple[str, ...], tile: int) -> set[int]:
        at = [offset for name, offset in calls if name in names]
        zeros = [{v: tirx.IntImm("int64", 0) for v in variables(offset)} for offset in at]
        first = [substitute(o, z | {number: tirx.IntImm("int64", tile)}) for o, z in zip(at, zeros, strict=True)]
        return {int(Analyzer().simplify(offset).value) for offset in first}

    loads = "ldmatrix_x4", "ldmatrix_x4_trans"
    for tile in range(3):
        assert touched(("cp_async_8",), tile) == touched(loads, tile + 1)
        assert len(touched(loads, tile)) == 2 and not touched(("cp_async_8",), tile) & touched(loads, tile)


# -- what it asks of a GPU ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [16, 64, 128])
@pytest.mark.parametrize("gradient", [False, True])
def test_no_score_is_written_and_memory_suffices(width: int, gradient: bool) -> None:
    func = scheduled(attend(((4, 12), 1024, 1024, width, width), True, gradient=gradient), "tensor-core")
    own = [a.buffer for a in collect(func.body, tirx.AllocBuffer)]
    assert max(prod(map(int, b.shape)) for b in own if b.scope() == "local") < 256
    assert all(prod(map(int, b.shape)) == 4 * 12 * 1024 for b in own if b.scope() in ("", "global"))
    launches = audit(func)
    assert len(launches) == (2 if gradient else 1)
    for one in launches:
        assert one.shared <= 48 << 10 and not one.faults and one.blocks == 4 * 12 * 1024 // 64


def test_scores_are_made_once() -> None:
    """And their powers, but for what all are multiplied by where a larger one comes. For gradients by queries twice,
    which need a sum over the weights' gradients first; then once by keys."""
    size = ((2,), 64, 64, 16, 16)
    func, gradient = (scheduled(attend(size, True, gradient=each), "tensor-core") for each in (False, True))
    assert (multiplications(func), powers(func)) == (1 + 2, 1 + 1)
    assert (multiplications(gradient), powers(gradient)) == (2 + (2 + 2) + (2 + 4), (1 + 1) + 1 + 1)


def test_what_stays_with_the_other_kernel() -> None:
    """Other depths, float32, few queries or keys, very wide heads; a level that has no matrix units."""
    for size in (((4,), 32, 32, 24, 16), ((4,), 32, 32, 16, 24), ((4,), 32, 8, 16, 16), ((4,), 32, 32, 16, 400)):
        scheduled(attend(size, False), "attention")
    size = ((4,), 32, 32, 16, 16)
    scheduled(attend(size, False, dtype="f32"), "attention")
    scheduled(attend(size, False, gradient=True, dtype="f32"), "attention")
    scheduled(attend(size, False), "attention", "cuda-sm_75")
    scheduled(attend(size, False, gradient=True), "attention", "cuda-sm_75")
