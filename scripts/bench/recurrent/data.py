"""rows.npz for the recurrent step: a first symbol below 74, and a state [96] f32 in the range of a tanh."""

from __future__ import annotations

import sys

import numpy as np


def main(path: str, rows: int) -> None:
    random = np.random.default_rng(5)
    first = random.integers(0, 74, rows).astype("int32")
    np.savez(path, first=first, state=np.tanh(random.standard_normal((rows, 96))).astype("float32"))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
