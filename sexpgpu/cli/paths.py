"""The paths of a command line."""

from __future__ import annotations

import argparse
import os

from surroundings import entry

from ..build.tuning_records import SHIPPED
from ..language import codes
from ..language.diagnostics import UserError

READ, WRITTEN = ("file", "artifact", "other", "runtime", "records"), ("output", "out", "dump")


def settle(options: argparse.Namespace) -> None:
    """UserError for a relative path where the current folder has been deleted. A folder in which processes write that
    work elsewhere becomes absolute."""
    for names, code in ((READ, codes.READ_FILE), (WRITTEN, codes.IO_WRITE)):
        given = (getattr(options, name, None) for name in names)
        if gone := entry.lost(path for path in given if path != SHIPPED):
            what = "the current folder has been deleted, and a path that begins there names nothing"
            raise UserError(code, None, what, where=gone, hint="give an absolute path")
    if getattr(options, "dump", None):
        options.dump = os.path.abspath(options.dump)
