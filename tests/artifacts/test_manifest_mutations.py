"""Manifests and checkpoints that lie, every digest mended: each is refused by a code, or makes a run that ends well."""

from __future__ import annotations

import collections
import hashlib
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts import run
from artifacts.base import canonical_json, safetensors_io
from artifacts.base.errors import RunError
from artifacts.base.json_classes import plain
from artifacts.checkpoint.cursor import advance, at, start
from artifacts.device.interface import HostDevice
from artifacts.format import manifest as m
from artifacts.format import manifest_reader, tar_writer, tarball
from tests.artifacts import manifest_mutations, toy
from tests.artifacts.support import ROOT, checkpoint, forked, members_of, one_error, run_toy, sealed, steps
from tests.conftest import called

COUNT = 250


def zeros(artifact: tarball.Artifact, threads: int | None) -> HostDevice:
    """A device that believes the manifest: its phases return zeros of the shapes that it says."""

    def of(phase: m.Phase) -> Callable[..., Any]:
        return lambda *_: [np.zeros(port.shape, safetensors_io.dtype(port.dtype)) for port in phase.outputs]

    return HostDevice(artifact.manifest, {phase.name: of(phase) for phase in artifact.manifest.phases})


def toys() -> dict[str, m.Manifest]:
    """The toy in three forms: as it is, stacked with a rest, and with the last state in the place of a finish."""
    made = toy.manifest()
    last = [attrs.evolve(p, inputs=tuple(map(state, p.inputs))) for p in made.phases if p.name != "generate.finish"]
    step = attrs.evolve(made.step, generated=("row",))
    return {
        "plain": made,
        "stacked": toy.stacked(toy.manifest(microbatches=3), 2),
        "unfinished": attrs.evolve(made, phases=tuple(last), step=step),
    }


def state(port: m.Port) -> m.Port:
    return attrs.evolve(toy.row, kind="generated") if port == toy.sample else port


@pytest.mark.parametrize("form", ["plain", "stacked", "unfinished"])
def test_a_manifest_that_lies(artifact: str, tmp_path: Path, form: str, capsys: Any) -> None:
    rng, truth = random.Random(form), plain(toys()[form])
    manifest_reader.read_manifest(canonical_json.dumps(truth))
    truth["files"] = plain(tarball.verify(artifact))["files"]
    members, accepted = members_of(artifact)[2:], []
    for n in range(COUNT):
        said, whole = manifest_mutations.mutation(rng, truth)
        text = canonical_json.dumps(whole)
        try:
            manifest_reader.read_manifest(text)
        except RunError as error:
            assert error.code.name == "E-ART-007" and error.code.exit == 4, said
            continue
        accepted.append(said)
        Path(artifact).write_bytes(sealed(text, members))
        out = tmp_path / f"out{n}"
        status = run.main([artifact, "--out", str(out), "--data", str(tmp_path), "--steps", "2", "-q"], device=zeros)
        shown = capsys.readouterr().err
        assert status in (0, 1, 3, 4, 5), (said, shown)
        assert status == 0 or (shown.startswith("error[E-") and shown.count("\n") == 1), (said, shown)
    assert COUNT / 5 <= len(accepted) <= COUNT * 3 / 5  # those are alike everywhere, or of what nothing depends on


