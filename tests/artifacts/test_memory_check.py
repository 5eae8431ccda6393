"""What a run takes of the machine's memory: counted before it starts, compared with what is there."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from pathlib import Path

import attrs
import numpy as np
import pytest

from artifacts.base import safetensors_io
from artifacts.base.errors import RunError
from artifacts.data import file_formats, jsonl, loaders
from artifacts.device import memory_check
from artifacts.format import manifest as m
from artifacts.format import tar_writer, tarball
from tests.artifacts import toy
from tests.artifacts.support import one_error, run_toy

Captured = pytest.CaptureFixture[str]


def test_what_a_run_wants() -> None:
    made = toy.manifest()
    made = attrs.evolve(made, memory=m.Memory(0, 0, 0, 0, 0, 1000, 10))
    batch = toy.B * 4 * (toy.W + 1)
    want = memory_check.wanted(made, 3)
    assert (want.device, want.threads, want.batches) == (1000, 30, (memory_check.MAX_QUEUED_BATCHES + 1) * batch)
    assert want.checkpoint == 4 * (toy.W + 1 + toy.W)
    assert want.total == 1030 + want.batches + want.checkpoint
    assert memory_check.MAX_QUEUED_BATCHES == loaders.MAX_READY + 1
    twice = tuple(attrs.evolve(p, name=f"{p.name}*2", stack=2) if p.name == "train" else p for p in made.phases)
    assert (
        memory_check.wanted(attrs.evolve(made, phases=twice), 3).batches
        == (memory_check.MAX_QUEUED_BATCHES + 4) * batch
    )


def with_memory(nbytes: int) -> m.Manifest:
    made = toy.manifest()
    phases = tuple(attrs.evolve(p, memory_bytes=nbytes // 2 * (p.name == "generate.finish")) for p in made.phases)
    return attrs.evolve(made, memory=attrs.evolve(made.memory, device_bytes=nbytes), phases=phases)


def test_a_run_that_does_not_fit_is_refused_before_it_writes_anything(tmp_path: Path, capsys: Captured) -> None:
    path, out = toy.write(tmp_path, with_memory(2**50)), tmp_path / "out"
    assert run_toy(path, out) == 3
    line = one_error(capsys.readouterr().err, "E-MEM-010")
    assert "the run takes 1024.0 TiB of memory, " in line and " are free" in line
    assert "its largest phase is generate.finish with 512.0 TiB" in line and not out.exists()


def test_want_and_have_are_compared_to_the_byte() -> None:
    made = with_memory(10**9)
    want = memory_check.wanted(made, 2).total + memory_check.OVERHEAD
    memory_check.check(made, 2, "x.tar", want)
    with pytest.raises(RunError, match="takes 1017.7 MiB of memory, 1017.7 MiB are free"):
        memory_check.check(made, 2, "x.tar", want - 1)
    more = attrs.evolve(made, memory=attrs.evolve(made.memory, thread_bytes=1))
    with pytest.raises(RunError):
        memory_check.check(more, 2, "x.tar", want + 1)


def test_the_data_in_memory_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """Free memory is looked at again once the data is read."""
    left = iter((2**40, 2**20))  # bytes
    monkeypatch.setattr(memory_check, "free", lambda: next(left))
    assert run_toy(toy.write(tmp_path), tmp_path / "out") == 3
    assert "1.0 MiB are free" in one_error(capsys.readouterr().err, "E-MEM-010")


MANY = 100_000  # records of 16 bytes of x and y
BYTES = 16 * MANY
SAVED = ("npz", "packed", "npy", "safetensors", "jsonl")


def saved(folder: Path, kind: str) -> str:
    """A source of MANY records of zeros, of the ``kind``; its name. The toy's other data lie beside it."""
    toy.write_data(folder)
    (folder / "rows.npz").unlink()
    x, y = np.zeros((MANY, 3), np.int32), np.zeros(MANY, np.float32)
    if kind == "npy":
        (folder / "rows").mkdir()
        np.save(folder / "rows/x.npy", x), np.save(folder / "rows/y.npy", y)
        return "rows"
    path = folder / f"rows.{'npz' if kind == 'packed' else kind}"
    if kind == "jsonl":
        path.write_text('{"x":[0,0,0],"y":0}\n' * MANY)
    elif kind == "safetensors":
        path.write_bytes(safetensors_io.dump({"x": x, "y": y, "unread": np.zeros(10**6)}))
    else:
        (np.savez_compressed if kind == "packed" else np.savez)(path, x=x, y=y, unread=np.zeros(10**6))
    return path.name


def opened(folder: Path, embedded: bool, *names: str) -> tarball.Artifact:
    """The toy's artifact whose training data are the sources ``names``, in the artifact or in ``folder``."""
    members = {}
    for n, name in enumerate(names if embedded else ()):
        paths = [*folder.glob(f"{name}/*")] or [folder / name]
        members |= {f"data/rows/{n}-{p.relative_to(folder)}": p.read_bytes() for p in paths}
    rows = toy.loader("rows", names[0], sources=names, embedded=tuple(members))
    made = attrs.evolve(toy.manifest(), loaders=(rows, toy.manifest().loaders[1]))
    tar_writer.write(str(folder / "held.tar"), made, {**toy.MEMBERS, **members}, force=True)
    return tarball.open(str(folder / "held.tar"))


@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize("kind", SAVED)
def test_data_are_counted_as_they_will_lie_in_memory(tmp_path: Path, kind: str, embedded: bool) -> None:
    """Not as they lie in the file: packed, as text, or beside what no field reads. A folder on disk is mapped."""
    with opened(tmp_path, embedded, saved(tmp_path, kind)) as artifact:
        found = loaders.memory_needed(artifact, str(tmp_path))
        want = 0 if kind == "npy" and not embedded else BYTES
        extra = jsonl.OBJECT_BYTES_PER_BYTE * 2 * jsonl.CHUNK + 0.2 * BYTES if kind == "jsonl" else 10_000
        assert want <= found <= want + extra


