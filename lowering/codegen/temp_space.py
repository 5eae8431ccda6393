"""Checks the free space for temporary files before LLVM or the linker writes one."""

from __future__ import annotations

import errno
import os
import shutil

MIN_FREE_BYTES = 32 * 2**20  # for one library and its objects; no measurement on record


def require_free_space(folder: str) -> None:
    """OSError unless ``folder`` has MIN_FREE_BYTES free: LLVM ends the whole process if it cannot write its object."""
    if shutil.disk_usage(folder).free < MIN_FREE_BYTES:
        message = f"building needs {MIN_FREE_BYTES // 2**20} MiB here; TMPDIR names another place"
        raise OSError(errno.ENOSPC, message, os.path.dirname(folder))
