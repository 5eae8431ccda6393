"""The constants of the price of a tile, fitted to measured times.

All are changed in turn, by smaller and smaller steps, as long as the mean square of the logarithm of predicted over
measured time becomes less. ISSUE_RATE and the clock are those of the machine that measured, for each target; the price
keeps ISSUE_RATE at 2, so that what it chooses suits machines of both kinds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tile_cases import Product, sizes

import schedules
from schedules.cpu import matmul_cost
from schedules.cpu.matmul_cost import Tile, cycles

CONSTANTS = (
    "OVERLAP_EXPONENT",
    "LOAD_CYCLES",
    "ROW_CYCLES",
    "FAR_LINE_CYCLES",
    "PANEL_CYCLES",
    "PACK_TRANSPOSED_CYCLES",
    "TRANSPOSE_CYCLES",
    "PACK_CYCLES",
    "IN_PLACE_LINE_CYCLES",
    "IN_PLACE_PAGE_CYCLES",
)
ROUNDS = 25
MOST = 100  # that any may become

Row = Mapping[str, Any]


def fitted(rows: Sequence[Row]) -> str:
    """What fits best, and how well it does on the shapes held out."""
    seen = [row for row in rows if not row["held_out"]]
    values = {name: getattr(matmul_cost, name) for name in CONSTANTS}
    steps, least = dict.fromkeys(CONSTANTS, 0.5), _error(seen, values)
    for _ in range(ROUNDS):
        for name in CONSTANTS:
            for factor in (1 + steps[name], 1 / (1 + steps[name])):
                tried = values | {name: min(MOST, values[name] * factor)}
                error = _error(seen, tried)
                if error < least:
                    values, least = tried, error
                    break
            else:
                steps[name] *= 0.6
    lines = [f"{name} = {value:.3g}" for name, value in values.items()]
    for what, some in (("fitted", seen), ("held out", [row for row in rows if row["held_out"]])):
        now = {name: getattr(matmul_cost, name) for name in CONSTANTS}
        lines.append(f"{what}: off by {_error(some, values) ** 0.5:.1%} in the root of the mean square, "
                     f"with today's constants by {_error(some, now) ** 0.5:.1%}")  # fmt: skip
    return "\n".join(lines)


def _error(rows: Sequence[Row], values: Mapping[str, float]) -> float:
    """The least over both rates, target by target, of the mean square."""
    total = 0.0
    targets = {row["target"] for row in rows}
    for name in targets:
        own = [row for row in rows if row["target"] == name]
        total += min(_square(own, {**values, "ISSUE_RATE": rate}) for rate in (1, 2)) / len(targets)
    return total


def _square(rows: Sequence[Row], values: Mapping[str, float]) -> float:
    """Of the logarithms about their mean, which is the clock."""
    before = {name: getattr(matmul_cost, name) for name in values}
    vars(matmul_cost).update(values)
    logs = [math.log(_cycles(row, tile) / us) for row in rows for tile, us in row["us"].items()]
    vars(matmul_cost).update(before)
    mean = sum(logs) / len(logs)
    return sum((x - mean) ** 2 for x in logs) / len(logs)


def _cycles(row: Row, tile: str) -> float:
    one = Product(*row["sizes"])
    mr, nv = map(int, tile.split("x"))
    return one.batch * cycles(sizes(one), Tile(mr, nv, schedules.TARGETS[row["target"]].lanes))
