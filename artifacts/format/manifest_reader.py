"""Reads a manifest from its bytes, strictly: it is valid as a whole or refused."""

from __future__ import annotations

from collections.abc import Mapping

from ..base import canonical_json
from ..base.errors import ART_MANIFEST, ART_VERSION, RunError
from ..base.json_classes import build
from .manifest import FORMAT, VERSION, Manifest
from .manifest_checks import check


def read_manifest(data: bytes, where: str = "") -> Manifest:
    """The manifest of ``data``: canonical bytes, known version, known keys, right types, and parts that fit together.

    E-ART-007 when it is malformed, E-ART-009 when it is of another version.
    """
    try:
        value = canonical_json.loads_canonical(data)
        _check_version(value, where)
        manifest = build(Manifest, value)
        check(manifest)
    except canonical_json.Malformed as error:
        raise RunError(ART_MANIFEST, str(error), where) from None
    return manifest


def _check_version(value: object, where: str) -> None:
    if not isinstance(value, Mapping) or value.get("format") != FORMAT:
        raise canonical_json.Malformed(f"the manifest's format is not {FORMAT}")
    version = value.get("version")
    if type(version) is not int or version < 1:
        raise canonical_json.Malformed("the manifest's version is not a positive integer")
    if version != VERSION:
        hint = "install a newer sexpgpu-run" if version > VERSION else "build the artifact again"
        raise RunError(
            ART_VERSION, f"the artifact's format is version {version}, this runner reads {VERSION}", where, hint
        )
