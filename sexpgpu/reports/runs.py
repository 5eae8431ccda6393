"""``sexpgpu runs``: a table of run directories, from their logs alone; a run that is still going on may be read too."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from attrs import asdict, define, field, fields

from ..language import codes
from ..language.diagnostics import UserError, printable

LOG = "metrics.jsonl"
COLUMNS = ("run", "artifact", "seed", "step", "seconds")
DIGITS = 8  # of an artifact's digest in the table


@define
class Summary:
    """One number of a log: its last value, the least and the greatest, and the steps of these. NaN is neither."""

    last: float
    min: float = math.inf
    max: float = -math.inf
    min_step: int | None = None
    max_step: int | None = None

    def add(self, value: float, step: int) -> None:
        self.last = value
        if value < self.min or (value == self.min and self.min_step is None):
            self.min, self.min_step = value, step
        if value > self.max or (value == self.max and self.max_step is None):
            self.max, self.max_step = value, step


NUMBERS = tuple(column.name for column in fields(Summary))[:3]  # of a metric in the csv


@define
class Run:
    """A run directory. ``artifact``: the digest of what trained its newest checkpoint; "" and None: not known.
    ``numbers``: Summary by name: ``loss``, a metric, or PASS/loss and PASS/METRIC of a pass."""

    run: str
    artifact: str = ""
    seed: int | None = None
    step: int = 0
    seconds: float = 0.0
    numbers: dict[str, Summary] = field(factory=dict)


def read_runs(folders: Iterable[str]) -> list[Run]:
    """The runs of ``folders``: each is a run directory, or holds some. UserError (E-READ-001) where one is neither."""
    return [read_run(path) for folder in folders for path in _run_folders(folder)]


def _run_folders(folder: str) -> list[str]:
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise UserError(codes.READ_FILE, None, str(error.strerror), where=folder) from None
    if LOG in names:
        return [folder]
    found = [path for path in (os.path.join(folder, name) for name in names) if os.path.isfile(os.path.join(path, LOG))]
    if not found:
        hint = "give what was --out of sexpgpu-run, or a folder of such directories"
        what = f"it holds no {LOG}, and no directory in it does"
        raise UserError(codes.READ_FILE, None, what, hint=hint, where=folder)
    return found


def read_run(folder: str) -> Run:
    """The run in ``folder``, which has a log."""
    run = Run(folder, _artifact(folder), _seed(folder))
    for line in _lines(os.path.join(folder, LOG)):
        of = f"{line['pass']}/" if isinstance(line.get("pass"), str) else ""
        run.step = max(run.step, line["step"])
        if not of:
            run.seconds += _number(line.get("seconds")) or 0.0
        metrics = line.get("metrics")
        for name, value in {"loss": line.get("loss"), **(metrics if isinstance(metrics, dict) else {})}.items():
            number = _number(value)
            if number is not None:
                run.numbers.setdefault(of + name, Summary(number)).add(number, line["step"])
    return run


def _lines(path: str) -> Iterator[dict[str, Any]]:
    """The log's objects that have a step; a line that a crash cut short, and the header, are passed over."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for text in file:
                line = _parsed(text)
                if type(line.get("step")) is int:
                    yield line
    except OSError as error:
        raise UserError(codes.READ_FILE, None, str(error.strerror), where=path) from None


def _parsed(text: str) -> dict[str, Any]:
    """The JSON object in ``text``; an empty one where there is none."""
    try:
        made = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return made if isinstance(made, dict) else {}


def _number(value: object) -> float | None:
    """A number of the log, where one that is not finite is the string inf, -inf or nan."""
    if isinstance(value, bool) or not (isinstance(value, int | float) or value in ("inf", "-inf", "nan")):
        return None
    return float(value)  # type: ignore[arg-type]


def _content(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _artifact(folder: str) -> str:
    """The digest in the newest checkpoint that has one."""
    checkpoints = os.path.join(folder, "checkpoints")
    try:
        names = sorted(os.listdir(checkpoints), reverse=True)
    except OSError:  # there is none yet
        names = []
    texts = (_content(os.path.join(checkpoints, name, "manifest.json")) for name in names if name.startswith("step-"))
    digests = (digest for text in texts if isinstance(digest := _parsed(text).get("artifact"), str))
    return next(digests, "")


def _seed(folder: str) -> int | None:
    """``:seed`` of the run file, where it is a plain number."""
    match = re.search(r'"text":":seed (\d+)"', _content(os.path.join(folder, "identity.json")))
    return int(match[1]) if match else None


def chosen(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    """``names``, or by default the loss and that of each pass. UserError (E-NAME-001) for one that no run has."""
    known = list(dict.fromkeys(name for run in runs for name in run.numbers))
    for name in names:
        if name not in known:
            hint = f"there are {' '.join(known) or 'none'}"
            raise UserError(codes.NAME_UNKNOWN, None, f"no run has a metric {name}", hint=hint, where="--metric")
    return list(names) or [name for name in known if name.rpartition("/")[2] == "loss"]


def text_table(runs: Sequence[Run], names: Sequence[str]) -> str:
    """A line for each run, with the last value of each of ``names``, and the least and the greatest in brackets."""
    head = [*COLUMNS, *names]
    rows = [[*_cells(run, short=True), *(_words(run.numbers.get(name)) for name in names)] for run in runs]
    widths = [max(len(row[n]) for row in (head, *rows)) for n in range(len(head))]
    aligned = (
        "  ".join(
            cell.ljust(width) if n < 2 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (head, *rows)
    )
    return "\n".join(line.rstrip() for line in aligned)


def _cells(run: Run, short: bool) -> list[str]:
    artifact = run.artifact[:DIGITS] if short else run.artifact
    seed = "" if run.seed is None else str(run.seed)
    name, seconds = (printable(run.run), f"{run.seconds:.1f}") if short else (run.run, repr(run.seconds))
    return [name, artifact, seed, str(run.step), seconds]


def _words(summary: Summary | None) -> str:
    if summary is None:
        return ""
    if summary.min_step is None:  # never a number
        return f"{summary.last:.4g}"
    return f"{summary.last:.4g} [{summary.min:.4g}, {summary.max:.4g}]"


def csv_table(runs: Sequence[Run], names: Sequence[str]) -> str:
    """RFC 4180, with NAME.last, NAME.min and NAME.max of each of ``names``."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*COLUMNS, *(f"{name}.{kind}" for name in names for kind in NUMBERS)])
    for run in runs:
        values = (run.numbers.get(name) for name in names)
        numbers = (number for s in values for number in ((s.last, s.min, s.max) if s else ("", "", "")))
        writer.writerow([*_cells(run, short=False), *numbers])
    return out.getvalue().rstrip("\n")


def data(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Everything, for ``--output-format json``."""
    return [
        {
            **{column: getattr(run, column) for column in COLUMNS},
            "metrics": {name: asdict(summary) for name, summary in run.numbers.items()},
        }
        for run in runs
    ]