@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize("kind", SAVED)
def test_reading_takes_no_more_than_was_counted(tmp_path: Path, kind: str, embedded: bool) -> None:
    with opened(tmp_path, embedded, saved(tmp_path, kind)) as artifact:
        found, loader = loaders.memory_needed(artifact, str(tmp_path)), artifact.manifest.loaders[0]
        loaders.open_records(loader, str(tmp_path), artifact)  # what is imported, and made once
        tracemalloc.start()
        try:
            loaders.open_records(loader, str(tmp_path), artifact)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak <= found + 4 * file_formats.CHUNK  # a piece of the file, and what packs it out
    if kind == "jsonl":
        assert peak <= 3 * BYTES + jsonl.OBJECT_BYTES_PER_BYTE * jsonl.CHUNK


def test_several_sources_are_counted_together_and_what_is_not_there_not(tmp_path: Path) -> None:
    name = saved(tmp_path, "npz")
    with opened(tmp_path, False, name, name, "nowhere.npz") as artifact:
        assert loaders.memory_needed(artifact, str(tmp_path)) < BYTES  # reading refuses the loader as a whole
    with opened(tmp_path, False, name, name) as artifact:
        assert 2 * BYTES <= loaders.memory_needed(artifact, str(tmp_path)) < 2 * BYTES + 10_000


@pytest.mark.parametrize("kind", ["npz", "packed", "npy", "safetensors"])
def test_a_header_that_promises_too_much_is_the_file_s_fault(tmp_path: Path, kind: str) -> None:
    """No memory is asked for what cannot be behind it."""
    name = saved(tmp_path, "npz" if kind == "packed" else kind)
    if kind == "safetensors":
        text = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(text.replace(b"[100000,3]", b"[900000,3]"))
    else:
        small = np.zeros((2, 3), np.int32)
        stream = io.BytesIO()
        np.save(stream, small)
        lie = stream.getvalue().replace(b"(2, 3), }              ", b"(2000000000000, 3), }  ")
        if kind == "npy":
            (tmp_path / name / "x.npy").write_bytes(lie)
        else:
            how = zipfile.ZIP_DEFLATED if kind == "packed" else zipfile.ZIP_STORED
            with zipfile.ZipFile(tmp_path / name, "w", how) as archive:
                archive.writestr("x.npy", lie)
                archive.writestr("y.npy", lie)
    with opened(tmp_path, False, name) as artifact:
        assert loaders.memory_needed(artifact, str(tmp_path)) < 10**6
        with pytest.raises(RunError) as caught:
            loaders.open_records(artifact.manifest.loaders[0], str(tmp_path), artifact)
    assert caught.value.code.name in ("E-DATA-010", "E-DATA-012")


@pytest.mark.parametrize("kind", ["npz", "packed", "safetensors", "jsonl"])
def test_data_that_do_not_fit_are_not_read(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    with opened(tmp_path, False, saved(tmp_path, kind)) as artifact:
        pass
    room = memory_check.wanted(toy.manifest(), 1).total + memory_check.OVERHEAD
    monkeypatch.setattr(memory_check, "free", lambda: room + BYTES // 2)
    monkeypatch.setattr(file_formats, "read", lambda *_: pytest.fail("the data were read"))
    status = run_toy(artifact.path, tmp_path / "out", "--threads", "1")
    line = one_error(capsys.readouterr().err, "E-MEM-010")
    assert status == 3 and "of them for data" in line and not (tmp_path / "out").exists()


# The machine and its control groups


def put(path: Path, **files: object) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(f"{text}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    put(tmp_path / "proc", meminfo="MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:    1000 kB")
    put(tmp_path / "proc/self", cgroup="0::/a/b")
    return tmp_path


def free(machine: Path) -> int | None:
    return memory_check.free(str(machine / "proc"), str(machine / "groups"))


def test_the_machine_s_memory(machine: Path) -> None:
    assert free(machine) == 1000 * 1024
    (machine / "proc/meminfo").unlink()
    assert free(machine) is None


@pytest.mark.parametrize(
    "where, limit, left",
    [
        ("groups/a/b", "500000", 500000 - 300000 + 1000),
        ("groups/a", "500000", 500000 - 300000 + 1000),
        ("groups", "500000", 500000 - 300000 + 1000),
        ("groups/a/b", "max", 1000 * 1024),
        ("groups/a/b/c", "500000", 1000 * 1024),
        ("groups/a/b", "200000", 0),
        ("groups/a/b", "99000000000", 1000 * 1024),
    ],
)
def test_a_control_group_s_limit(machine: Path, where: str, limit: str, left: int) -> None:
    stat = "anon 299000\ninactive_file 1000\nactive_file 7"
    put(machine / where, memory__max=limit, memory__current=300000, memory__stat=stat)
    assert free(machine) == left


def test_a_control_group_s_limit_of_the_first_version(machine: Path) -> None:
    put(machine / "proc/self", cgroup="5:cpu,memory:/a\n0::/")
    stat = "inactive_file 5\ntotal_inactive_file 1000"
    names = {"memory__limit_in_bytes": 500000, "memory__usage_in_bytes": 300000, "memory__stat": stat}
    put(machine / "groups/memory/a", **names)
    assert free(machine) == 201000
    (machine / "groups/memory/a/memory.stat").unlink()
    assert free(machine) == 200000


def test_this_machine_has_memory() -> None:
    assert (memory_check.free() or 2**40) > 2**20
