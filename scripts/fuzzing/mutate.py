"""Mutations of run files through ``check``: whatever a text says, a plan or coded faults come of it, and soon.

    python -m scripts.fuzzing.mutate [--seed N] [--count N]

Mutation N of a file is made from the seed N alone. What ends in another exception, or in neither a plan nor a fault, or
takes more than a second of the processor, is said with its seed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from sexpgpu.language.diagnostics import Report
from sexpgpu.language.grammar import FORMS, SPECIAL
from sexpgpu.language.runfile import load
from sexpgpu.ops import OPS
from sexpgpu.phases.trace_run import trace_run
from sexpgpu.trace.builtin_table import BUILTINS

ROOT = Path(__file__).resolve().parents[2]
FILES = ("examples/tiny-generate/run.sx", "examples/characters/full-row.sx", "examples/route-planner/small.sx")
PIECE = re.compile(r"""[()\[\]]|"[^"]*"|[^\s()\[\]"]+|\s+""")
ODD = r"""
1e308 -1e308 1e39 3.4e38 1e-46 1e999 0 -0.0 -1 2147483648 4294967296 9223372036854775807 9223372036854775808 0.5 1e3
nil true false :x :f32 :bf16 :i8 :bool :salt :axes x model batch ctx [] () [0] [-1] [2147483648] [1,2,3] (list) "" "x"
( ) [ ] " ; #| |# \ ' ` , # : . é 1.2.3 -nan .5 (lambda(x)x) (full[3]1e308)
"""
WORDS = (*ODD.split(), "\x01", "\u200b", "[1 2 3]", *OPS, *BUILTINS, *SPECIAL, *FORMS)


def sources() -> list[str]:
    """The texts that are mutated: small run files without a fault, whose includes stand in the text."""
    return [_whole(ROOT / path) for path in FILES]


def _whole(path: Path) -> str:
    text = path.read_text()
    return re.sub(r'\(include "([^"]*)"\)', lambda match: _whole(path.parent / match[1]), text)


def mutation(seed: int, texts: list[str]) -> str:
    """One of the texts with one to four changes."""
    rng = random.Random(seed)
    pieces = PIECE.findall(rng.choice(texts))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        rng.choice(CHANGES)(rng, pieces)
    return "".join(pieces)


def _forms(pieces: list[str]) -> list[tuple[int, int]]:
    """(start, end) of every form in brackets."""
    stack, out = [], []
    for at, piece in enumerate(pieces):
        if piece in ("(", "["):
            stack.append(at)
        elif piece in (")", "]") and stack:
            out.append((stack.pop(), at + 1))
    return out


def _form(rng: random.Random, pieces: list[str]) -> tuple[int, int]:
    forms = _forms(pieces)
    return rng.choice(forms) if forms else (0, len(pieces))


def _at(rng: random.Random, pieces: list[str]) -> int:
    """Where a piece is that is no space."""
    return rng.choice([i for i, piece in enumerate(pieces) if not piece.isspace()] or [0])


def _drop(rng: random.Random, pieces: list[str]) -> None:
    at = _at(rng, pieces)
    del pieces[at : at + 1]


def _replace(rng: random.Random, pieces: list[str]) -> None:
    at = _at(rng, pieces)
    pieces[at : at + 1] = [rng.choice(WORDS)]


def _insert(rng: random.Random, pieces: list[str]) -> None:
    at = _at(rng, pieces)
    pieces[at:at] = [rng.choice(WORDS), " "]


def _misspell(rng: random.Random, pieces: list[str]) -> None:
    at = _at(rng, pieces)
    text = pieces[at] if pieces else "x"
    cut = rng.randrange(len(text) + 1)
    pieces[at : at + 1] = [
        text[:cut] + rng.choice(("", "x", "-", "0", ":", "#", "\\", '"')) + text[cut + rng.randrange(2) :]
    ]


def _drop_form(rng: random.Random, pieces: list[str]) -> None:
    start, end = _form(rng, pieces)
    del pieces[start:end]


def _replace_form(rng: random.Random, pieces: list[str]) -> None:
    start, end = _form(rng, pieces)
    pieces[start:end] = [rng.choice(WORDS)]


def _copy_form(rng: random.Random, pieces: list[str]) -> None:
    (start, end), (to, until) = _form(rng, pieces), _form(rng, pieces)
    pieces[to : rng.choice((to, until))] = [*pieces[start:end], " "]


def _wrap(rng: random.Random, pieces: list[str]) -> None:
    """The form in calls of another name, up to as deep as the reader goes, with or without what closes them."""
    start, end = _form(rng, pieces)
    n = rng.choice((1, 2, 10, 100, 300))
    closed = rng.random() < 0.7
    pieces[start:end] = [f"({rng.choice(WORDS)} "] * n + pieces[start:end] + [")"] * (n * closed)


def _repeat(rng: random.Random, pieces: list[str]) -> None:
    start, end = _form(rng, pieces)
    if end - start < 60:
        pieces[start:end] = [*pieces[start:end], " "] * rng.choice((2, 20, 200))


def _swap(rng: random.Random, pieces: list[str]) -> None:
    one, other = _at(rng, pieces), _at(rng, pieces)
    if pieces:
        pieces[one], pieces[other] = pieces[other], pieces[one]


CHANGES = (
    *(_drop, _replace, _replace, _replace, _insert, _misspell, _misspell),
    *(_drop_form, _replace_form, _copy_form, _wrap, _repeat, _swap),
)


def faults_of(text: str, folder: Path) -> Report:
    """What ``check`` finds. AssertionError where there is neither a plan nor a fault, or both."""
    path, report = folder / "run.sx", Report()
    path.write_text(text)
    run = load(str(path), report)
    plan = trace_run(run, report) if run else None
    assert bool(report) != bool(plan), "neither a plan nor a fault" if not plan else "a plan, and a fault"
    assert all("poison" not in str(error) and "\n" not in error.line() for error in report.errors), "an odd message"
    return report


def trials(seeds: range, folder: Path) -> Iterator[tuple[int, str, float]]:
    """(seed, what is wrong, seconds of the processor) of each mutation."""
    texts = sources()
    for seed in seeds:
        begun, wrong = time.process_time(), ""
        try:
            faults_of(mutation(seed, texts), folder)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        yield seed, wrong, time.process_time() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20_000)
    args = parser.parse_args()
    found, longest = 0, (0.0, 0)
    with tempfile.TemporaryDirectory() as folder:
        for seed, wrong, seconds in trials(range(args.seed, args.seed + args.count), Path(folder)):
            longest = max(longest, (seconds, seed))
            if wrong or seconds > 1:
                found += 1
                print(f"seed {seed}: {wrong or 'slow'} ({seconds:.2f} s)", flush=True)
    print(f"{args.count} mutations, {found} found; the slowest, {longest[1]}, took {longest[0]:.2f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