NORM = toy.port("metric", "grad_norm")
REFUSED = {
    "loss under another name": lambda made: renamed(made, "train", "outputs", toy.loss, name="lost"),
    "loss of a pass under another name": lambda made: renamed(made, "eval.held", "outputs", toy.loss, name="lost"),
    "norm under another name": lambda made: renamed(made, "update", "outputs", NORM, name="n"),
    "an output of another kind": lambda made: renamed(made, "train", "outputs", toy.tokens, kind="trip"),
    "a diagnostic that is state": lambda made: renamed(made, "train", "outputs", toy.rows, kind="state"),
    "an input that nothing makes": lambda made: renamed(made, "update", "inputs", toy.tokens, name="nobody"),
    "a trip with a name": lambda made: renamed(made, "generate.step", "inputs", toy.trip, name="x"),
    "a trip where there is none": lambda made: renamed(made, "generate.finish", "inputs", toy.t, kind="trip", name=""),
    "a seed with a name": lambda made: renamed(made, "init", "inputs", toy.seed, name="x"),
    "an input of another kind": lambda made: renamed(made, "train", "inputs", toy.w, kind="optimizer", name="net/w/m"),
    "a parameter that init does not make": lambda made: changed(made, "init", outputs=(toy.w, toy.m_)),
    "a number that init reports": lambda made: changed(made, "init", outputs=(toy.w, toy.t, toy.m_, toy.loss)),
    "a generated name that finish does not make": lambda made: with_step(made, generated=("sample", "more")),
    "a generated name without a generator": lambda made: with_step(made, trips=None),
    "an in-place pair of a parameter in training": lambda made: changed(made, "train", in_place=((3, 5), (0, 0))),
    "an in-place pair twice": lambda made: changed(made, "update", in_place=((0, 0), (0, 0))),
    "microbatches without end": lambda made: with_run(made, microbatches=2**40),
    "trips without end": lambda made: with_step(made, trips=2**40),
    "steps without end": lambda made: with_run(made, steps=2**62),
    "a range outside the dtype": lambda made: with_field(made, low=-(2**40)),
    "a range of floats": lambda made: with_field(made, dtype="f32"),
    "a batch without end": lambda made: attrs.evolve(made, loaders=(toy.loader("rows", "rows.npz", batch=2**40),)),
    "memory without end": lambda made: attrs.evolve(made, memory=attrs.evolve(made.memory, thread_bytes=2**62)),
}


def changed(made: m.Manifest, name: str, **how: Any) -> m.Manifest:
    phases = tuple(attrs.evolve(p, **how) if p.name == name else p for p in made.phases)
    return attrs.evolve(made, phases=phases)


def renamed(made: m.Manifest, phase: str, side: str, port: m.Port, **how: Any) -> m.Manifest:
    ports = getattr(made.phase(phase), side)
    assert port in ports
    return changed(made, phase, **{side: tuple(attrs.evolve(p, **how) if p == port else p for p in ports)})


def with_step(made: m.Manifest, **how: Any) -> m.Manifest:
    return attrs.evolve(made, step=attrs.evolve(made.step, **how))


def with_run(made: m.Manifest, **how: Any) -> m.Manifest:
    return attrs.evolve(made, run=attrs.evolve(made.run, **how))


def with_field(made: m.Manifest, **how: Any) -> m.Manifest:
    fields = (attrs.evolve(toy.FIELDS[0], **how), *toy.FIELDS[1:])
    return attrs.evolve(made, loaders=tuple(attrs.evolve(entry, fields=fields) for entry in made.loaders))


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_loop_reads_by_name_is_checked_when_the_manifest_is_read(what: str) -> None:
    assert manifest_reader.read_manifest(toy.manifest().to_bytes()) == toy.manifest()
    with pytest.raises(RunError) as caught:
        manifest_reader.read_manifest(REFUSED[what](toy.manifest()).to_bytes())
    assert caught.value.code.name == "E-ART-007" and "\n" not in str(caught.value)


# Checkpoints


