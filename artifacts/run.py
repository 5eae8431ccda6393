"""The command ``sexpgpu-run``: parses options and runs a session; each error is one line and an exit status.

Heavy modules are imported late.
"""

from __future__ import annotations

import os
import sys

if (
    __name__ == "__main__"
    and not sys.flags.safe_path
    and sys.path[0] != os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
):
    del sys.path[0]  # python -m puts the current folder first, and what lies there is not ours to import

import contextlib
import traceback
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NoReturn

from surroundings import entry
from surroundings.streams import discard, standard

from .base import canonical_json
from .base.errors import DEVICE_LOST, ENV_LIMIT, ENV_PACKAGE, IO_READ, IO_WRITE, RunError, of_os_error, printable
from .options import Options, parse

INTERNAL, BROKEN_PIPE = 70, 141


def main(argv: Sequence[str] | None = None, device: Callable[..., Any] | None = None) -> int:
    """The exit status. ``device``: (artifact, threads) -> Device, in place of the compiled library."""
    entry.enter()
    with standard():
        return _main(sys.argv[1:] if argv is None else argv, device)


def _main(argv: Sequence[str], device: Callable[..., Any] | None) -> int:
    as_json = "--output-format=json" in argv or ("--output-format", "json") in pairwise(argv)
    try:
        options = parse(argv)
    except SystemExit as exit_request:  # --help and --version have been printed
        return _flush(int(exit_request.code or 0), as_json)
    except RunError as error:
        return _tell(error, as_json)
    return _flush(_guarded(options, device), as_json)


def _guarded(options: Options, device: Callable[..., Any] | None) -> int:
    """Run the session; an exception becomes one line."""
    from .signals import Stop, Stopped

    try:
        with Stop(options.as_json) as stop:
            return _session(options, device, stop)
    except Stopped as stopped:
        message = f"stopped by {stopped} before the first step: nothing was to be saved"
        _to_stderr(canonical_json.line({"warning": message}) if options.as_json else message)
        return stopped.exit
    except Exception as error:
        if os.environ.get("SEXPGPU_DEBUG") == "1":
            traceback.print_exc()
        run_error = as_run_error(error)
        status = _tell(run_error, options.as_json) if run_error else _internal(error, options.as_json)
        if run_error and run_error.code is DEVICE_LOST:
            _end(status, options.as_json)
        return status


def _end(status: int, as_json: bool) -> NoReturn:
    """Exit without cleanup: freeing the resources of a failed GPU would abort the process with another status."""
    os._exit(_flush(status, as_json))


def _session(options: Options, device: Callable[..., Any] | None, stop: Any) -> int:
    if lost_path := entry.lost((options.artifact, options.out, options.data, options.fork)):
        what = "the current folder has been deleted, and a path that begins there names nothing"
        raise RunError(IO_READ, what, lost_path, "give an absolute path")
    from . import session
    from .reporting import Console

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
    _to_stderr(canonical_json.line({"error": error.to_json()}) if as_json else str(error))
    return error.code.exit


def _internal(error: Exception, as_json: bool) -> int:
    frames = traceback.extract_tb(error.__traceback__)
    location = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    what = f"internal error: {type(error).__name__}: {error}{location}"
    hint = "please report it (SEXPGPU_DEBUG=1 shows the traceback)"
    data = {"error": {"code": "", "message": what, "hint": hint, "where": ""}}
    _to_stderr(canonical_json.line(data) if as_json else printable(f"{what}; {hint}"))
    return INTERNAL


def _to_stderr(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # there is nowhere to report it; the exit status still does
        print(text, file=sys.stderr, flush=True)


def _flush(status: int, as_json: bool) -> int:
    """``status``, unless flushing the output fails: 141 for a closed pipe, E-IO-010 for a full device."""
    if sys.stdout is None:  # it came closed
        return status
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)
        return status or BROKEN_PIPE
    except (OSError, ValueError) as error:
        discard(sys.stdout)
        return status or _tell(RunError(IO_WRITE, str(error), "standard output"), as_json)
    return status


if __name__ == "__main__":
    sys.exit(main())
