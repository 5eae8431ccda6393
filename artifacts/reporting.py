"""The runner's output: lines of text or JSON, and a progress bar. A failure of output never ends a training run."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from surroundings.streams import discard

from .base import canonical_json
from .base.canonical_json import number
from .base.clock import Clock
from .base.errors import printable

LOG = "metrics.jsonl"
PROGRESS_PERIOD = 0.2  # seconds between two updates of a terminal's progress line


def _numbers(values: Mapping[str, float]) -> dict[str, Any]:
    return {name: number(value) for name, value in values.items()}


class Console:
    """Lines on standard output, warnings on standard error. Output that fails (closed, or disk full) is stopped with
    one warning."""

    def __init__(self, quiet: bool = False, verbose: bool = False, as_json: bool = False) -> None:
        self.quiet, self.verbose, self.as_json = quiet, verbose, as_json
        self._dead = False

    def line(self, text: str, data: Mapping[str, Any], always: bool = False) -> None:
        """Print ``text`` on one line, or ``data`` as one JSON line with --output-format json."""
        self.lines([text], data, always)

    def lines(self, texts: Sequence[str], data: Mapping[str, Any], always: bool = False) -> None:
        """Print each of ``texts`` on its own line, or ``data`` as one JSON line."""
        if self.quiet and not always:
            return
        self._out(canonical_json.line(data) if self.as_json else "\n".join(map(printable, texts)))

    def _out(self, text: str) -> None:
        if self._dead:
            return
        try:
            print(text, flush=True)
        except (OSError, ValueError, UnicodeEncodeError) as error:
            self._dead = True
            discard(sys.stdout)
            self.warn(f"standard output is lost ({error}); the run goes on, and {LOG} has every step")

    def warn(self, text: str) -> None:
        self._to_stderr("warning", text, "warning: ")

    def detail(self, text: str) -> None:
        if self.verbose:
            self._to_stderr("detail", text)

    def _to_stderr(self, kind: str, text: str, before: str = "") -> None:
        """A line on standard error; a failure is ignored, since there is nowhere to report it."""
        with contextlib.suppress(OSError, ValueError):
            text = printable(text)
            print(canonical_json.line({kind: text}) if self.as_json else before + text, file=sys.stderr, flush=True)


def step_line(step: int, result: Any, records: int, counters: Mapping[str, int], seconds: float) -> dict[str, Any]:
    """The log's object for a finished step; ``result`` is a loop.step.StepResult, ``seconds`` its wall time."""
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
    """The log's object for a pass after ``step`` finished steps; ``result`` is a loop.step.PassResult."""
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
    """A bar on standard error if that is a terminal and output is text; otherwise none. Without a bar, or if it fails,
    the log's lines are printed."""

    def __init__(self, console: Console, done: int, steps: int, clock: Clock) -> None:
        self._bar: Any = None
        if not (console.quiet or console.as_json) and _terminal():
            with contextlib.suppress(Exception):  # whatever becomes of a bar, the run goes on
                self._bar = _bar(done, steps)
                self._bar._time = lambda: time.time() - clock.away  # tqdm computes the rate and the time left from it

    @property
    def shown(self) -> bool:
        return self._bar is not None

    def step(self, loss: Any) -> None:
        with self._bar_or_silence() as bar:
            bar.set_postfix_str(f"loss {_short(loss)}", refresh=False)
            bar.update()

    def clear(self) -> None:
        """Remove the bar from its line before something is printed."""
        with self._bar_or_silence() as bar:
            bar.clear()

    def close(self) -> None:
        with self._bar_or_silence() as bar:
            bar.close()
        self._bar = None

    @contextlib.contextmanager
    def _bar_or_silence(self) -> Iterator[Any]:
        """The bar; it is dropped if it fails."""
        try:
            yield _NoBar() if self._bar is None else self._bar
        except Exception:  # noqa: BLE001  (whatever becomes of a bar, the run goes on)
            self._bar = None


class _NoBar:
    """A bar that does nothing (null object)."""

    def set_postfix_str(self, text: str, refresh: bool) -> None: ...

    def update(self) -> None: ...

    def clear(self) -> None: ...

    def close(self) -> None: ...


def _bar(done: int, steps: int) -> Any:
    """tqdm's bar, made without the environment variables TQDM_*, which could disable it or make the import fail."""
    tqdm_variables = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("TQDM_")}
    try:
        from tqdm import tqdm
    finally:
        os.environ.update(tqdm_variables)
    width_known = os.get_terminal_size(sys.stderr.fileno()).columns > 0  # some terminals do not say how wide they are
    columns = None if width_known else 80
    return tqdm(
        total=steps, initial=done, unit="step", file=sys.stderr, dynamic_ncols=width_known, ncols=columns, disable=False
    )


@contextlib.contextmanager
def reading(console: Console, loader: str) -> Iterator[Callable[[int], None]]:
    """A function to call with the number of bytes read, which shows the total: on a terminal, with text output."""
    is_live, total, last_shown = not console.quiet and not console.as_json and _terminal(), 0, time.monotonic()

    def tick(size: int) -> None:
        nonlocal total, last_shown
        total, now = total + size, time.monotonic()
        if is_live and now - last_shown > PROGRESS_PERIOD:
            last_shown = now
            show(f"\rloader {loader}: {total / 2**20:.0f} MiB read")

    def show(text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            print(text, end="", file=sys.stderr, flush=True)

    start = last_shown
    try:
        yield tick
    finally:
        if last_shown != start:
            show("\r\033[K")


def _terminal() -> bool:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return False
