"""Writes rows.npz (to train on) and held-out.npz.

A row is its stride, a start, and then values each of which is the one before plus the stride, up to 31:
[3 7 10 13 16 19 22 25]. Strides are 1 to 4 and starts 5 to 31, so no value is a stride.

Every pair of a stride and a start is one row, 108 in all. 32 are held out and never trained on: along each chain of
values a stride apart, every third is kept back as a start, so that a held-out row begins with a step that training rows
take only further on. The files have the same bytes wherever they are made.
"""

import io
import sys
import zipfile
from pathlib import Path

import numpy as np

SEQ, TOP, STRIDES, STARTS, HELD = 8, 31, range(1, 5), range(5, 32), 32


def rows(pairs):
    """pairs: (stride, start) -> row i32 [n SEQ] and stride i32 [n]."""
    stride, start = np.array(pairs, np.int32).T
    values = np.minimum(start[:, None] + stride[:, None] * np.arange(SEQ - 1, dtype=np.int32), TOP)
    return {"row": np.concatenate([stride[:, None], values], axis=1), "stride": stride}


def held_out(stride, start):
    return (start - STARTS[0]) // stride % 3 == 1


def write(path, fields):
    """An .npz that does not hold the time of writing."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as out:
        for name, array in sorted(fields.items()):
            data = io.BytesIO()
            np.lib.format.write_array(data, array, version=(1, 0), allow_pickle=False)
            out.writestr(zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), data.getvalue())


def main(folder):
    pairs = [(stride, start) for stride in STRIDES for start in STARTS]
    held = [pair for pair in pairs if held_out(*pair)][:HELD]
    write(folder / "rows.npz", rows([pair for pair in pairs if pair not in held]))
    write(folder / "held-out.npz", rows(held))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
