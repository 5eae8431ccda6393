"""The run file's forms that decide a run, as text with source locations, to explain a refused resumption.

An artifact holds them in ``identity.json``, component by component, and a run directory keeps those of its run. They
are
for messages only: the digests of the components decide.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from attrs import frozen

from ..base import atomic_files, canonical_json
from ..base.errors import RunError
from ..base.json_classes import build
from ..format import tarball
from .identity import Fingerprint, with_files

NAME = "identity.json"
MAX_SHOWN = 60  # characters of a form in a message


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

    def components(self) -> list[str]:
        return list(dict.fromkeys(f.component for f in self.forms))

    def digest(self, component: str) -> str:
        """What the identity has for the component: sha256 of its lines."""
        return hashlib.sha256("\n".join(f.text for f in self.of(component)).encode()).hexdigest()


def read(data: bytes) -> Forms | None:
    """The forms of an ``identity.json``; None if the bytes are not one."""
    try:
        return build(Forms, canonical_json.loads_canonical(data))
    except canonical_json.Malformed:
        return None


def of_artifact(artifact: tarball.Artifact) -> bytes:
    """The artifact's ``identity.json``; empty where it has none."""
    return artifact.read(NAME) if NAME in artifact.members else b""


def of_directory(folder: str) -> bytes:
    """The run directory's; empty where it has none that can be read."""
    try:
        return atomic_files.read_plain(os.path.join(folder, NAME), canonical_json.MAX_BYTES)
    except OSError:
        return b""


def keep(folder: str, data: bytes, warn: Callable[[str], None], begins: bool) -> None:
    """Write the run's forms into its directory; a failure is only a warning. A file of another run, as any file is if
    this run ``begins``, or one that is not ours is renamed."""
    path = os.path.join(folder, NAME)
    old = of_directory(folder)
    if not data or old == data:
        return
    try:
        if (os.path.isfile(path) or os.path.islink(path)) and (begins or read(old) is None):
            warn(f"{path} is not of this run: it is now {atomic_files.put_aside(path)}")
        atomic_files.replace(path, [data])
    except (RunError, OSError) as error:
        warn(f"{NAME} is not written ({error}); the run goes on")


@frozen
class Changes:
    """Component -> what of it has changed, in words, from the forms of two ``identity.json``; "" where they do not
    tell: where one is absent, or the old one is not of the checkpoint whose ``identity`` and ``data`` these are."""

    old: bytes
    new: bytes
    identity: Mapping[str, str]
    data: Fingerprint

    def __call__(self, component: str) -> str:
        old_forms, new_forms = read(self.old), read(self.new)
        if not old_forms or not new_forms:
            return ""
        digest = old_forms.digest(component)
        digest = with_files(digest, self.data) if component == "data" else digest
        return difference(old_forms, new_forms, component) if digest == self.identity.get(component) else ""


def difference(old_forms: Forms, new_forms: Forms, component: str) -> str:
    """The first form of the component that is not the same in both, with both places and texts; "" without one."""
    changed = differences(old_forms, new_forms, component, ("the checkpoint", "this run"))
    more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
    return f"{changed[0][0]}{more}" if changed else ""


def differences(old_forms: Forms, new_forms: Forms, component: str, sides: tuple[str, str]) -> list[list[str]]:
    """For each form of the component that is not the same in both, a text for each line of it that differs, with both
    places and texts; ``sides``: what the texts call the two."""
    old, new = (_by_form(side.of(component)) for side in (old_forms, new_forms))
    changed = [name for name in {**new, **old} if _texts(old.get(name, [])) != _texts(new.get(name, []))]
    return [list(_words(component, name, old.get(name), new.get(name), sides)) for name in changed]


def _words(
    component: str, name: str, old: Sequence[Form] | None, new: Sequence[Form] | None, sides: tuple[str, str]
) -> Iterator[str]:
    first, second = sides
    if old and new:
        for a, b in _paired(old, new):
            if a.text != b.text:
                was, now = (f"{around(x.text, y.text)} ({x.place})" for x, y in ((a, b), (b, a)))
                yield f"{component} differs in {name}: {first} has {was}, {second} has {now}"
    elif new:
        yield f"{component} differs: {first} has no {name} ({new[0].place})"
    elif old:
        yield f"{component} differs: {first} has {name} ({old[0].place}), {second} has none"


def _by_form(forms: Sequence[Form]) -> dict[str, list[Form]]:
    out: dict[str, list[Form]] = {}
    for form in forms:
        out.setdefault(form.form, []).append(form)
    return out


def _texts(forms: Sequence[Form]) -> list[str]:
    return [form.text for form in forms]


def _paired(old: Sequence[Form], new: Sequence[Form]) -> list[tuple[Form, Form]]:
    """Lines paired by position; the surplus lines of one side are paired with the other's last line."""
    count = max(len(old), len(new))
    return [(old[min(i, len(old) - 1)], new[min(i, len(new) - 1)]) for i in range(count)]


def around(text: str, other: str) -> str:
    """``text``, or the part of it around the first character that ``other`` does not have."""
    if len(text) <= MAX_SHOWN:
        return text
    at = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
    start = max(0, min(at - MAX_SHOWN // 3, len(text) - MAX_SHOWN))
    return f"{'...' * (start > 0)}{text[start : start + MAX_SHOWN]}{'...' * (start + MAX_SHOWN < len(text))}"
