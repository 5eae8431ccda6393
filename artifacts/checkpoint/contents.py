"""The contents of a checkpoint, and how it is read. ``store`` decides when one is written, chosen and removed.

step-000000100/manifest.json         the cursor, whose run it is, and the size and sha256 of the other files
               params.safetensors    every parameter, by name
               optim.safetensors     every optimizer entry, PARAM/KEY
               info.json             host, time, process: under no digest, never read back
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
from attrs import frozen

from ..base import atomic_files as files
from ..base import canonical_json, safetensors_io
from ..base.errors import CKPT_FIT, CKPT_VERSION, RunError, shown
from ..base.json_classes import build, plain
from ..format.manifest import File, Manifest
from ..format.manifest_checks import MAX_RECORDS
from .cursor import Cursor, at
from .identity import Changed, Fingerprint, compare, compare_data, mismatch

FORMAT, VERSION = "sexpgpu-checkpoint", 1
MANIFEST, PARAMS, OPTIM, INFO = "manifest.json", "params.safetensors", "optim.safetensors", "info.json"
FILES = frozenset((MANIFEST, PARAMS, OPTIM, INFO))
Arrays = Mapping[str, np.ndarray]


class Torn(Exception):
    """The checkpoint is incomplete or damaged; the message says where."""


@frozen
class Entry:
    """A checkpoint's manifest. ``data``: loader -> [[file name, sha256], ...] of the training data; ``origin``: the
    sha256 of the weights the run was forked from, or empty."""

    run_id: str
    origin: str
    artifact: str
    seed: int
    identity: dict[str, str]
    data: dict[str, tuple[tuple[str, ...], ...]]
    cursor: Cursor
    files: tuple[File, ...] = ()
    format: str = FORMAT
    version: int = VERSION

    def to_bytes(self) -> bytes:
        return canonical_json.dumps(plain(self))


@frozen(eq=False)
class Loaded:
    """A whole checkpoint in memory. ``path``: its directory."""

    path: str
    entry: Entry
    params: Arrays
    optim: Arrays

    @property
    def params_sha256(self) -> str:
        return next(f.sha256 for f in self.entry.files if f.path == PARAMS)


def pack(entry: Entry, params: Arrays, optim: Arrays) -> tuple[Entry, dict[str, list[Any]]]:
    """(``entry`` with its files, file name -> bytes in parts) of a checkpoint. The parts are the arrays themselves."""
    contents = {OPTIM: safetensors_io.parts(optim), PARAMS: safetensors_io.parts(params)}
    listed = tuple(File(name, sum(map(len, data)), _sha256(data)) for name, data in contents.items())
    return attrs.evolve(entry, files=listed), contents


def _sha256(parts: list[Any]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def read_entry(path: str) -> tuple[Entry, bytes]:
    """The manifest of the checkpoint in directory ``path``, and its bytes. Torn when unreadable; E-CKPT-004 when of
    another version."""
    data = _read(os.path.join(path, MANIFEST), canonical_json.MAX_BYTES)
    try:
        value = canonical_json.loads_canonical(data)
        _check_version(value, path)
        entry = build(Entry, value)
        if sorted(f.path for f in entry.files) != [OPTIM, PARAMS]:
            raise canonical_json.Malformed("its files are not params and optim")
    except canonical_json.Malformed as error:
        raise Torn(f"{MANIFEST}: {error}") from None
    return entry, data


def _check_version(value: Any, path: str) -> None:
    if not isinstance(value, dict) or value.get("format") != FORMAT or type(value.get("version")) is not int:
        raise canonical_json.Malformed(f"it is not a {FORMAT}")
    if value["version"] != VERSION:
        newer = value["version"] > VERSION
        raise RunError(
            CKPT_VERSION,
            f"the checkpoint's format is version {value['version']}, this runner reads {VERSION}",
            path,
            "install a newer sexpgpu-run" if newer else "resume it with the runner that wrote it",
        )


def _read(path: str, limit: int) -> bytes:
    """The bytes of the plain file ``path``; Torn when it is missing, odd or larger than ``limit``."""
    name = os.path.basename(path)
    try:
        size = os.lstat(path).st_size
        if size > limit:
            raise Torn(f"{name} has {size} bytes, which is more than {limit}")
        return files.read_plain(path, limit)
    except OSError as error:
        raise Torn(f"{name}: {error.strerror}") from None


def load(path: str) -> Loaded:
    """The checkpoint in directory ``path``, every byte verified; Torn when it is not whole."""
    entry, _ = read_entry(path)
    arrays = {}
    for file in entry.files:
        data = _read(os.path.join(path, file.path), file.size)
        if len(data) != file.size:
            raise Torn(f"{file.path} is cut short at byte {len(data)} of {file.size}")
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise Torn(f"{file.path} does not have the sha256 listed")
        try:
            arrays[file.path] = safetensors_io.load(data)
        except safetensors_io.BadTensors as error:
            raise Torn(f"{file.path}: {error}") from None
    return Loaded(path, entry, arrays[PARAMS], arrays[OPTIM])


def check_belongs(
    loaded: Loaded, manifest: Manifest, identity: Mapping[str, str], data: Fingerprint, changed: Changed = lambda _: ""
) -> None:
    """E-CKPT-003 unless the checkpoint was made by this run; E-CKPT-007 unless its tensors are the run's; Torn unless
    it stands where the run is after so many steps."""
    entry, where = loaded.entry, loaded.path
    if entry.seed != manifest.run.seed:
        raise mismatch("seed", entry.seed, manifest.run.seed, where, changed("run"))
    if entry.identity.get("data") != identity["data"]:
        others = {name: value for name, value in identity.items() if name != "data"}
        compare(entry.identity, others, where, changed)
        compare_data(entry.data, data, where)
    compare(entry.identity, identity, where, changed)
    check_fit(loaded.params, manifest.parameters, where)
    check_fit(loaded.optim, manifest.optimizer, where)
    if entry.cursor.step < 0 or entry.cursor.records > MAX_RECORDS:
        raise Torn(f"{MANIFEST}: its cursor is out of range")
    check_cursor(entry.cursor, at(manifest, entry.cursor.step))


def check_cursor(cursor: Cursor, wanted: Cursor) -> None:
    """Torn unless the cursor is the one ``wanted`` after its step: all of it follows from the step, but for the totals
    of the counters."""
    for key, value in plain(wanted).items():
        have = getattr(cursor, key)
        if key == "counters":
            value, have = sorted(value), sorted(have)
        if have != value:
            raise Torn(f"{MANIFEST}: its cursor has {key} {shown(have)}, after step {cursor.step} it is {shown(value)}")


def check_fit(arrays: Arrays, wanted: Any, where: str) -> None:
    """E-CKPT-007 unless ``arrays`` are exactly the ``wanted`` tensors: nothing missing, nothing more."""
    want = {t.name: (t.dtype, t.shape) for t in wanted}
    have = {name: (safetensors_io.dtype_name(a), a.shape) for name, a in arrays.items()}
    faults = [f"{name} is missing" for name in want if name not in have]
    faults += [f"{name} is not in the run" for name in have if name not in want]
    faults += [
        f"{name} is {_type(have[name])}, the run has {_type(want[name])}"
        for name in want
        if name in have and have[name] != want[name]
    ]
    if faults:
        more = f" and {len(faults) - 10} more" if len(faults) > 10 else ""
        raise RunError(CKPT_FIT, "; ".join(faults[:10]) + more, where)


def _type(kind: tuple[str, tuple[int, ...]]) -> str:
    return f"{kind[0]}[{' '.join(map(str, kind[1]))}]"
