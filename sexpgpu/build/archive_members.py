"""The user's files in an artifact: the run file with its includes, and the data of loaders with ``:embed``."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from ..language import codes
from ..language.diagnostics import UserError
from ..phases.plan import Plan
from ..phases.run_settings import Loader

LONGEST = 40  # characters of a part: a member's whole name may have 100


def source_members(plan: Plan) -> dict[str, bytes]:
    """``source/NAME`` -> text, the run file first; a folder above the run file's is written ``up``."""
    out: dict[str, bytes] = {}
    for name, source in plan.run.sources:
        parts = [safe("up" if part == ".." else part) for part in PurePosixPath(name).parts]
        member = "/".join(["source", *parts])
        if member in out or len(member) > 100:
            member = f"source/{len(out)}-{parts[-1]}"
        out[member] = source.text.encode()
    return out


def data_members(plan: Plan) -> dict[str, dict[str, bytes]]:
    """Loader -> member -> bytes, in the order of its sources; E-DATA-001 where a file cannot be read."""
    loaders = [loader for loader in plan.settings.loaders.values() if loader.embed]
    return {loader.name: embedded(Path(plan.run.path).parent, loader) for loader in loaders}


def embedded(folder: Path, loader: Loader) -> dict[str, bytes]:
    """Member -> bytes of one loader's sources, in order; of a folder, the .npy files of the fields, by name, and not
    what else lies there. E-DATA-001."""
    out: dict[str, bytes] = {}
    for n, source in enumerate(loader.sources):
        path = folder / source
        prefix = f"data/{safe(loader.name)}/{n}-{safe(path.name)}"
        names = sorted(f"{name}.npy" for name in loader.fields) if path.is_dir() else []
        columns = {f"{prefix}/{column(path / name, loader)}": path / name for name in names}
        out.update((member, read(file, loader)) for member, file in (columns or {prefix: path}).items())
    return out


def column(path: Path, loader: Loader) -> str:
    """The name of a file that is one field, which the runner must find as it is."""
    if safe(path.name) != path.name:
        what = f"{path} cannot be embedded: its name has characters that a member's may not, or too many"
        raise UserError(codes.DATA_SOURCE, loader.span, what, hint="put the fields in one .npz")
    return path.name


def read(path: Path, loader: Loader) -> bytes:
    """The bytes of ``path``; E-DATA-001, at the loader, where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as fault:
        what = f"{path} cannot be embedded: {fault.strerror}"
        hint = "make the data first, or leave :embed out"
        raise UserError(codes.DATA_SOURCE, loader.span, what, hint=hint) from None


def safe(part: str) -> str:
    """``part`` in the characters that a member's name may have; its end is kept, for the suffix says what it is."""
    return re.sub(r"[^A-Za-z0-9_.+-]", "_", part)[-LONGEST:].lstrip(".-") or "_"
