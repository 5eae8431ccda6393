"""The paths of a command line."""

from __future__ import annotations

import os

from surroundings import entry

from ..build.options import SHIPPED
from ..language import codes
from ..language.diagnostics import Code, UserError


def check_read(*paths: str | None) -> None:
    """E-READ for a relative path where the current folder has been deleted."""
    _check(paths, codes.READ_FILE)


def check_written(*paths: str | None) -> None:
    """E-IO-001, of a path that is written to."""
    _check(paths, codes.IO_WRITE)


def _check(paths: tuple[str | None, ...], code: Code) -> None:
    if gone := entry.lost(path for path in paths if path != SHIPPED):
        what = "the current folder has been deleted, and a path that begins there names nothing"
        raise UserError(code, None, what, where=gone, hint="give an absolute path")


def absolute(path: str | None) -> str | None:
    """Of a folder into which processes write that work elsewhere."""
    return path if path is None else os.path.abspath(path)
