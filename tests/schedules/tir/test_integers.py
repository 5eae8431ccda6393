"""Comparisons that TVM widened to int64 go back to int32 where the values fit, and nowhere else."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm")

from tvm import tirx

from schedules.tir.narrow_indices import in_32_bits

pytestmark = pytest.mark.build

X, Y, K = tirx.Var("x", "int32"), tirx.Var("y", "int64"), tirx.Var("k", "int64")
WIDE = tirx.Cast("int64", X)


def number(n: int):
    return tirx.IntImm("int64", n)


FITS = {
    "a cast": WIDE,
    "bits": (WIDE & number(2**31 - 1)) ^ (WIDE >> number(31)),
    "a choice": tirx.Select(tirx.LT(X, X), WIDE, tirx.Max(WIDE, number(-5))),
    "an axis": K,
    "a small type": tirx.Cast("int64", tirx.Var("b", "uint8")),
}
DOES_NOT = {
    "a difference": tirx.Sub(WIDE, number(1)),
    "a large number": number(2**31),
    "a shift by 40": tirx.RShift(WIDE, number(40)),
    "a variable": Y,
    "uint32": tirx.Cast("int64", tirx.Var("u", "uint32")),
}


@pytest.mark.parametrize("kind", [tirx.LT, tirx.EQ, tirx.GE])
@pytest.mark.parametrize("name", FITS)
def test_what_fits(name: str, kind) -> None:
    done = in_32_bits(kind(FITS[name], WIDE), {K: 100})
    assert str(done.a.ty.dtype) == str(done.b.ty.dtype) == "int32"
    done = in_32_bits(tirx.Cast("int32", tirx.Min(FITS[name], WIDE)), {K: 100})
    assert isinstance(done, tirx.Min) and str(done.ty.dtype) == "int32"


@pytest.mark.parametrize("name", DOES_NOT)
def test_what_does_not(name: str) -> None:
    for wide in (tirx.LT(DOES_NOT[name], WIDE), tirx.Cast("int32", tirx.Min(DOES_NOT[name], WIDE))):
        assert in_32_bits(wide, {K: 2**31 + 1}).same_as(wide)
    wide = tirx.LT(K, WIDE)
    assert in_32_bits(wide, {K: 2**31 + 1}).same_as(wide)


def test_a_comparison_of_places_stays() -> None:
    test = tirx.LE(number(64), K)
    assert in_32_bits(test, {K: 100}).same_as(test)
