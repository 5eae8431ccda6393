"""The columns that tell what an operator does to elements, against the row's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sexpgpu.ops import OPS, Op
from tests.sexpgpu.ops.row_cases import all_cases, build, params

PRIMITIVE = [(name, row, case) for name, row, case in all_cases() if not row.expand]


def chosen(column: Any) -> list[Any]:
    return params((name, row, case) for name, row, case in PRIMITIVE if column(row))


def reference(row: Op, case: Any) -> tuple[list[np.ndarray], np.ndarray]:
    """The case's arrays, and the result."""
    built = build(row, case)
    arrays = built.arrays()
    return arrays, np.asarray(row.ref(np, *arrays, **built.attrs))


@pytest.mark.parametrize(("row", "case"), chosen(lambda row: row.fusion == "view"))
def test_a_view_has_its_arguments_elements_in_order(row: Op, case: Any) -> None:
    arrays, result = reference(row, case)
    assert result.tobytes() == arrays[0].tobytes()


@pytest.mark.parametrize(("row", "case"), chosen(lambda row: row.rearranges))
def test_what_rearranges_makes_no_number(row: Op, case: Any) -> None:
    (x,), result = reference(row, case)
    if x.dtype == result.dtype:  # of a cast: its dtype has fewer numbers
        assert set(np.ravel(result).tolist()) <= set(np.ravel(x).tolist())


@pytest.mark.parametrize(("row", "case"), chosen(lambda row: row.literal))
def test_a_literal_is_the_results_numbers(row: Op, case: Any) -> None:
    built = build(row, case)
    _, result = reference(row, case)
    assert row.literal and not built.inputs
    numbers = np.broadcast_to(np.array(row.literal(**built.attrs)), result.shape)
    assert numbers.astype(result.dtype).tobytes() == result.tobytes()


def looks_up(row: Op, case: Any) -> bool:
    """Can the case's indices name every place, and can its elements be told apart?"""
    if not row.index_range:
        return False
    built = build(row, case)
    n, size = row.index_range(*(x.type for x in built.inputs), **built.attrs)
    arrays = built.arrays()
    return arrays[0].dtype != bool and size <= np.iinfo(arrays[n].dtype).max


LOOK_UPS = params((name, row, case) for name, row, case in PRIMITIVE if looks_up(row, case))


@pytest.mark.parametrize(("row", "case"), LOOK_UPS)
def test_an_index_range_ends_with_the_last_place(row: Op, case: Any) -> None:
    """A larger index reads what the last one reads, and one less reads something else."""
    built = build(row, case)
    arrays = built.arrays()
    arrays[0] = np.arange(arrays[0].size).reshape(arrays[0].shape).astype(arrays[0].dtype)
    assert row.index_range
    n, size = row.index_range(*(x.type for x in built.inputs), **built.attrs)

    def at(index: int) -> Any:
        return row.ref(np, *(np.full_like(a, index) if i == n else a for i, a in enumerate(arrays)), **built.attrs)

    beyond = min(size + 3, np.iinfo(arrays[n].dtype).max)
    assert np.array_equal(at(beyond), at(size - 1))
    assert not np.array_equal(at(size - 2), at(size - 1))


def test_what_moves_elements_tells_where_they_come_from() -> None:
    """A row without ``origins`` hides what an index field must satisfy; ``where`` is phases/index_ranges.py's own."""
    moving = {name for name, row in OPS.items() if row.fusion in ("move", "view") or row.rearranges}
    assert moving > {"reshape", "slice", "gather", "pad"}
    assert not {name for name in moving if not OPS[name].origins and not OPS[name].index_range}
    shapes = {name for name, row in OPS.items() if row.group == "shape" and not row.expand}
    assert not {name for name in shapes if not OPS[name].origins}
