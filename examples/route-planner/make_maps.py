"""Writes maps.npz and small-maps.npz: 512 maps of 20 cities and 64 of 8, each city drawn evenly from the unit square.

The files have the same bytes wherever they are made: a place is a multiple of 2^-24, made of integers by SHA-256.
"""

import hashlib
import io
import sys
import zipfile
from pathlib import Path

import numpy as np


def points(name, maps, cities):
    """-> f32 [maps cities 2] in [0, 1): the top 24 bits of the words of SHA-256 of the name and a counter."""
    words = maps * cities * 2
    blocks = (hashlib.sha256(f"{name} {n}".encode()).digest() for n in range(-(-words // 8)))
    drawn = np.frombuffer(b"".join(blocks), ">u4")[:words] >> 8
    return (drawn * 2.0**-24).astype("f4").reshape(maps, cities, 2)


def write(path, fields):
    """An .npz that does not hold the time of writing."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as out:
        for name, array in sorted(fields.items()):
            data = io.BytesIO()
            np.lib.format.write_array(data, array, version=(1, 0), allow_pickle=False)
            out.writestr(zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), data.getvalue())


def main(folder):
    write(folder / "maps.npz", {"points": points("maps", 512, 20)})
    write(folder / "small-maps.npz", {"points": points("small-maps", 64, 8)})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
