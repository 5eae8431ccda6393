"""A program on both: as the rules of a GPU schedule it, its CUDA text run on the CPU, and as those of the CPU do."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tvm

import schedules
from tests.cuda_on_cpu import emulator

from ..tensor_programs import Built, build

GPU = "cuda-sm_80"


def scheduled(func: Any, rule: str | None = None, target: str = GPU) -> Any:
    """``func`` as a GPU's rules schedule it; ``rule``: the one that must have."""
    done = schedules.first(func.with_attr("global_symbol", "main"), schedules.TARGETS[target])
    assert done.func is not None and not done.failures, done.failures
    assert rule is None or done.rule == rule, done.rule
    return done.func


def bits(array: np.ndarray) -> np.ndarray:
    """The bits of an array, but of every NaN the same ones: processors differ in which they make."""
    if array.dtype.kind not in "fV":
        return array
    plain = array.astype("float64") if array.dtype.itemsize == 2 else array
    integers = plain.view(f"i{plain.dtype.itemsize}").copy()
    integers[np.isnan(plain)] = -1
    return integers


@functools.lru_cache(maxsize=1)
def build_for_cpu(text: str) -> Built:
    """A program in TVM's JSON as the rules of the CPU schedule it: neighbours among tests change the GPU's alone."""
    return build(tvm.ir.load_json(text))


def same_bits(func: Any, *arrays: np.ndarray, rule: str | None = None, target: str = GPU) -> list[np.ndarray]:
    """The outputs of ``func`` on ``arrays``, which must be the same bits on a CPU and, with its threads in any order,
    on a GPU."""
    want = build_for_cpu(tvm.ir.save_json(func)).run(*arrays)
    compiled = emulator.compile(scheduled(func, rule, target), target)
    got = compiled.every_order(*arrays)[len(arrays) :]
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(bits(g), bits(w))
    return got
