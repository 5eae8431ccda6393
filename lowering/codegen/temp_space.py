"""Room for temporary files, looked for before LLVM or the linker writes one."""

from __future__ import annotations

import errno
import os
import shutil

ROOM = 32 * 2**20  # bytes for one library and its objects


def need_room(folder: str) -> None:
    """OSError unless ``folder`` has ROOM: where LLVM cannot write its object, it ends the whole process."""
    if shutil.disk_usage(folder).free < ROOM:
        what = f"building needs {ROOM // 2**20} MiB here; TMPDIR names another place"
        raise OSError(errno.ENOSPC, what, os.path.dirname(folder))
