"""Loaders: shards -> batches. Training reads epochs in shuffled order; a pass reads records in file order."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from attrs import frozen

from ..base import safetensors_io
from ..base.errors import DATA_FEW, DATA_FINITE, DATA_RANGE, Code, RunError
from ..format.manifest import Field, Loader, Manifest
from ..format.tarball import Artifact
from . import file_formats
from .shuffle import Order

MAX_READY = 8  # batches prefetched, at most
REFILL = 4  # batches requested from the prefetch thread at a time
SCAN_ELEMENTS = 2**22  # elements checked in one NumPy call

Batch = dict[str, np.ndarray]


@frozen(eq=False)
class Records:
    """All records of a loader: its shards end to end. ``starts[i]`` is the first record of shard i, then the count."""

    loader: Loader
    shards: tuple[file_formats.Shard, ...]
    starts: np.ndarray
    count: int

    @property
    def digests(self) -> tuple[tuple[str, str], ...]:
        """(file name, sha256) of every file, in order: the data's fingerprint."""
        return tuple(pair for shard in self.shards for pair in shard.digests)

    @property
    def batches(self) -> int:
        """Full batches of a pass."""
        return self.count // self.loader.batch

    def batch(self, numbers: np.ndarray) -> Batch:
        """The records ``numbers`` (i64), field by field: [len(numbers), ...], aligned, values checked."""
        if self.loader.kind == "indices":
            field = self.loader.fields[0]
            return {field.name: numbers.astype(safetensors_io.dtype(field.dtype))}
        owners = np.searchsorted(self.starts, numbers, side="right") - 1
        out = {}
        for field in self.loader.fields:
            out[field.name] = self._gather(field, numbers, owners)
            check_values(field, out[field.name], lambda i: self._location(int(numbers[i])))
        return out

    def _gather(self, field: Field, numbers: np.ndarray, owners: np.ndarray) -> np.ndarray:
        out = safetensors_io.aligned((len(numbers), *field.shape), field.dtype)
        for owner in sorted(set(owners.tolist())):  # np.unique would import numpy.ma, 60 ms of the start
            rows = np.nonzero(owners == owner)[0]
            out[rows] = self.shards[owner].columns[field.name][numbers[rows] - self.starts[owner]]
        return out

    def _location(self, number: int) -> str:
        """The file and record of record ``number``, as a message names it."""
        owner = int(np.searchsorted(self.starts, number, side="right")) - 1
        return f"{self.shards[owner].name}: record {number - int(self.starts[owner])}"


def open_records(
    loader: Loader, folder: str, artifact: Artifact | None, tick: Callable[[int], None] = lambda size: None
) -> Records:
    """The records of ``loader``, from the artifact or from ``folder``, every value checked. ``tick`` gets the number of
    bytes read, where reading takes long."""
    if loader.kind == "indices":
        return Records(loader, (), np.zeros(1, np.int64), _checked_count(loader, loader.count or 0))
    shards = tuple(file_formats.read(group, loader.fields, tick) for group in files(loader, folder, artifact))
    starts = np.cumsum([0, *(shard.count for shard in shards)])
    _checked_count(loader, int(starts[-1]))
    for shard in shards:
        _scan(shard, loader.fields)
    return Records(loader, shards, starts[:-1], int(starts[-1]))


def files(loader: Loader, folder: str, artifact: Artifact | None) -> list[list[file_formats.Blob]]:
    """The files of each source, in the artifact or in ``folder``; RunError where one is not there."""
    if not (loader.embedded and artifact):
        return [file_formats.blobs(folder, source, loader.fields) for source in loader.sources]
    groups: dict[str, list[file_formats.Blob]] = {}  # the .npy files of one folder together
    wanted = {f"{field.name}.npy" for field in loader.fields}
    for member in loader.embedded:
        is_field = member.endswith(".npy")
        if is_field and os.path.basename(member) not in wanted:
            continue
        key = os.path.dirname(member) + "/" if is_field else member
        groups.setdefault(key, []).append(file_formats.member_blob(artifact, member))
    return list(groups.values())


def memory_needed(artifact: Artifact, folder: str) -> int:
    """Bytes of memory that the data of a run will take, computed before they are read. A missing or unreadable file
    counts
    as none: it is reported when it is opened."""
    total = 0
    for loader in map(artifact.manifest.loader, artifact.manifest.loaders_used()):
        with contextlib.suppress(RunError):
            total += sum(file_formats.memory_needed(group, loader.fields) for group in files(loader, folder, artifact))
    return total


def _checked_count(loader: Loader, count: int) -> int:
    if count < loader.batch:
        raise RunError(DATA_FEW, f"a batch needs {loader.batch} records, the data has {count}", f"loader {loader.name}")
    return count


