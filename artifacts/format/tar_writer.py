"""Writes an artifact atomically. It overwrites only artifacts, and never an input."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable, Mapping

import attrs

from ..base import atomic_files
from ..base.errors import (
    ART_NAME,
    ART_SIZE,
    CLI_OUTPUT,
    IO_WRITE,
    RunError,
    shown,
)
from .manifest import File, Manifest
from .manifest_reader import read_manifest
from .tarball import BLOCK, DIGEST, END, MANIFEST, MAX_MEMBER, MAX_MEMBERS, RESERVED, digest_line, header, name_allowed


def _padding(size: int) -> bytes:
    return bytes(-size % BLOCK)


def write(
    path: str, manifest: Manifest, members: Mapping[str, bytes], force: bool = False, inputs: Iterable[str] = ()
) -> str:
    """Write the artifact of ``manifest`` (its ``files`` are filled in here) and ``members``; returns its hash, in hex.

    Atomic: a temporary file beside ``path`` is synced and renamed. An existing ``path`` is refused (E-CLI-005) unless
    ``force``, and even then when it is one of ``inputs`` or no artifact.
    """
    names = sorted(members)
    for name in names:
        if not name_allowed(name) or name in RESERVED:
            raise RunError(ART_NAME, f"{shown(name)} cannot be a member's name")
        if len(members[name]) > MAX_MEMBER:
            raise RunError(ART_SIZE, f"{shown(name)} has {len(members[name])} bytes; the limit is {MAX_MEMBER}")
    if len(names) > MAX_MEMBERS:
        raise RunError(ART_SIZE, f"{len(names)} members; the limit is {MAX_MEMBERS}")
    listed = tuple(File(name, len(members[name]), hashlib.sha256(members[name]).hexdigest()) for name in names)
    text = attrs.evolve(manifest, files=listed).to_bytes()
    read_manifest(text, path)  # what we write, we can read
    check_output(path, force, inputs)
    parts = []
    for name, data in ((MANIFEST, text), (DIGEST, digest_line(text)), *((name, members[name]) for name in names)):
        parts += [header(name, len(data)), data, _padding(len(data))]
    atomic_files.replace(path, [*parts, END])
    return hashlib.sha256(text).hexdigest()


def check_output(path: str, force: bool, inputs: Iterable[str]) -> None:
    """RunError where ``write`` would refuse ``path``: asked before the minutes that go into what is to be written."""
    folder = os.path.dirname(path) or os.curdir
    if os.path.isdir(path):
        raise RunError(
            IO_WRITE, "the output is a folder", path, f"name a file in it, such as {os.path.join(path, 'run.tar')}"
        )
    if not os.path.isdir(folder):
        raise RunError(IO_WRITE, f"the folder {folder} is not there", path, "make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise RunError(
            IO_WRITE, f"the folder {folder} cannot be written to", path, "choose another one, or mend its permissions"
        )
    if not os.path.lexists(path):
        return
    if any(os.path.exists(each) and os.path.samefile(each, path) for each in inputs if os.path.exists(path)):
        raise RunError(CLI_OUTPUT, "the output is one of the inputs", path, "choose another path")
    if not force:
        raise RunError(CLI_OUTPUT, "the output exists already", path, "give --force to replace it")
    if not os.path.isfile(path) or not _starts_like_artifact(path):
        what = "the output exists and is not an artifact: it is not replaced"
        raise RunError(CLI_OUTPUT, what, path, "choose another path, or remove it first")


def _starts_like_artifact(path: str) -> bool:
    with io.open(path, "rb") as file:  # noqa: UP020 (open is this module's own)
        return file.read(len(MANIFEST) + 1) == MANIFEST.encode() + b"\0"
