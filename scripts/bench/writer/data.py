"""rows.npz for the writer: values below 64, [rows 32] i32; the rows are read in order."""

from __future__ import annotations

import sys

import numpy as np


def main(path: str, rows: int) -> None:
    np.savez(path, row=np.random.default_rng(5).integers(0, 64, (rows, 32)).astype("int32"))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
