"""The checkpoints of a run directory: published atomically, never overwritten, pruned once the next is durable.

A checkpoint is written under a temporary name, its files and directory are synced, it is renamed, and the parent is
synced. Whatever the moment of a crash, names ``step-NNNNNNNNN`` are complete checkpoints, and a temporary name never
parses as one.

Symbolic links are never followed here, neither to read a checkpoint nor to remove one: the target belongs to others.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable
from typing import Any

from attrs import frozen

from ..base import atomic_files
from ..base.errors import CKPT_EXISTS, CKPT_NONE, CKPT_TORN, IO_SPACE, IO_WRITE, RunError, of_os_error
from .contents import FILES, INFO, MANIFEST, Arrays, Entry, Loaded, Torn, check_cursor, load, pack, read_entry

RESUME = "check --out, or start without --resume"
FOLDER = "checkpoints"
METADATA_BYTES = 2**20  # beside the tensors: manifest, info, directories
_STEP = re.compile(r"step-([0-9]{9,18})")
_TEMPORARY = re.compile(r"\.tmp-[0-9]{9,18}-[0-9]+-[0-9a-f]{8}")


def step_name(step: int) -> str:
    """A checkpoint's directory: ``step-000000120``."""
    return f"step-{step:09d}"


@frozen
class Store:
    """``folder`` is DIR/checkpoints; ``keep``: how many checkpoints stay; ``warn`` reports what is not fatal."""

    folder: str
    keep: int
    warn: Callable[[str], None]

    def path(self, step: int) -> str:
        return os.path.join(self.folder, step_name(step))

    def steps(self) -> list[int]:
        """Steps that have a published directory, or a link in the place of one, oldest first."""
        published = []
        for name in self._names():
            match = _STEP.fullmatch(name)
            if match and name == step_name(int(match[1])) and self._is_place(name):
                published.append(int(match[1]))
        return sorted(published)

    def _is_place(self, name: str) -> bool:
        path = os.path.join(self.folder, name)
        return os.path.islink(path) or os.path.isdir(path)

    def foreign_names(self) -> list[str]:
        """Names that are neither checkpoints nor temporary: they are not touched."""
        published = {step_name(step) for step in self.steps()}
        others = (name for name in self._names() if name not in published)
        return sorted(name for name in others if not _TEMPORARY.fullmatch(name) or not self._is_own(name))

    def _is_own(self, name: str) -> bool:
        path = os.path.join(self.folder, name)
        return os.path.isdir(path) and not os.path.islink(path)

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise of_os_error(error, self.folder) from None

    def prepare(self, nbytes: int, locked: bool) -> None:
        """Before the first step: the folder exists, can be written, has room for ``nbytes``; stale leftovers go."""
        self.check_place()
        atomic_files.make_directory(self.folder)
        if locked:
            self._sweep()
        try:
            probe = self._temporary(0)
            os.mkdir(probe)
            os.rmdir(probe)
        except OSError as error:
            raise of_os_error(error, self.folder) from None
        self.check_space(nbytes)

    def check_place(self) -> None:
        """E-IO-010 where the folder is a symbolic link: the lock is on the run's directory, and not on what another run
        may keep its checkpoints in, too."""
        if os.path.islink(self.folder):
            raise RunError(IO_WRITE, "it is a symbolic link", self.folder, "let --out name the folder that it leads to")

    def check_space(self, nbytes: int) -> None:
        free = atomic_files.free_bytes(self.folder)
        if free < nbytes + METADATA_BYTES:
            raise RunError(
                IO_SPACE, f"a checkpoint needs {nbytes + METADATA_BYTES} bytes, {free} are free", self.folder
            )

    def _temporary(self, step: int) -> str:
        return os.path.join(self.folder, f".tmp-{step:09d}-{os.getpid()}-{secrets.token_hex(4)}")

    def _sweep(self) -> None:
        """Remove the leftovers of killed processes; this process holds the lock, so no other one is writing here."""
        for name in filter(_TEMPORARY.fullmatch, self._names()):
            path = os.path.join(self.folder, name)
            with contextlib.suppress(OSError):
                if self._is_own(name):
                    atomic_files.remove_flat(path, FILES)
                elif os.path.islink(path) and not os.path.exists(path):  # a link to what has gone
                    os.unlink(path)

    def save(self, entry: Entry, params: Arrays, optim: Arrays) -> str:
        """Publish a checkpoint; its path. On failure (E-IO) only the temporary name was touched, and it is gone."""
        listed, contents = pack(entry, params, optim)
        manifest = listed.to_bytes()
        path = self.path(entry.cursor.step)
        if self._is_published(entry, manifest):
            return path
        self.check_space(sum(file.size for file in listed.files))
        temporary = self._temporary(entry.cursor.step)
        try:
            os.mkdir(temporary)
            for name, parts in (*contents.items(), (INFO, [_info()]), (MANIFEST, [manifest])):
                atomic_files.write_new(os.path.join(temporary, name), parts)
            atomic_files.sync_directory(temporary)
            os.rename(temporary, path)
            atomic_files.sync_directory(self.folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                atomic_files.remove_flat(temporary, FILES)
            raise of_os_error(error, path) from None
        self._prune(entry)
        return path

    def _is_published(self, entry: Entry, manifest: bytes) -> bool:
        """Whether this very checkpoint is published. A torn one is moved aside; another whole one is E-CKPT-005."""
        path = self.path(entry.cursor.step)
        if not os.path.lexists(path):
            return False
        try:
            old = self._load(entry.cursor.step)
            if old.entry.run_id == entry.run_id:
                check_cursor(old.entry.cursor, entry.cursor)
        except Torn as torn:
            aside = f"{path}.torn-{secrets.token_hex(4)}"
            os.rename(path, aside)
            self.warn(f"{path} is not whole ({torn}); it is now {aside}")
            return False
        if old.entry.to_bytes() != manifest:
            raise RunError(CKPT_EXISTS, "a checkpoint of this step exists with other bytes", path)
        return True

    def _prune(self, entry: Entry) -> None:
        """Keep the newest ``keep`` checkpoints of this run up to the one just saved; never touch another run's."""
        own_steps = [step for step in self.steps() if step <= entry.cursor.step and self._run_id(step) == entry.run_id]
        for step in own_steps[: -max(2, self.keep)]:
            doomed = self._temporary(step)
            try:
                os.rename(self.path(step), doomed)  # from here on no reader sees it as a checkpoint
                atomic_files.remove_flat(doomed, FILES)
            except OSError as error:
                self.warn(f"{self.path(step)} cannot be removed: {error.strerror}")

    def _run_id(self, step: int) -> str | None:
        try:
            return read_entry(self._own(step))[0].run_id
        except (Torn, RunError):
            return None

    def _own(self, step: int) -> str:
        """The directory of the step's checkpoint; Torn where a link stands in its place."""
        path = self.path(step)
        if os.path.islink(path):
            raise Torn("it is a symbolic link, which is not followed")
        return path

    def _load(self, step: int) -> Loaded:
        """The step's checkpoint, every byte verified; Torn when it is not whole, or of another step."""
        loaded = load(self._own(step))
        if loaded.entry.cursor.step != step:
            raise Torn(f"it is a checkpoint of step {loaded.entry.cursor.step}")
        return loaded

    def newest(self, strict: bool, look: Callable[[Loaded], None] = lambda _: None) -> Loaded:
        """The newest whole checkpoint. E-CKPT-001 without any; one that is torn is passed over with a warning
        (``strict``: E-CKPT-002); E-CKPT-002 with the list when none is whole. ``look`` may find one torn, too."""
        steps = self.steps()
        if not steps:
            raise RunError(CKPT_NONE, "there is no checkpoint to resume from", self.folder, RESUME)
        reasons = []
        for step in reversed(steps):
            try:
                loaded = self._load(step)
                look(loaded)
                return loaded
            except Torn as torn:
                if strict:
                    raise RunError(
                        CKPT_TORN, str(torn), self.path(step), "without --strict an older one is taken"
                    ) from None
                reasons.append(f"{step_name(step)}: {torn}")
                self.warn(f"{self.path(step)} is not whole ({torn}): passed over")
        raise RunError(CKPT_TORN, "no checkpoint is whole: " + "; ".join(reasons), self.folder)


def _info() -> bytes:
    """Who wrote the checkpoint: for people, not covered by a digest."""
    info: dict[str, Any] = {"host": os.uname().nodename, "pid": os.getpid(), "time": int(time.time())}
    return (json.dumps(info, sort_keys=True) + "\n").encode()


def find(folder: str, strict: bool, warn: Callable[[str], None]) -> Loaded:
    """The checkpoint to fork from: ``folder`` is a run directory (its newest whole one) or one checkpoint."""
    if os.path.isfile(os.path.join(folder, MANIFEST)):
        try:
            return load(folder)
        except Torn as torn:
            raise RunError(CKPT_TORN, str(torn), folder) from None
    store = Store(os.path.join(folder, FOLDER), 2, warn)
    if not store.steps():
        hint = "--fork takes the directory of a run, or of one checkpoint"
        raise RunError(CKPT_NONE, "there is no checkpoint to fork from", folder, hint)
    return store.newest(strict)