def _scan(shard: file_formats.Shard, fields: Sequence[Field]) -> None:
    """Check every value of ``shard``, in bounded memory."""
    for field in fields:
        column = shard.columns[field.name]
        rows = max(1, SCAN_ELEMENTS // max(1, int(np.prod(field.shape, dtype=np.int64))))
        for at in range(0, len(column), rows):
            check_values(field, column[at : at + rows], lambda i, at=at: f"{shard.name}: record {at + i}")


def check_values(field: Field, values: np.ndarray, locate: Callable[[int], str]) -> None:
    """E-DATA unless floats are finite and integers within the field's bounds; ``locate`` names the i-th record."""
    if field.dtype in safetensors_io.FLOATS:
        bad, code, what = ~np.isfinite(values), DATA_FINITE, "which is not finite"
        refuse_any(bad, code, field, values, what, locate)
        return
    if field.low is not None or field.high is not None:
        check_range(field, values, field.low, field.high, locate)
    for part in field.parts:
        within = (slice(None), *map(slice, part.start, part.stop))
        check_range(field, values[within], part.low, part.high, locate)


def check_range(
    field: Field, values: np.ndarray, low: int | None, high: int | None, locate: Callable[[int], str]
) -> None:
    """E-DATA unless low <= ``values`` < high, where these are given."""
    smallest, largest = int(values.min(initial=low or 0)), int(values.max(initial=low or 0))
    if (low is None or smallest >= low) and (high is None or largest < high):
        return
    bad = np.zeros(values.shape, bool)
    bad |= False if low is None else values < low
    bad |= False if high is None else values >= high
    what = f"which is not in {'' if low is None else low}..{'' if high is None else high - 1}"
    refuse_any(bad, DATA_RANGE, field, values, what, locate)


def refuse_any(
    bad: np.ndarray, code: Code, field: Field, values: np.ndarray, what: str, locate: Callable[[int], str]
) -> None:
    """The fault ``code`` of the first of ``values`` that is ``bad``."""
    if bad.any():
        first = np.unravel_index(int(np.argmax(bad)), bad.shape)
        raise RunError(code, f"field {field.name} holds {values[first]}, {what}", locate(int(first[0])))


def fingerprint(records: Sequence[Records]) -> dict[str, list[list[str]]]:
    """loader -> [[file name, sha256], ...] of the training data."""
    return {each.loader.name: [list(pair) for pair in each.digests] for each in records}


def batches_in_order(records: Records, limit: int | None) -> Iterator[Batch]:
    """The full batches of a pass, first record first; at most ``limit``."""
    size = records.loader.batch
    for i in range(min(records.batches, limit or records.batches)):
        yield records.batch(np.arange(i * size, (i + 1) * size, dtype=np.int64))


class Feed:
    """Training batches from a position on, prefetched by a thread, whose errors are raised by ``next``.

    Several are requested at a time: the thread holds the interpreter lock while it works, and each switch between it
    and the loop costs more than a small batch.
    """

    def __init__(self, records: Records, order: Order, position: int) -> None:
        self._records, self._order, self._position = records, order, position
        self._ready: queue.SimpleQueue[Batch | BaseException] = queue.SimpleQueue()
        self._requests: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._consumed, self._closed = 0, False
        self._thread = threading.Thread(target=self._work, name=f"data-{records.loader.name}", daemon=True)
        self._requests.put(MAX_READY)
        self._thread.start()

    def _work(self) -> None:
        try:
            while not self._closed:
                for _ in range(self._requests.get()):
                    if not self._closed:
                        self._ready.put(self._next_batch())
        except BaseException as error:
            self._ready.put(error)

    def _next_batch(self) -> Batch:
        size = self._records.loader.batch
        batch = self._records.batch(self._order.records(self._position, size))
        self._position += size
        return batch

    def next(self, look: Callable[[], None]) -> Batch:
        """The next batch; ``look`` is called while waiting, and may raise to stop."""
        while True:
            try:
                item = self._ready.get(timeout=0.1)
            except queue.Empty:
                look()
                continue
            if isinstance(item, BaseException):
                self._ready.put(item)  # for the next call
                raise item
            self._consumed += 1
            if self._consumed == REFILL:
                self._consumed = 0
                self._requests.put(REFILL)
            return item

    def close(self) -> None:
        self._closed = True
        self._requests.put(0)
        self._thread.join()


class Training:
    """The training streams: one feed a loader, opened at the run's position."""

    def __init__(self, manifest: Manifest, records: dict[str, Records]) -> None:
        self._seed, self._records = manifest.run.seed, records
        self._feeds: dict[str, Feed] = {}

    def next(self, loader: str, position: int, look: Callable[[], None]) -> Batch:
        """The batch at ``position``; calls for one loader must follow one another in the stream."""
        if loader not in self._feeds:
            records = self._records[loader]
            order = Order(self._seed, loader, records.count, records.loader.shuffle)
            self._feeds[loader] = Feed(records, order, position)
        return self._feeds[loader].next(look)

    def records_left(self, loader: str, position: int) -> int | None:
        """Records left in the stream of ``loader``; None when its epochs have no end."""
        records = self._records[loader]
        return None if records.loader.epochs is None else records.count * records.loader.epochs - position

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()
