"""What a run says. ``metrics.jsonl``: a line a step and a line a pass. Standard output: lines for people or programs.
Neither may ever end a training run: a log that cannot be written is reported once."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from . import files
from .errors import RunError, printable

SCHEMA = {"schema": "sexpgpu-metrics", "version": 1}
NAME = "metrics.jsonl"


def number(value: float) -> Any:
    """``value`` for JSON: exact; what JSON has no number for is the string nan, inf or -inf."""
    return value if math.isfinite(value) else repr(value)


def _numbers(values: Mapping[str, float]) -> dict[str, Any]:
    return {name: number(value) for name, value in values.items()}


class Console:
    """Lines to standard output; warnings to standard error. A closed or full output is given up, with one warning."""

    def __init__(self, quiet: bool = False, verbose: bool = False, as_json: bool = False) -> None:
        self.quiet, self.verbose, self.as_json = quiet, verbose, as_json
        self._dead = False

    def line(self, text: str, data: Mapping[str, Any], always: bool = False) -> None:
        """Say ``text`` on one line, or ``data`` as one JSON line when that is asked for."""
        self.lines([text], data, always)

    def lines(self, texts: Sequence[str], data: Mapping[str, Any], always: bool = False) -> None:
        """Say each of ``texts`` on a line of its own, or ``data`` as one JSON line."""
        if self.quiet and not always:
            return
        self._out(json.dumps(data) if self.as_json else "\n".join(map(printable, texts)))

    def _out(self, text: str) -> None:
        if self._dead:
            return
        try:
            print(text, flush=True)
        except (OSError, ValueError, UnicodeEncodeError) as error:
            self._dead = True
            discard(sys.stdout)
            self.warn(f"standard output is lost ({error}); the run goes on, and {NAME} has every step")

    def warn(self, text: str) -> None:
        """A warning on standard error; if that is gone too, nobody is left to tell."""
        with contextlib.suppress(OSError, ValueError):
            text = printable(text)
            print(json.dumps({"warning": text}) if self.as_json else f"warning: {text}", file=sys.stderr, flush=True)

    def detail(self, text: str) -> None:
        if self.verbose:
            with contextlib.suppress(OSError, ValueError):
                print(printable(text), file=sys.stderr, flush=True)


def discard(stream: TextIO | None) -> None:
    """Send what is left in ``stream`` to nowhere, so that the interpreter's last flush does not fail."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())  # type: ignore[union-attr]
        os.close(null)


class Log:
    """``metrics.jsonl`` of a run directory."""

    def __init__(self, folder: str, console: Console) -> None:
        self._path, self._console = os.path.join(folder, NAME), console
        self._file: TextIO | None = None

    def open(self, step: int) -> None:
        """Keep the lines up to ``step`` finished steps, and go on after them."""
        try:
            kept = [line for line in self._lines(warn=True) if line["step"] <= step] if step else []
            text = "".join(json.dumps(line) + "\n" for line in (SCHEMA, *kept))
            files.replace(self._path, [text.encode("ascii")])
            self._file = open(self._path, "a", encoding="ascii")  # noqa: SIM115 (open as long as the run)
        except (OSError, RunError) as error:
            self._lost(error)

    def _lines(self, warn: bool) -> list[dict[str, Any]]:
        """The whole lines written so far, without the first; what a crash cut short ends the list."""
        out: list[dict[str, Any]] = []
        try:
            with open(self._path, encoding="ascii", errors="replace") as file:
                for text in file:
                    line = json.loads(text)
                    if isinstance(line, dict) and type(line.get("step")) is int:
                        out.append(line)
        except FileNotFoundError:
            pass
        except (ValueError, RecursionError):
            if warn:
                self._console.warn(f"{self._path} has a broken line: it is cut there")
        return out

    def passes_at(self, step: int) -> set[str]:
        """Names of the passes that have a line at ``step``."""
        with contextlib.suppress(OSError):
            return {
                line["pass"]
                for line in self._lines(warn=False)
                if line["step"] == step and isinstance(line.get("pass"), str)
            }
        return set()

    def add(self, line: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(line, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            self._lost(error)

    def _lost(self, error: Exception) -> None:
        self.close()
        self._console.warn(f"{self._path} cannot be written ({error}); the run goes on without it")

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


def step_line(step: int, result: Any, records: int, counters: Mapping[str, int], seconds: float) -> dict[str, Any]:
    """The log's object for a finished step; ``result`` is a loop.StepResult, ``seconds`` its wall time."""
    return {
        "step": step,
        "loss": number(result.loss),
        "metrics": _numbers(result.metrics),
        "lr": None if result.rate is None else number(result.rate),
        "grad_norm": number(result.grad_norm),
        "records": records,
        "counters": dict(counters),
        "seconds": round(seconds, 6),
    }


def pass_line(step: int, name: str, result: Any, seconds: float) -> dict[str, Any]:
    """The log's object for a pass after ``step`` finished steps; ``result`` is a loop.PassResult."""
    return {
        "step": step,
        "pass": name,
        "loss": number(result.loss),
        "metrics": _numbers(result.metrics),
        "batches": result.batches,
        "seconds": round(seconds, 6),
    }


def step_text(line: Mapping[str, Any], steps: int) -> str:
    """``step_line`` for people, of a run of ``steps`` steps."""
    rate = [] if line["lr"] is None else [f"lr {_short(line['lr'])}"]
    metrics = [f"{name} {_short(value)}" for name, value in line["metrics"].items()]
    parts = [
        f"step {line['step']}/{steps}",
        f"loss {_short(line['loss'])}",
        *metrics,
        f"grad_norm {_short(line['grad_norm'])}",
    ]
    return "  ".join([*parts, *rate, f"{line['seconds'] * 1e3:.1f} ms"])


def pass_text(line: Mapping[str, Any]) -> str:
    """``pass_line`` for people."""
    metrics = [f"{name} {_short(value)}" for name, value in line["metrics"].items()]
    return "  ".join([f"pass {line['pass']} at step {line['step']}", f"loss {_short(line['loss'])}", *metrics])


def _short(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


class Progress:
    """A bar on standard error when that is a terminal and lines are for people; otherwise nothing."""

    def __init__(self, console: Console, done: int, steps: int) -> None:
        self._bar: Any = None
        if console.quiet or console.as_json or not _terminal():
            return
        with contextlib.suppress(ImportError, OSError, ValueError):
            from tqdm import tqdm

            known = os.get_terminal_size(sys.stderr.fileno()).columns > 0  # some terminals do not say how wide they are
            self._bar = tqdm(
                total=steps,
                initial=done,
                unit="step",
                file=sys.stderr,
                dynamic_ncols=known,
                ncols=None if known else 80,
            )

    @property
    def shown(self) -> bool:
        return self._bar is not None

    def step(self, loss: Any) -> None:
        if self._bar is not None:
            with contextlib.suppress(OSError, ValueError):
                self._bar.set_postfix_str(f"loss {_short(loss)}", refresh=False)
                self._bar.update()

    def clear(self) -> None:
        """Take the bar off the line before something is printed."""
        if self._bar is not None:
            with contextlib.suppress(OSError, ValueError):
                self._bar.clear()

    def close(self) -> None:
        if self._bar is not None:
            with contextlib.suppress(OSError, ValueError):
                self._bar.close()
            self._bar = None


def _terminal() -> bool:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return False
