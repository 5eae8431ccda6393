"""The rates of targets, by which the cost model prices them."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm", reason="needs the extra `build`")

from schedules.target import Target
from schedules.targets import TARGETS


@pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
def test_products_of_halves_have_a_rate_of_their_own_where_matrix_units_make_them(target: Target) -> None:
    """The schedules of cuda-sm_75 have none, and no CPU has."""
    level = target.gpu.level if target.gpu else ""
    assert (target.rates.halves > target.rates.flops) == (level == "cuda-sm_80")
    assert target.rates.halves >= 0
