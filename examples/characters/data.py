"""Writes train.npz, held-out.npz and vocabulary.json from the English text that every CPython ships, pydoc_data.topics.

A record is a window of 65 characters as numbers: 64 to read, each with the one after it to foretell. The vocabulary is
the newline and the 95 printable ASCII characters, whatever the text holds, so that no shape depends on the version of
Python; the text itself does, a little. Every tenth topic is held out.
"""

import io
import json
import sys
import zipfile
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

VOCABULARY = "\n" + "".join(map(chr, range(32, 127)))
WINDOW = 65
STRIDE = {"train": 33, "held-out": 65}


def numbers(text):
    """The text as u8 [length]; a character outside the vocabulary becomes a space."""
    index = {character: number for number, character in enumerate(VOCABULARY)}
    return np.array([index.get(character, index[" "]) for character in text], np.uint8)


def windows(text, stride):
    """-> u8 [windows WINDOW]: one window every ``stride`` characters."""
    return np.lib.stride_tricks.sliding_window_view(numbers(text), WINDOW)[::stride]


def write(path, fields):
    """An .npz that does not hold the time of writing."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, array in sorted(fields.items()):
            data = io.BytesIO()
            np.lib.format.write_array(data, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
            out.writestr(zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), data.getvalue())


def main(folder):
    texts = [topics[name] for name in sorted(topics)]
    held = texts[6::10]
    for name, part in (("train", [t for i, t in enumerate(texts) if i % 10 != 6]), ("held-out", held)):
        made = windows("\n".join(part), STRIDE[name])
        write(folder / f"{name}.npz", {"text": made})
        print(f"{name}.npz: {len(made)} windows of {WINDOW} characters")
    (folder / "vocabulary.json").write_text(json.dumps(VOCABULARY) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
