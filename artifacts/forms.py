"""The forms of the run file that decide a run, as text with their places: what a refused resumption shows.

An artifact carries them in ``identity.json``, the forms of one component after the other, and a run directory keeps
those of the run that it holds. Words only: the digests of the components decide.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence

from attrs import frozen

from . import canonical, files, tarball
from .errors import RunError
from .identity import Fingerprint, with_files
from .structure import build

NAME = "identity.json"
ROOM = 60  # characters of a form shown


@frozen
class Form:
    """A line of a component's text: the top-level form it is of, its place, and the text, in canonical layout."""

    component: str
    form: str
    place: str
    text: str


@frozen
class Forms:
    """What an ``identity.json`` holds, in its order."""

    forms: tuple[Form, ...]

    def of(self, component: str) -> list[Form]:
        return [f for f in self.forms if f.component == component]

    def digest(self, component: str) -> str:
        """What the identity has for the component: sha256 of its lines."""
        return hashlib.sha256("\n".join(f.text for f in self.of(component)).encode()).hexdigest()


def read(data: bytes) -> Forms | None:
    """The forms of an ``identity.json``; None where it is not one."""
    try:
        return build(Forms, canonical.loads_canonical(data))
    except canonical.Malformed:
        return None


def of_artifact(artifact: tarball.Artifact) -> bytes:
    """The artifact's ``identity.json``; empty where it has none."""
    return artifact.read(NAME) if NAME in artifact.places else b""


def of_directory(folder: str) -> bytes:
    """The run directory's; empty where it has none that can be read."""
    try:
        with open(os.path.join(folder, NAME), "rb") as file:
            return file.read(canonical.MAX_BYTES)
    except OSError:
        return b""


def keep(folder: str, data: bytes, warn: Callable[[str], None]) -> None:
    """Put the forms of the run that begins into its directory; a failure costs words only."""
    if not data or of_directory(folder) == data:
        return
    try:
        files.replace(os.path.join(folder, NAME), [data])
    except RunError as error:
        warn(f"{NAME} is not written ({error.what}); the run goes on")


@frozen
class Changes:
    """Component -> what of it has changed, in words, from the forms of two ``identity.json``; "" where they do not
    tell: where one is absent, or the old one is not of the checkpoint whose ``identity`` and ``data`` these are."""

    old: bytes
    new: bytes
    identity: Mapping[str, str]
    data: Fingerprint

    def __call__(self, component: str) -> str:
        theirs, ours = read(self.old), read(self.new)
        if not theirs or not ours:
            return ""
        digest = theirs.digest(component)
        digest = with_files(digest, self.data) if component == "data" else digest
        return difference(theirs, ours, component) if digest == self.identity.get(component) else ""


def difference(theirs: Forms, ours: Forms, component: str) -> str:
    """The first form of the component that is not the same in both, with both places and texts; "" without one."""
    old, new = (_by_form(side.of(component)) for side in (theirs, ours))
    changed = [name for name in {**new, **old} if _texts(old.get(name, [])) != _texts(new.get(name, []))]
    if not changed:
        return ""
    name = changed[0]
    more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
    if name not in old:
        return f"{component} differs: the checkpoint has no {name} ({new[name][0].place}){more}"
    if name not in new:
        return f"{component} differs: the checkpoint has {name} ({old[name][0].place}), this run has none{more}"
    a, b = next((a, b) for a, b in _paired(old[name], new[name]) if a.text != b.text)
    was, now = (f"{_around(x.text, y.text)} ({x.place})" for x, y in ((a, b), (b, a)))
    return f"{component} differs in {name}: the checkpoint has {was}, this run has {now}{more}"


def _by_form(forms: Sequence[Form]) -> dict[str, list[Form]]:
    out: dict[str, list[Form]] = {}
    for form in forms:
        out.setdefault(form.form, []).append(form)
    return out


def _texts(forms: Sequence[Form]) -> list[str]:
    return [form.text for form in forms]


def _paired(old: Sequence[Form], new: Sequence[Form]) -> list[tuple[Form, Form]]:
    """Lines side by side; where one side is longer, its last stands beside the other's last."""
    count = max(len(old), len(new))
    return [(old[min(i, len(old) - 1)], new[min(i, len(new) - 1)]) for i in range(count)]


def _around(text: str, other: str) -> str:
    """``text``, or the part of it around the first character that ``other`` does not have."""
    if len(text) <= ROOM:
        return text
    at = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
    start = max(0, min(at - ROOM // 3, len(text) - ROOM))
    return f"{'...' * (start > 0)}{text[start : start + ROOM]}{'...' * (start + ROOM < len(text))}"
