"""Turns the rows that `sexpgpu-run --output-format=json --diagnostic written` prints into text.

Each is shown as its prompt, a bar, and what the model wrote.

usage: sexpgpu-run ... | python show.py [ROWS]     (ROWS of each batch, 4 by default)
"""

import json
import sys
from pathlib import Path

VOCABULARY = json.loads((Path(__file__).parent / "vocabulary.json").read_text(encoding="utf-8"))
PROMPT = 33  # as in run.sx


def text(numbers):
    """One line: a newline shows as a return sign."""
    return "".join(VOCABULARY[number] for number in numbers).replace("\n", "\u23ce")


def main(rows):
    for line in map(json.loads, sys.stdin):
        if "pass" in line:
            values = {"loss": line["loss"], **line["metrics"]}
            shown = (f"{name} {float(value):.4f}" for name, value in values.items())
            print(f"step {line['step']}", *shown, sep="  ", flush=True)
        elif line.get("diagnostic") == "written":
            for row in line["values"][:rows]:
                print(f"    {text(row[:PROMPT])} | {text(row[PROMPT:])}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
