"""``sexpgpu-run``: options, then a session; every error one line and its status. Heavy modules come late."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from .errors import DEVICE_LOST, ENV_LIMIT, ENV_PACKAGE, IO_WRITE, RunError, of_os_error, printable
from .options import Options, parse

INTERNAL, BROKEN_PIPE = 70, 141


def main(argv: Sequence[str] | None = None, device: Callable[..., Any] | None = None) -> int:
    """The exit status. ``device``: (artifact, threads) -> Device, in place of the compiled library."""
    argv = sys.argv[1:] if argv is None else argv
    _open_standard()
    as_json = "--output-format=json" in argv or "json" in argv
    try:
        options = parse(argv)
    except SystemExit as done:  # --help and --version have been printed
        return _flush(int(done.code or 0), as_json)
    except RunError as error:
        return _tell(error, as_json)
    return _flush(_guarded(options, device), as_json)


def _open_standard() -> None:
    """Give the descriptors 0 to 2 a place if they came closed: else the next file opened would take one of them, and
    whatever a library prints would land in it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one


def _guarded(options: Options, device: Callable[..., Any] | None) -> int:
    """Run the session; what it raises becomes one line."""
    from .signals import Stop, Stopped

    try:
        with Stop() as stop:
            return _session(options, device, stop)
    except Stopped as stopped:
        print(f"stopped by {stopped} before the first step: nothing was to be saved", file=sys.stderr)
        return stopped.exit
    except Exception as error:
        if os.environ.get("SEXPGPU_DEBUG") == "1":
            traceback.print_exc()
        known = as_run_error(error)
        status = _tell(known, options.as_json) if known else _internal(error)
        if known and known.code is DEVICE_LOST:
            _end(status, options.as_json)
        return status


def _end(status: int, as_json: bool) -> NoReturn:
    """End the process as it is: giving back what a GPU holds that has failed would abort it, with another status."""
    os._exit(_flush(status, as_json))


def _session(options: Options, device: Callable[..., Any] | None, stop: Any) -> int:
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # NumPy only moves bytes here; starting its pools takes longer than a step
    from . import session
    from .report import Console

    console = Console(options.quiet, options.verbose, options.as_json)
    return session.run(options, console, stop, device)


def as_run_error(error: Exception) -> RunError | None:
    """The coded error of ``error``; None when it is our bug."""
    if isinstance(error, RunError):
        return error
    if isinstance(error, MemoryError):
        return RunError(ENV_LIMIT, "out of memory")
    if isinstance(error, OSError):
        return of_os_error(error)
    if isinstance(error, ImportError):
        return RunError(ENV_PACKAGE, f"cannot import {error.name or 'a package'}: {str(error).strip().splitlines()[0]}")
    if isinstance(error, RuntimeError) and "new thread" in str(error):
        return RunError(ENV_LIMIT, "no more threads can be started")
    return None


def _tell(error: RunError, as_json: bool) -> int:
    _to_stderr(json.dumps({"error": error.to_json()}) if as_json else str(error))
    return error.code.exit


def _internal(error: Exception) -> int:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    _to_stderr(
        printable(
            f"internal error: {type(error).__name__}: {error}{place}; please report it "
            "(SEXPGPU_DEBUG=1 shows the traceback)"
        )
    )
    return INTERNAL


def _to_stderr(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody is left to tell; the exit status still says it
        print(text, file=sys.stderr, flush=True)


def _flush(status: int, as_json: bool) -> int:
    """``status``, unless what was printed could not be: 141 for a closed pipe, E-IO-010 for a full device."""
    if sys.stdout is None:  # it came closed
        return status
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard()
        return status or BROKEN_PIPE
    except (OSError, ValueError) as error:
        _discard()
        return status or _tell(RunError(IO_WRITE, str(error), "standard output"), as_json)
    return status


def _discard() -> None:
    from .report import discard

    discard(sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
