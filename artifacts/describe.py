"""The texts of ``sexpgpu inspect`` and ``sexpgpu diff``. Reads bytes only, and never loads native code."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from .base.json_classes import plain
from .checkpoint import identity_forms
from .device.memory_check import OVERHEAD, size, wanted
from .format import tarball
from .format.manifest import UNDRAWN, Loader, Manifest, Phase, Port, Target


def to_json(artifact: tarball.Artifact) -> dict[str, Any]:
    """The hash and the whole manifest, as data."""
    return {"hash": f"sha256:{artifact.hash}", "manifest": plain(artifact.manifest)}


def describe(artifact: tarball.Artifact) -> str:
    """A page for a reader: the run, its phases, loaders, memory, targets and members."""
    m = artifact.manifest
    lines = [f"artifact   sha256:{artifact.hash}", *_run(m)]
    lines += ["phases"] + [f"  {_phase(p)}" for p in m.phases]
    lines += ["loaders"] + [f"  {_loader(entry, entry.name in m.training_loaders())}" for entry in m.loaders]
    lines += ["memory"] + [f"  {what:11} {size(n)}" for what, n in _memory(m)]
    lines += ["targets"] + [f"  {t.name}: {t.machine}, {_target(t)}" for t in m.targets]
    lines += ["members"] + [f"  {f.sha256[:16]}  {f.size:>12}  {f.path}" for f in m.files]
    return "\n".join(lines)


def _run(m: Manifest) -> list[str]:
    run, tools = m.run, m.toolchain
    count = sum(_elements(p.shape) for p in m.parameters)
    frozen = sum(_elements(p.shape) for p in m.parameters if p.frozen)
    stacked = f", {m.degree} a call" if m.degree > 1 else ""
    return [
        f"run        {run.name}: {run.steps} steps x {run.microbatches} microbatches{stacked}, {run.precision}, "
        f"seed {run.seed}",
        f"model      {count} parameters in {len(m.parameters)} tensors, {frozen} frozen",
        f"toolchain  sexpgpu {tools.sexpgpu}, tvm {tools.tvm}, tvm-ffi {tools.tvm_ffi}, linker {tools.linker}",
        "passes     " + (", ".join(f"{p.name} every {p.every} steps" for p in m.step.passes) or "none"),
        "stages     " + ", ".join(f"{s.name} ({_stage(s.steps, s.records)}, {s.loader})" for s in m.step.stages),
        "generator  "
        + (
            "none"
            if m.step.trips is None
            else f"{m.step.trips} trips, makes {' '.join(_without_undrawn(m.step.generated))}"
        ),
    ]


def _without_undrawn(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if not name.startswith(UNDRAWN)]


def _elements(shape: tuple[int, ...]) -> int:
    out = 1
    for n in shape:
        out *= n
    return out


def _stage(steps: int | None, records: int | None) -> str:
    return f"{steps} steps" if steps else f"{records} records" if records else "to the end"


def _phase(p: Phase) -> str:
    def kinds(ports: tuple[Port, ...]) -> str:
        counts: dict[str, int] = {}
        for port in ports:
            counts[port.kind] = counts.get(port.kind, 0) + 1
        return ", ".join(f"{n} {kind}" for kind, n in counts.items()) or "nothing"

    return f"{p.name}: {kinds(p.inputs)} -> {kinds(p.outputs)}; {size(p.memory_bytes)}"


def _target(t: Target) -> str:
    if t.device == "cpu":
        return " ".join(t.cpu_flags) or "no special instructions"
    return f"a GPU of CUDA with kernels for {' '.join(t.archs)}, {'' if t.graphs else 'not '}captured as graphs"


def _memory(m: Manifest) -> list[tuple[str, int]]:
    """The memory of each part of a run, then of the whole on one thread, then the overhead."""
    want = wanted(m, 1)
    beside = [("batches", want.batches), ("checkpoint", want.checkpoint)]
    parts = [(key.removesuffix("_bytes"), n) for key, n in plain(m.memory).items()]
    return [*parts, *beside, ("in all", want.total), ("overhead", OVERHEAD)]


def _loader(entry: Loader, trains: bool) -> str:
    what = f"{entry.count} indices" if entry.kind == "indices" else " ".join(entry.sources)
    fields = ", ".join(f"{f.name} {f.dtype}[{' '.join(map(str, f.shape))}]" for f in entry.fields)
    words = [f"batch {entry.batch}", "shuffled" if entry.shuffle and trains else "in order"]
    words += ["embedded"] * bool(entry.embedded) + ([f"{entry.epochs} epochs"] if entry.epochs else [])
    return f"{entry.name}: {what} ({', '.join(words)}): {fields}"


def diff(a: tarball.Artifact, b: tarball.Artifact) -> str | None:
    """What is different in two artifacts, in words: the forms that decide the run, each with both texts and places, a
    line each; where they are alike, the first difference of a source, another member, or a manifest key; None when they
    are one."""
    if a.hash == b.hash:
        return None
    return "\n".join(_forms(a, b)) or _first(a, b)


def _forms(a: tarball.Artifact, b: tarball.Artifact) -> list[str]:
    old_forms, new_forms = (identity_forms.read(identity_forms.of_artifact(side)) for side in (a, b))
    if old_forms is None or new_forms is None:
        return []
    parts = dict.fromkeys((*old_forms.components(), *new_forms.components()))
    differences = [
        identity_forms.differences(old_forms, new_forms, part, ("the first", "the second")) for part in parts
    ]
    return list(dict.fromkeys(text for part in differences for form in part for text in form))


def _first(a: tarball.Artifact, b: tarball.Artifact) -> str:
    first, second = plain(a.manifest), plain(b.manifest)
    files_a, files_b = ({f["path"]: f for f in side.pop("files")} for side in (first, second))
    for name in sorted(files_a.keys() | files_b.keys(), key=lambda n: (not n.startswith("source/"), n)):
        if name not in files_b or name not in files_a:
            return f"member {name}: only in the {'first' if name in files_a else 'second'}"
        if files_a[name] != files_b[name]:
            describe_difference = _line if name.startswith("source/") else _first_difference
            return f"member {name}: {describe_difference(a.read(name), b.read(name))}"
    return next(_differences(first, second, "manifest"))


def _line(a: bytes, b: bytes) -> str:
    """The first line of a text that differs, as each has it."""
    first, second = (text.decode("utf-8", "replace").splitlines() for text in (a, b))
    pairs = enumerate(itertools.zip_longest(first, second, fillvalue=""), 1)
    number, (x, y) = next(((n, pair) for n, pair in pairs if pair[0] != pair[1]), (0, ("", "")))
    if not number:
        return "its line ends differ"
    was, now = identity_forms.around(x, y), identity_forms.around(y, x)
    return f"line {number} is {was!r} in the first, {now!r} in the second"


def _first_difference(a: bytes, b: bytes) -> str:
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return f"{len(a)} and {len(b)} bytes, first different at byte {at}"


def _differences(a: Any, b: Any, at: str) -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            yield from _differences(a.get(key), b.get(key), f"{at}.{key}")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from _differences(x, y, f"{at}[{i}]")
    elif a != b:
        yield f"{at}: {_short(a)} and {_short(b)}"


def _short(value: Any) -> str:
    text = f"{len(value)} entries" if isinstance(value, list) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
