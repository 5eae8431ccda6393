"""Which run a checkpoint belongs to, component by component, so that a refusal names what changed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..base import canonical_json
from ..base.errors import CKPT_IDENTITY, RunError
from ..base.json_classes import plain
from ..format.manifest import Manifest

Fingerprint = Mapping[str, Sequence[Sequence[str]]]
Changed = Callable[[str], str]  # component -> a text that says what changed, or ""


def components(manifest: Manifest, data: Fingerprint) -> dict[str, str]:
    """The artifact's components; the data's covers the loaders' forms and the bytes of the files read."""
    out = dict(plain(manifest.run.identity))
    out["data"] = with_files(out["data"], data)
    return out


def with_files(declared: str, data: Fingerprint) -> str:
    """The data's component: a digest of the loaders' declarations and the bytes of the files read."""
    digests = {loader: [digest for _, digest in files] for loader, files in data.items()}
    return digest_of({"declared": declared, "files": digests})


def digest_of(value: Any) -> str:
    """sha256, in hex, of the canonical JSON of ``value``."""
    return hashlib.sha256(canonical_json.dumps(value)).hexdigest()


def run_id(identity: Mapping[str, str], seed: int, origin: str) -> str:
    """The name of a trajectory: runs with one id make the same checkpoints. ``origin``: sha256 of forked weights."""
    return digest_of({"identity": dict(identity), "seed": seed, "origin": origin})[:16]


def compare(checkpoint: Mapping[str, str], run: Mapping[str, str], where: str, changed: Changed = lambda _: "") -> None:
    """E-CKPT-003 naming the first component that differs: with the form that ``changed`` finds, or both digests."""
    for name, value in run.items():
        if checkpoint.get(name) != value:
            raise mismatch(name, checkpoint.get(name, "absent"), value, where, changed(name))


def compare_data(checkpoint: Fingerprint, run: Fingerprint, where: str) -> None:
    """E-CKPT-003 naming the first data file whose bytes differ."""
    for loader, files in run.items():
        old_files = checkpoint.get(loader, [])
        for old, new in zip(old_files, files, strict=False):
            if old[1] != new[1]:
                raise mismatch(f"data (loader {loader}, file {new[0]})", old[1], new[1], where)
        if len(old_files) != len(files):
            raise mismatch(f"data (loader {loader})", f"{len(old_files)} files", f"{len(files)} files", where)


def mismatch(name: str, old: object, new: object, where: str, changed: str = "") -> RunError:
    """E-CKPT-003 for the component ``name``; ``changed`` says it in words, where the forms are known."""
    what = changed or f"{name} differs: the checkpoint has {old}, this run has {new}"
    return RunError(CKPT_IDENTITY, what, where, "--fork DIR starts a new run from the weights")
