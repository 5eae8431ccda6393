"""The order of records: a permutation each epoch, seekable, a function of its key alone."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifacts.data.shuffle import WINDOW, Order


def order(n: int, seed: int = 7, loader: str = "rows", shuffle: bool = True) -> Order:
    return Order(seed, loader, n, shuffle)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**63 - 1), st.integers(0, 5))
def test_every_record_once_an_epoch(n: int, seed: int, epoch: int) -> None:
    found = order(n, seed).records(epoch * n, n)
    assert found.dtype == np.int64 and sorted(found.tolist()) == list(range(n))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 500), st.integers(0, 3000), st.integers(0, 300))
def test_seekable(n: int, start: int, count: int) -> None:
    """Any stretch is the same, read at once, one by one or from the middle on: through epoch ends too."""
    whole = order(n).records(0, start + count)
    assert np.array_equal(order(n).records(start, count), whole[start:])
    assert np.array_equal(
        [order(n).records(start + i, 1)[0] for i in range(min(count, 5))], whole[start : start + 5][:count]
    )


@pytest.mark.parametrize("n", [WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW + 5, 9 * WINDOW])
def test_seekable_across_windows(n: int) -> None:
    """Places are worked out many at a time, from a table or without; each is where its own permutation sends it."""
    places = [0, 1, WINDOW - 1, WINDOW, WINDOW + 1, n - 1, n, n + 1, 2 * n - 1]
    alone = [int(order(n).permute(np.array([p % n], np.uint64), p // n)[0]) for p in places]
    found = order(n).records(0, 2 * n)
    assert [int(found[p]) for p in places] == alone
    assert sorted(found[:n].tolist()) == sorted(found[n:].tolist()) == list(range(n))


def test_epochs_seeds_and_loaders_differ() -> None:
    streams = [
        order(1000).records(0, 1000),
        order(1000).records(1000, 1000),
        order(1000, seed=8).records(0, 1000),
        order(1000, loader="other").records(0, 1000),
        np.arange(1000),
    ]
    for a, b in itertools.combinations(streams, 2):
        assert (a == b).sum() < 20  # two random permutations agree in 1 place on average; 20 has odds below 1e-18


def test_unshuffled_is_the_order_of_the_file() -> None:
    assert order(5, shuffle=False).records(3, 9).tolist() == [3, 4, 0, 1, 2, 3, 4, 0, 1]


def test_far_positions_cost_no_more() -> None:
    """A terabyte of records: no memory of their number is taken, and epoch 10**6 is as near as epoch 0."""
    n = 10**12 + 39
    found = order(n).records(10**6 * n + 12345, 1000)
    assert len(set(found.tolist())) == 1000 and found.min() >= 0 and found.max() < n


def test_uniform_over_small_permutations() -> None:
    """All 24 orders of 4 records turn up alike: chi-square, 23 degrees of freedom, 1 - 1e-6 quantile 65.2."""
    draws = 1200
    seen = Counter(tuple(order(4, seed=s).records(0, 4).tolist()) for s in range(draws))
    expected = draws / 24
    assert len(seen) == 24
    assert sum((count - expected) ** 2 / expected for count in seen.values()) < 65.2


def test_first_record_is_uniform() -> None:
    """Where record 0 goes among 100 places: chi-square with 99 degrees of freedom, the 1 - 1e-6 quantile is 177."""
    seen = Counter(int(order(100, seed=s).records(0, 1)[0]) for s in range(2000))
    assert sum((seen[i] - 20) ** 2 / 20 for i in range(100)) < 177


def test_pinned() -> None:
    """The order is part of every checkpoint's meaning: it may not change. The digest is of our own first release."""
    found = order(1000, seed=7).records(0, 3000)
    assert found[:8].tolist() == PINNED_START
    assert hashlib.sha256(found.astype("<i8").tobytes()).hexdigest()[:16] == PINNED_DIGEST


PINNED_START = [269, 720, 35, 330, 557, 462, 179, 636]
PINNED_DIGEST = "0cce8e7566b2ca00"


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 15, 16, 17, 255, 256, 257, 65535, 65536, 65537])
def test_edges_of_powers_of_two(n: int) -> None:
    assert np.array_equal(np.sort(order(n).records(0, n)), np.arange(n))
