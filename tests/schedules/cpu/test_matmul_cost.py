"""The price of a tile against times that scripts/bench/tiles measured on a processor of AMD's (Zen 4), one row a shape
and target: 28 shapes that the price was fitted to and 14 that were held out, on both levels of x86-64."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm")

import schedules
from schedules.cpu import matmul_tiling
from schedules.cpu.matmul_cost import (
    B_ALONG_COLUMNS,
    B_ALONG_K,
    B_STRIDED,
    CHEAP_ROWS,
    ISSUE_RATE,
    MatmulShape,
    Tile,
    candidate_tiles,
    choose_tile,
    cycles,
    packs_b,
)
from schedules.tir.builder import i64
from tests.schedules.tensor_programs import V3, V4

ROWS = json.loads(Path(__file__).with_name("tiles.json").read_text(encoding="utf-8"))["rows"]

# The transformer of the benchmarks: every product of its layers, [rows, depth] x [depth, columns].
WRITER = [
    ("NN", 512, 128, 384), ("NN", 512, 512, 128), ("NN", 512, 128, 512), ("NN", 512, 128, 128), ("TN", 128, 512, 512),
    ("TN", 128, 512, 128), ("NT", 512, 384, 128), ("NT", 512, 128, 512),
]  # fmt: skip


def sizes(kind: str, m: int, k: int, n: int) -> MatmulShape:
    return MatmulShape(m, n, k, B_ALONG_K if kind[1] == "T" else B_ALONG_COLUMNS)


def chosen(of: MatmulShape, target: str) -> Tile:
    machine = schedules.TARGETS[target]
    return choose_tile(of, machine.lanes, machine.registers)


def regret(row: dict[str, Any]) -> float:
    """How much longer the chosen tile takes than the fastest that was measured. KeyError: it was not measured, and
    scripts/bench/tiles has to."""
    kind, _, m, k, n = row["sizes"]
    tile = chosen(sizes(kind, m, k, n), row["target"])
    return row["us"][f"{tile.mr}x{tile.nv}"] / min(row["us"].values()) - 1


@pytest.mark.parametrize("target", [V3, V4])
@pytest.mark.parametrize("held_out", [False, True], ids=["fitted", "held out"])
def test_the_chosen_tile_is_nearly_the_fastest(target: str, held_out: bool) -> None:
    """Measurements of one tile in two runs differ by 2 or 3 % themselves. v4 pays 2 % more on the processor measured,
    which starts one multiply-add of 512 bits a cycle, for tiles that do not hold back one which starts two."""
    regrets = [regret(row) for row in ROWS if row["target"] == target and row["held_out"] == held_out]
    assert len(regrets) >= (14 if held_out else 28)
    assert statistics.median(regrets) <= 0.02 and max(regrets) <= 0.06


def test_the_price_is_the_time() -> None:
    """On v3, where the processor measured starts as much in a cycle as the price takes for granted: all tiles of all
    shapes, but for one clock. Measured twice, a time is off by some 3 % itself."""
    lanes = schedules.TARGETS[V3].lanes
    for held_out in (False, True):
        logs = []
        for row in (row for row in ROWS if row["target"] == V3 and row["held_out"] == held_out):
            kind, batch, m, k, n = row["sizes"]
            for tile, us in row["us"].items():
                mr, nv = map(int, tile.split("x"))
                if mr <= CHEAP_ROWS:
                    logs.append(math.log(batch * cycles(sizes(kind, m, k, n), Tile(mr, nv, lanes)) / us))
        assert statistics.pstdev(logs) <= 0.08


@pytest.mark.parametrize("target", [V3, V4])
@pytest.mark.parametrize("one", WRITER, ids=str)
def test_tiles_of_the_writer_load_little_and_have_slack(one: tuple[str, int, int, int], target: str) -> None:
    """Eight sums are what two multiply-adds a cycle of a latency of four keep busy, with nothing to spare. Beside
    them a core starts as many loads, of which other work needs some."""
    tile = chosen(sizes(*one), target)
    adds = tile.mr * tile.nv
    assert adds >= (16 if target == V4 else 12)
    assert (tile.mr + tile.nv) / adds <= (0.5 if target == V4 else 0.67)


def test_b_is_copied_where_waiting_for_it_takes_longer() -> None:
    tile = Tile(8, 3, 16)
    assert not packs_b(MatmulShape(512, 96, 64), tile)  # stays in the first cache as it lies
    assert not packs_b(MatmulShape(48, 512, 512), tile)  # six tiles of rows: less than a copy costs
    assert packs_b(MatmulShape(512, 1024, 512), tile)  # each turn in a page of its own, all in the same sets
    assert packs_b(MatmulShape(512, 90, 64), tile) and not packs_b(
        MatmulShape(8, 1000, 64), tile
    )  # less than a vector at the end
    assert packs_b(MatmulShape(9, 512, 64, B_ALONG_K), tile) and not packs_b(MatmulShape(8, 512, 64, B_ALONG_K), tile)
    assert packs_b(MatmulShape(1, 512, 64, B_STRIDED), tile)
    assert packs_b(MatmulShape(32, 96, 64, half_b=True), tile) and not packs_b(
        MatmulShape(8, 96, 64, half_b=True), tile
    )


def test_every_shape_has_a_tile() -> None:
    for target in (V3, V4, "cpu-aarch64"):
        machine = schedules.TARGETS[target]
        for walk in (B_ALONG_COLUMNS, B_ALONG_K, B_STRIDED):
            for m, n, k in ((1, 1, 1), (1, 7, 5), (13, 1, 4), (2, 9, 30000), (14, 17, 16), (700, 3, 2)):
                of = MatmulShape(m, n, k, walk)
                best = chosen(of, target)
                assert best in list(candidate_tiles(of, machine.lanes, machine.registers))
                assert cycles(of, best) >= m * n * k / (ISSUE_RATE * machine.lanes)


@pytest.mark.parametrize("target", [V3, V4])
@pytest.mark.parametrize("one", WRITER, ids=str)
def test_two_threads_have_equal_shares_of_the_writers_tasks(one: tuple[str, int, int, int], target: str) -> None:
    """Each has one half of the tasks, in order: groups of row tiles, and in each of them the panels."""
    of = sizes(*one)
    tile = chosen(of, target)
    panels, row_tiles = -(-of.n // tile.panel), -(-of.m // tile.mr)
    tasks = [
        count * min(tile.panel, of.n - j * tile.panel)
        for count in counts(row_tiles, matmul_tiling._row_groups(row_tiles, 1, panels))
        for j in range(panels)
    ]
    first = sum(tasks[: -(-len(tasks) // 2)])
    assert len(tasks) >= matmul_tiling.MIN_TASKS and 0.47 <= first / sum(tasks) <= 0.53


def counts(row_tiles: int, groups: int) -> list[int]:
    """The row tiles of each group, which take all of them in order."""
    shares = matmul_tiling.RowPartition(row_tiles, groups)
    found = [int(shares.count(i64(g))) for g in range(groups)]
    assert [int(shares.first(i64(g))) for g in range(groups)] == [sum(found[:g]) for g in range(groups)]
    assert sum(found) == row_tiles and 1 <= min(found) <= max(found) == shares.max_tiles
    if shares.is_balanced:
        assert min(found) == shares.max_tiles - 1
    return found


@pytest.mark.parametrize("least", [1, matmul_tiling.MIN_GROUP_TILES, matmul_tiling.MIN_PACKING_GROUP_TILES])
def test_two_threads_have_equal_shares_of_any_number_of_row_tiles(least: int) -> None:
    """Within one tile, or one in sixteen where there are many; 13 tiles as 3 groups were 10 and 3. With three panels
    of columns a group's may be cut in the middle."""
    for panels in (1, 2, 3, 5, 8):
        for row_tiles in (*range(1, 60), 76, 203, 1216, 1622):
            found = counts(row_tiles, matmul_tiling._row_groups(row_tiles, least, panels))
            tasks = [count for count in found for _ in range(panels)]
            half = -(-len(tasks) // 2)
            apart = abs(sum(tasks[:half]) - sum(tasks[half:]))
            if len(tasks) % 2 == 0:
                assert apart <= max(panels, panels * row_tiles / matmul_tiling.IMBALANCE_LIMIT), (
                    panels,
                    row_tiles,
                    found,
                )
            else:
                assert len(found) == 1 or set(found) == {1}, "nothing left to cut"
