"""``metrics.jsonl`` of a run directory: one line a step and one line a pass.

The log never ends a training run: a log that cannot be written is reported once. No complete line is lost that no step
will write again: the log of another run is renamed, broken lines are moved to a file of their own, and only a line that
a crash truncated at the very end is dropped.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, TextIO

from attrs import define, field

from .base import atomic_files, canonical_json
from .base.errors import RunError
from .reporting import LOG, Console

_PIECE = re.compile(rb"[^\0]+")
HEADER = b'{"schema": "sexpgpu-metrics", "version": 1}\n'


@define
class LogScan:
    """The content of a log, for a run of a number of finished steps.

    spans:  the lines to keep: first byte, end, and the newline that the last one lacks; neighbours are merged
    broken: (number from 1, bytes) of the lines that are not lines of a log
    torn:   whether the last line is truncated
    passes: names of the passes that have a line at the last step
    """

    spans: list[tuple[int, int, bytes]] = field(factory=list)
    broken: list[tuple[int, bytes]] = field(factory=list)
    torn: bool = False
    passes: set[str] = field(factory=set)


class Log:
    """The log of a run in ``folder``."""

    def __init__(self, folder: str, console: Console) -> None:
        self._path, self._console = os.path.join(folder, LOG), console
        self._file: TextIO | None = None
        self._passes: tuple[int, set[str]] = -1, set()

    def begin(self) -> None:
        """Start a log. An old one, of a run that left no checkpoint, is renamed."""
        try:
            head = None if os.path.islink(self._path) else atomic_files.plain_bytes(self._path, len(HEADER) + 1)
            if os.path.islink(self._path) or head not in (None, b"", HEADER):
                self._put_aside("is of a run that left no checkpoint")
            atomic_files.replace(self._path, [HEADER])
            self._open()
        except (OSError, RunError) as error:
            self._lost(error)

    def resume(self, step: int) -> None:
        """Keep the lines up to ``step`` finished steps, and go on after them."""
        try:
            if os.path.islink(self._path):
                self._console.warn(f"{self._path} is a link: the log goes on in a file of its own, the other one stays")
            if self._is_ours():
                self._cut(scan(self._path, step), step)
            else:
                self._put_aside("is not a log of this version")
                atomic_files.replace(self._path, [HEADER])
            self._open()
        except (OSError, RunError) as error:
            self._lost(error)

    def _is_ours(self) -> bool:
        """Whether the first line, if it is a header, has our schema and version. A log of another version is not
        cut."""
        first = atomic_files.plain_bytes(self._path, 4096)
        line = _parsed((first or b"").partition(b"\n")[0])
        return line is None or "schema" not in line or line == json.loads(HEADER)

    def _cut(self, log_scan: LogScan, step: int) -> None:
        if log_scan.broken:
            aside = f"{self._path}.broken-{atomic_files.token()}"
            atomic_files.replace(aside, [line for _, line in log_scan.broken])
            several = len(log_scan.broken) > 1
            what = f"{len(log_scan.broken)} broken lines, from line" if several else "a broken line,"
            self._console.warn(
                f"{self._path} has {what} {log_scan.broken[0][0]}: {'they are' if several else 'it is'} now in {aside}"
            )
        if log_scan.torn:
            self._console.warn(f"{self._path} ends in the middle of a line: that line is cut")
        atomic_files.replace(self._path, _kept_bytes(self._path, log_scan))
        self._passes = step, log_scan.passes

    def _put_aside(self, why: str) -> None:
        aside = atomic_files.put_aside(self._path)
        self._console.warn(f"{self._path} {why}: it is now {aside}")

    def _open(self) -> None:
        self._file = open(self._path, "a", encoding="ascii")  # noqa: SIM115 (open as long as the run)

    def passes_at(self, step: int) -> set[str]:
        """Names of the passes that have a line at ``step``, the last one with lines."""
        return set(self._passes[1]) if self._passes[0] == step else set()

    def add(self, line: Mapping[str, Any]) -> None:
        if "pass" in line:
            self._passes = line["step"], {*self.passes_at(line["step"]), line["pass"]}
        if self._file is None:
            return
        try:
            self._file.write(canonical_json.line(line) + "\n")
            self._file.flush()
        except OSError as error:
            self._lost(error)

    def _lost(self, error: Exception) -> None:
        self.close()
        why = error.what if isinstance(error, RunError) else error
        self._console.warn(f"{self._path} cannot be written ({why}); the run goes on without it")

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


def scan(path: str, step: int) -> LogScan:
    """The lines of the log at ``path`` to keep for a run of ``step`` finished steps. RunError if it is no plain file,
    OSError if it cannot be read."""
    log_scan, start = LogScan(), 0
    with contextlib.suppress(FileNotFoundError), atomic_files.open_plain(path) as file:
        for number, text in enumerate(file, 1):
            if text != HEADER and text.strip():
                _classify(log_scan, number, text, start, step)
            start += len(text)
    return log_scan


def _classify(log_scan: LogScan, number: int, text: bytes, start: int, step: int) -> None:
    """Add line ``number``, which starts at byte ``start``, to its part of ``log_scan``. A loss of power leaves zeros,
    which may join complete lines into one."""
    pieces = [(at.start(), at.group()) for at in _PIECE.finditer(text)] if b"\0" in text else [(0, text)]
    valid = 0
    for at, piece in pieces:
        line = _parsed(piece)
        if line is None or type(line.get("step")) is not int:
            continue
        valid += 1
        if line["step"] <= step:  # later ones the run writes again
            _add_span(log_scan, start + at, piece)
            if line["step"] == step and isinstance(line.get("pass"), str):
                log_scan.passes.add(line["pass"])
    if not text.endswith(b"\n"):
        log_scan.torn = valid < max(1, len(pieces))
    elif not valid or pieces[0][1] is not text:
        log_scan.broken.append((number, text))


def _add_span(log_scan: LogScan, start: int, piece: bytes) -> None:
    end, close = start + len(piece), b"" if piece.endswith(b"\n") else b"\n"
    if log_scan.spans and log_scan.spans[-1][1:] == (start, b""):
        start = log_scan.spans.pop()[0]
    log_scan.spans.append((start, end, close))


def _parsed(text: bytes) -> dict[str, Any] | None:
    """The object of a line of JSON; None where it is not one."""
    try:
        line = json.loads(text.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None


def _no_constant(text: str) -> NoReturn:
    raise ValueError(text)


def _kept_bytes(path: str, log_scan: LogScan) -> Iterator[bytes]:
    """The bytes of the new log: the spans of ``log_scan`` in the log at ``path``."""
    yield HEADER
    if log_scan.spans:
        with atomic_files.open_plain(path) as file:
            for start, end, close in log_scan.spans:
                file.seek(start)
                while start < end and (data := file.read(min(atomic_files.CHUNK, end - start))):
                    start += len(data)
                    yield data
                yield close
