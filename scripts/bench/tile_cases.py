"""The products whose tiles scripts/bench/tiles times: (kind, batch, rows, depth, columns).

FIT are those that the price of a tile (schedules/cpu/matmul_cost.py) was fitted to, HELD_OUT those that it is judged
by: a third of all, of the same sorts.
"""

from __future__ import annotations

from dataclasses import dataclass

from schedules.cpu.matmul_cost import B_ALONG_COLUMNS, B_ALONG_K, MatmulShape


@dataclass(frozen=True)
class Product:
    """``kind`` NN, TN or NT: which factor is stored transposed."""

    kind: str
    batch: int
    m: int
    k: int
    n: int

    @property
    def name(self) -> str:
        return f"{self.kind} [{self.m},{self.k}]x[{self.k},{self.n}]" + (f" x{self.batch}" if self.batch > 1 else "")

    @property
    def gflop(self) -> float:
        return 2e-9 * self.batch * self.m * self.k * self.n


def sizes(one: Product) -> MatmulShape:
    """What the price looks at."""
    return MatmulShape(one.m, one.n, one.k, B_ALONG_K if one.kind[1] == "T" else B_ALONG_COLUMNS)


def _products(rows: dict[str, list[tuple[int, int, int, int]]]) -> tuple[Product, ...]:
    return tuple(Product(kind, *sizes) for kind, of in rows.items() for sizes in of)


FIT = _products(
    {
        "NN": [
            (1, 512, 128, 384), (1, 512, 128, 128), (1, 512, 512, 128), (1, 512, 128, 64), (1, 1024, 1024, 1024),
            (1, 256, 768, 768), (1, 300, 130, 200), (1, 3000, 64, 40), (1, 12, 96, 2000), (1, 40, 300, 1000),
            (1, 96, 96, 288), (64, 32, 32, 32), (12, 64, 64, 64), (1, 2000, 72, 20),
        ],
        "TN": [
            (1, 128, 512, 512), (1, 128, 512, 128), (1, 64, 2048, 64), (1, 768, 256, 768), (1, 200, 700, 90),
            (1, 48, 128, 2000), (32, 32, 64, 32),
        ],
        "NT": [
            (1, 512, 384, 128), (1, 512, 128, 512), (1, 256, 768, 768), (1, 16, 256, 1000), (1, 250, 130, 150),
            (64, 32, 32, 32), (8, 128, 64, 128),
        ],
    }
)  # fmt: skip
HELD_OUT = _products(
    {
        "NN": [
            (1, 512, 128, 512), (1, 512, 768, 3072), (1, 384, 200, 96), (1, 1500, 50, 56), (1, 20, 160, 3000),
            (1, 150, 77, 333), (24, 48, 48, 48),
        ],
        "TN": [(1, 512, 512, 128), (1, 96, 1024, 192), (1, 110, 430, 250), (16, 64, 32, 64)],
        "NT": [(1, 512, 512, 128), (1, 180, 240, 330), (24, 48, 32, 48)],
    }
)  # fmt: skip
