"""What the command line says: results on standard output, errors and warnings on standard error, for people or as lines
of JSON."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import Any

from surroundings.json_line import line as line
from surroundings.streams import discard

from ..language.diagnostics import UserError, printable

EXIT_BUG = 70


def complain(what: str, status: int, json_too: bool, code: str = "", hint: str = "", where: str = "") -> int:
    """``error[CODE]: where: what (hint)`` on standard error, or the same as data; the exit status."""
    parts = f"error[{code}]: " if code else "", f"{where}: " if where else "", what, f" ({hint})" if hint else ""
    data = {"code": code, "message": what, "hint": hint, "where": where}
    print(line(data) if json_too else printable("".join(parts)), file=sys.stderr)
    return status


def warn(text: str, json_too: bool) -> None:
    """A warning on standard error."""
    print(line({"warning": text}) if json_too else f"warning: {printable(text)}", file=sys.stderr, flush=True)


def show(errors: Sequence[UserError], json_too: bool) -> int:
    """Every error on stderr; the status of the first."""
    tell(errors, json_too)
    if len(errors) > 1 and not json_too:
        print(f"{len(errors)} errors", file=sys.stderr)
    return errors[0].code.exit


def tell(found: Sequence[UserError], json_too: bool) -> None:
    """Errors or warnings on standard error."""
    for each in found:
        print(line(each.to_json()) if json_too else str(each), file=sys.stderr)


def unexpected(error: Exception, json_too: bool) -> int:
    """A coded error of the artifact package, a failed write, or our bug."""
    code: Any = getattr(error, "code", None)
    to_json: Any = getattr(error, "to_json", None)
    if code is not None and hasattr(code, "exit"):
        print(line(to_json()) if json_too and to_json else str(error), file=sys.stderr)
        return code.exit
    if os.environ.get("SEXPGPU_DEBUG") == "1":
        raise error
    if isinstance(error, OSError):
        if error.errno == errno.ENOSPC and error.filename is None:
            discard(sys.stdout)
        what, where = str(error.strerror or error), str(error.filename or "output")
        return complain(what, 5, json_too, "E-IO-001", where=where)
    first = str(error).splitlines()[0] if str(error) else ""
    hint = "please report; SEXPGPU_DEBUG=1 shows the traceback"
    return complain(f"internal error: {type(error).__name__}: {first}", EXIT_BUG, json_too, hint=hint)
