"""Room for temporary files, looked for before LLVM or the linker writes one."""

from __future__ import annotations

import errno
import os
import shutil

MIN_FREE_BYTES = 32 * 2**20  # bytes for one library and its objects


def require_free_space(folder: str) -> None:
    """OSError unless ``folder`` has ROOM: where LLVM cannot write its object, it ends the whole process."""
    if shutil.disk_usage(folder).free < MIN_FREE_BYTES:
        message = f"building needs {MIN_FREE_BYTES // 2**20} MiB here; TMPDIR names another place"
        raise OSError(errno.ENOSPC, message, os.path.dirname(folder))
