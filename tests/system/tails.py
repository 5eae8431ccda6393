"""Which draws of two long series of unlikely tokens may give such a token at all: those with a word of large noise.

A series draws from one likely token and ``tokens`` others, which share a probability of 1e-3, once with each salt of
``range(draws)``. One of the others is drawn where e < e_likely p / (1 - p), p its own probability and e = -log u of
each token's word (ops/random.py). With K = 2^32 p / (1 - p) that is (r + s) < K e_likely for the rest r = 2^32 - 1 -
word of a word, so that a draw with no r below ``rest``, some 8 K, gives an unlikely token in exp(-rest / K) of the
cases in which it is due: 4e-4 of them, 0.04 and 0.09 of what is counted. tails.txt has the salts of all other draws,
a line for each series, each as its distance from the one before. They depend on the words of the unlikely tokens alone,
and not on the likely one's, which decides. All draws together need 2e10 words, these need 2e8.

python -m tests.tails makes the lines again, in about a quarter of an hour.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
from attrs import frozen

from sexpgpu.ops.random import bits_ref
from sexpgpu.trace.random_draws import place

FILE = Path(__file__).with_suffix(".txt")
SHARE = 1e-3  # of all unlikely tokens together
SEED = 1


@frozen
class Series:
    """``line``: of tails.txt."""

    tokens: int
    draws: int
    rest: int
    line: int

    @property
    def gap(self) -> float:
        """The logit of an unlikely token; the likely one's is 0."""
        return float(np.log(SHARE / self.tokens / (1 - SHARE)))

    @property
    def salts(self) -> list[int]:
        return list(accumulate(map(int, FILE.read_text().splitlines()[self.line].split())))

    def found(self) -> list[int]:
        """``salts``, looked for."""
        where, seed, limit = place("generate.step", 0), np.array([SEED, 0], "u4"), 2**32 - self.rest
        words = (bits_ref(np, seed, np.int64(n), (self.tokens + 1,), where)[1:] for n in range(self.draws))
        return [n for n, row in enumerate(words) if (row >= limit).any()]


ALL = (Series(131_072, 96_000, 256, 0), Series(33_333, 256_000, 1024, 1))

if __name__ == "__main__":
    for one in ALL:
        salts = one.found()
        print(*salts[:1], *(b - a for a, b in pairwise(salts)))