def rewritten(folder: Path, name: str, change: Callable[[Any], None]) -> None:
    """A file of the checkpoint with its JSON changed, of ``manifest.json`` or a header, and its digest mended."""
    whole, data = json.loads((folder / "manifest.json").read_bytes()), (folder / name).read_bytes()
    if name == "manifest.json":
        change(whole)
    else:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        change(header)
        text = json.dumps(header).encode()
        data = len(text).to_bytes(8, "little") + text + data[8 + size :]
        (folder / name).write_bytes(data)
        mended = {"path": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        whole["files"] = [mended if entry["path"] == name else entry for entry in whole["files"]]
    (folder / "manifest.json").write_bytes(canonical_json.dumps(whole))


@pytest.fixture
def saved(artifact: str, out: Path) -> Path:
    """A run that has checkpoints of the steps 2 and 4."""
    assert run_toy(artifact, out, "-q", "--steps", "4") == 0
    return out


def mutate_leaf(rng: random.Random, whole: Any) -> str:
    """In a checkpoint's manifest or a header; of the manifest also in its list of files."""
    part = whole["files"] if "files" in whole and rng.random() < 0.2 else whole
    mutate_value = manifest_mutations.mutate_value
    return rng.choice((mutate_value, manifest_mutations.mutate_list if part is whole else mutate_value))(rng, part)


@pytest.mark.parametrize("name", ["manifest.json", "params.safetensors", "optim.safetensors"])
def test_a_checkpoint_that_lies(artifact: str, saved: Path, tmp_path: Path, name: str, capsys: Any) -> None:
    """It is passed over, or refused; a total of a counter, and who wrote it, are all that it may say."""
    rng, statuses = random.Random(name), collections.Counter()
    said: list[str] = []
    for n in range(60):
        out = tmp_path / str(n)
        shutil.copytree(saved, out)
        rewritten(checkpoint(out, 4), name, lambda whole: said.append(mutate_leaf(rng, whole)))
        status = run_toy(artifact, out, "--resume", "-q", "--steps", "5")
        shown = capsys.readouterr().err
        statuses[status, "not whole" in shown, shown.partition("]")[0] if status else ""] += 1
        assert status in (0, 4) and shown.count("\n") <= 2, (said[-1], shown)
        shutil.rmtree(out)
    assert sum(statuses[0, told, ""] for told in (True, False)) >= 10, statuses


CURSORS = {
    "step": {"step": 3},
    "step beyond i64": {"step": 2**62, "records": 2**62, "stage_step": 2**62},
    "records": {"records": 31},
    "negative": {"records": -1},
    "stage": {"stage": 1},
    "stage of nobody": {"stage": -1},
    "stage_step": {"stage_step": 3},
    "stage_records": {"stage_records": 0},
    "positions": {"positions": {"rows": 24}},
    "positions of more": {"positions": {"rows": 32, "held": 0}},
    "positions of nobody": {"positions": {}},
    "no counters": {"counters": {}},
    "more counters": {"counters": {"tokens": 32, "more": 0}},
}


@pytest.mark.parametrize("what", CURSORS)
def test_a_cursor_that_is_not_that_of_its_step(artifact: str, saved: Path, what: str, capsys: Any) -> None:
    rewritten(checkpoint(saved, 4), "manifest.json", lambda whole: whole["cursor"].update(CURSORS[what]))
    assert run_toy(artifact, saved, "--resume", "-q", "--strict") == 4
    one_error(capsys.readouterr().err, "E-CKPT-002")
    assert run_toy(artifact, saved, "--resume", "-q") == 0
    said = capsys.readouterr().err
    assert "step-000000004 is not whole" in said and said.count("warning") == 2  # and once more, when it is moved aside


@pytest.mark.parametrize("shape", [[0, 2**62, 2**62], [2**62], [0, 2**63 - 1], [2**31, 2**31, 0]])
def test_a_shape_that_no_memory_has_addresses_for(artifact: str, saved: Path, shape: list[int], capsys: Any) -> None:
    def change(header: Any) -> None:
        entry = next(entry for name, entry in header.items() if name != "__metadata__")
        entry.update(shape=shape, data_offsets=[0, 0] if 0 in shape else entry["data_offsets"])

    rewritten(checkpoint(saved, 4), "optim.safetensors", change)
    assert run_toy(artifact, saved, "--resume", "-q", "--strict") == 4
    one_error(capsys.readouterr().err, "E-CKPT-002")


@given(st.data())
def test_the_cursor_after_any_number_of_steps(data: st.DataObject) -> None:
    """``at`` is ``advance``, so many times."""
    none, steps, records = st.just((None, None)), st.integers(1, 5), st.integers(1, 40)
    limit = st.one_of(none, st.tuples(steps, st.none()), st.tuples(st.none(), records))
    limits = data.draw(st.lists(st.tuples(limit, st.sampled_from(["rows", "held"])), min_size=1, max_size=4))
    stages = tuple(m.Stage(f"s{n}", *limit, loader) for n, (limit, loader) in enumerate(limits))
    made = with_step(toy.manifest(microbatches=data.draw(st.integers(1, 3))), stages=stages)
    cursor = start(made)
    for step in range(30):
        assert at(made, step) == cursor
        cursor = advance(cursor, made, cursor.counters)


def test_as_many_microbatches_as_a_run_file_may_have(artifact: str, out: Path) -> None:
    """A signal is looked for before the first of them, and nothing is made for all of them at once."""
    path = toy.write(Path(artifact).parent, toy.manifest(microbatches=2**31 - 1), "many.tar")
    assert forked(path, out, "train:3:SIGTERM") == 128 + 15
    assert steps(out) == [0]


# A library of native code, in a process that may crash


def outcomes(*arguments: object) -> list[dict[str, Any]]:
    """What tests.artifacts.open_mutations says."""
    command = [sys.executable, "-m", "tests.artifacts.open_mutations", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=280)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.build
def test_a_library_is_run_by_its_own_manifest_alone(tiny: Path, tmp_path: Path) -> None:
    """Kernels look at none of their arguments: without the library's signature one in ten of these ends in a memory
    fault, and as many compute on what is not theirs."""
    rows = outcomes("mutations", tiny, tmp_path, 8, 80)
    for row in rows:
        if row["signed"]:
            assert row["status"] in (0, 1, 3, 4), row
        else:  # data that is not what the manifest now says may be told first
            assert row["code"] in ("E-ART-009", "E-DATA-012", "E-DATA-013", "E-DATA-015", "E-MEM-010"), row
    assert sum(row["code"] == "E-ART-009" for row in rows) >= 50


def mixed(artifact: Path, folder: Path, name: str, members: dict[str, bytes]) -> Path:
    """The artifact with some members replaced, and every digest mended."""
    found, old = tarball.verify(str(artifact)), dict(members_of(artifact)[2:])
    path = folder / name
    tar_writer.write(str(path), attrs.evolve(found, files=()), {**old, **members})
    return path


@pytest.mark.build
def test_libraries_that_are_mixed_up(tiny: Path, characters: Path, tmp_path: Path) -> None:
    """Another run's library, those of two targets or library and runtime in each other's place: told in words."""
    found = tarball.verify(str(tiny))
    own, other = dict(members_of(tiny)), dict(members_of(characters))
    code, runtime = [target.library for target in found.targets], found.runtime.library
    foreign = next(data for name, data in other.items() if name.startswith("code/"))
    changes = {
        "foreign": dict.fromkeys(code, foreign),
        "swapped": dict(zip(code, [own[name] for name in reversed(code)], strict=True)),
        "runtime as library": dict.fromkeys(code, own[runtime]),
        "library as runtime": {runtime: own[code[0]]},
        "text as library": dict.fromkeys(code, b"text"),
        "text as runtime": {runtime: b"text"},
    }
    paths = [mixed(tiny, tmp_path, f"{what}.tar", members) for what, members in changes.items()]
    told = called("verify", paths[0])
    assert told.returncode == 4 and one_error(told.stderr, "E-ART-009")
    rows = dict(zip(changes, outcomes("run", tmp_path, tiny, *paths)[1:], strict=True))
    codes = {what: (row["status"], row["code"]) for what, row in rows.items()}
    assert len(code) == 1 or codes.pop("swapped") == (4, "E-ART-009")
    codes.pop("swapped", None)
    assert codes.pop("text as library") == codes.pop("text as runtime") == (3, "E-ENV-011")
    assert set(codes.values()) == {(4, "E-ART-009")}, codes


@pytest.mark.build
def test_libraries_that_are_cut_short(tiny: Path, tmp_path: Path) -> None:
    """At any byte, in the last page of a segment as in its first: a process that loaded them would die of SIGBUS."""
    found, own = tarball.verify(str(tiny)), dict(members_of(tiny))
    paths = []
    for name in (*(target.library for target in found.targets), found.runtime.library):
        size = len(own[name])
        for end in (0, 5, 63, 64, 100, 4096, size // 3, size // 2, size - 8192, size - 100, size - 1):
            paths.append(mixed(tiny, tmp_path, f"{len(paths)}.tar", {name: own[name][:end]}))
    rows = outcomes("run", tmp_path, *paths)
    ours = [row for row in rows if (row["status"], row["code"]) in ((4, "E-ART-002"), (3, "E-ENV-011"))]
    unused = [row for row in rows if row["status"] == 0]  # of a target that this machine does not run
    assert len(ours) + len(unused) == len(rows) and len(ours) >= 22, rows
    assert sum(row["code"] == "E-ENV-011" for row in ours) <= 4, "what has no ELF's first bytes left is none"
