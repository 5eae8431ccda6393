"""Checkpoints: whole or absent at every moment of a save, chosen with care, removed with more."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifacts.base import atomic_files, canonical_json, directory_lock
from artifacts.base.errors import RunError
from artifacts.checkpoint import contents as checkpoint
from artifacts.checkpoint import cursor as state
from artifacts.checkpoint import identity, store
from artifacts.device.interface import HostDevice
from artifacts.format import manifest
from tests.artifacts import toy
from tests.artifacts.support import arguments, child, contents, environment, metrics, one_error, run_toy, steps
from tests.artifacts.support import checkpoint as folder_of

PARAMS = {"net/w": np.arange(3, dtype=np.float32), "net/t": np.ones(1, np.float32)}
OPTIM = {"net/w/m": np.zeros(3, np.float32)}
CALLS = ("open", "write", "fsync", "rename", "mkdir", "unlink", "rmdir", "close")


def entry(step: int, run_id: str = "a" * 16) -> checkpoint.Entry:
    cursor = state.Cursor(step, step * 8, 0, step, step * 8, {"rows": step * 8}, {"tokens": 0})
    return checkpoint.Entry(run_id, "", "f" * 64, 7, {"model": "m"}, {"rows": (("rows.npz", "d" * 64),)}, cursor)


def make(folder: Path, keep: int = 2, warnings: list[str] | None = None) -> store.Store:
    folder.mkdir(exist_ok=True)
    return store.Store(str(folder), keep, (warnings if warnings is not None else []).append)


def complete_steps(folder: Path) -> list[int]:
    """Steps whose directories are whole; fails if any published one is not."""
    found = make(folder).steps()
    for step in found:
        checkpoint.load(str(folder / store.step_name(step)))
    return found


# Crash points: the k-th call of a save fails, or the process is killed there


@contextlib.contextmanager
def at_call(k: int, act: Callable[[], None]) -> Iterator[list[int]]:
    """Within, the k-th of the system calls in CALLS is preceded by ``act``; yields the count of calls so far."""
    count = [0]
    real = {name: getattr(os, name) for name in CALLS}
    does = {**real, "fsync": lambda fd: None}  # counted, not waited for: neither a failure nor a kill loses the cache

    def watched(name: str) -> Callable[..., Any]:
        def call(*args: Any, **how: Any) -> Any:
            count[0] += 1
            if count[0] == k:
                act()
            return does[name](*args, **how)

        return call

    for name in CALLS:
        setattr(os, name, watched(name))
    try:
        yield count
    finally:
        for name, function in real.items():
            setattr(os, name, function)


def fail_with(number: int) -> Callable[[], None]:
    def act() -> None:
        raise OSError(number, os.strerror(number))

    return act


def calls_of_a_save(folder: Path) -> int:
    saved = make(folder)
    for step in (100, 200):
        saved.save(entry(step), PARAMS, OPTIM)
    with at_call(0, lambda: None) as count:
        saved.save(entry(300), PARAMS, OPTIM)
    assert complete_steps(folder) == [200, 300]
    return count[0]


@pytest.mark.parametrize("number", [28, 5])  # no space, input/output error
def test_row_74_every_call_of_a_save_may_fail(tmp_path: Path, number: int) -> None:
    total = calls_of_a_save(tmp_path / "probe")
    assert total > 20
    for k in range(1, total + 1):
        folder = tmp_path / f"{number}-{k}"
        saved = make(folder)
        for step in (100, 200):
            saved.save(entry(step), PARAMS, OPTIM)
        with at_call(k, fail_with(number)):
            try:
                saved.save(entry(300), PARAMS, OPTIM)
            except RunError as error:
                assert error.code.exit == 5
        found = complete_steps(folder)
        assert 200 in found and found in ([100, 200], [100, 200, 300], [200, 300])
        saved.save(entry(300), PARAMS, OPTIM)  # and once the trouble is over, it is saved
        assert 300 in complete_steps(folder)
        saved.prepare(0, locked=True)
        assert not list(folder.glob(".tmp*"))


def test_row_78_killed_at_every_call_of_a_save(tmp_path: Path) -> None:
    total = calls_of_a_save(tmp_path / "probe")
    for k in range(1, total + 1):
        folder = tmp_path / str(k)
        saved = make(folder)
        for step in (100, 200):
            saved.save(entry(step), PARAMS, OPTIM)
        pid = os.fork()
        if pid == 0:
            try:
                with at_call(k, lambda: os.kill(os.getpid(), signal.SIGKILL)):
                    saved.save(entry(300), PARAMS, OPTIM)
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        found = complete_steps(folder)
        assert 200 in found and found in ([100, 200], [100, 200, 300], [200, 300])
        assert saved.newest(strict=True).entry.cursor.step == found[-1]
        saved.prepare(0, locked=True)
        assert not list(folder.glob(".tmp*")) and complete_steps(folder) == found


def test_the_order_of_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are synced before their directory, that before the rename, the rename before the parent's sync, and only
    then is anything old removed."""
    saved, done = make(tmp_path / "c"), []
    for step in (100, 200):
        saved.save(entry(step), PARAMS, OPTIM)
    for name in ("rename", "fsync"):
        real = getattr(os, name)

        def call(*args: Any, name: str = name, real: Callable[..., Any] = real) -> Any:
            target = os.readlink(f"/proc/self/fd/{args[0]}") if name == "fsync" else args[1]
            done.append((name, re.sub(r"\.tmp-\S*?(?=/|$)", "TMP", os.path.relpath(target, tmp_path / "c"))))
            return real(*args)

        monkeypatch.setattr(os, name, call)
    saved.save(entry(300), PARAMS, OPTIM)
    synced = sorted(done[:4])
    assert synced == [
        ("fsync", f"TMP/{n}") for n in ("info.json", "manifest.json", "optim.safetensors", "params.safetensors")
    ]
    assert done[4:] == [("fsync", "TMP"), ("rename", "step-000000300"), ("fsync", "."), ("rename", "TMP")]


def test_the_umask_is_honoured(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        path = Path(make(tmp_path / "c").save(entry(1), PARAMS, OPTIM))
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    assert {stat.S_IMODE(p.stat().st_mode) for p in path.iterdir()} == {0o640}


def test_weights_are_plain_safetensors(artifact: str, out: Path) -> None:
    from safetensors.numpy import load_file

    assert run_toy(artifact, out, "-q") == 0
    found = load_file(folder_of(out, 6) / "params.safetensors")
    assert set(found) == {"net/w", "net/t"} and found["net/w"].dtype == np.float32
    assert set(load_file(folder_of(out, 6) / "optim.safetensors")) == {"net/w/m"}


def test_the_same_run_makes_the_same_checkpoints(artifact: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert run_toy(artifact, tmp_path / name, "-q") == 0
    assert all(contents(tmp_path / "a", step) == contents(tmp_path / "b", step) for step in (2, 4, 6))


# Rows 53 to 55: which one is taken


@pytest.mark.parametrize("how", ["none", "empty", "file"])
def test_row_53_nothing_to_resume(artifact: str, out: Path, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    if how == "file":
        out.write_text("not a directory")
        assert run_toy(artifact, out, "--resume") == 5
        assert "not a directory" in one_error(capsys.readouterr().err, "E-IO-010")
        return
    if how == "empty":
        (out / "checkpoints").mkdir(parents=True)
    assert run_toy(artifact, out, "--resume") == 4
    assert "or start without --resume)" in one_error(capsys.readouterr().err, "E-CKPT-001")
    assert run_toy(artifact, out, "--resume=auto", "-q") == 0 and steps(out)[-1] == 6
    assert run_toy(artifact, out, "--resume=auto", "-q", "--steps", "8") == 0 and steps(out)[-1] == 8


def test_a_refusal_leaves_no_directory_that_it_made(
    artifact: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that was mistyped, and data that is not there; a directory of the user's stays, and all that is in it."""
    assert run_toy(artifact, tmp_path / "typed/wrongly", "--resume") == 4
    assert "or start without --resume)" in one_error(capsys.readouterr().err, "E-CKPT-001")
    assert run_toy(artifact, tmp_path / "other", "--data", str(tmp_path / "nowhere")) != 0
    assert not (tmp_path / "typed").exists() and not (tmp_path / "other").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes").write_text("mine")
    assert run_toy(artifact, tmp_path / "mine/deeper", "--resume") == 4
    assert run_toy(artifact, tmp_path / "mine", "--resume") == 4
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["lock", "notes"]


def damage(path: Path, how: str) -> None:
    if how == "missing":
        path.unlink()
    elif how == "cut":
        os.truncate(path, path.stat().st_size - 1)
    elif how == "zeroed":
        path.write_bytes(bytes(path.stat().st_size))
    elif how == "emptied":
        path.write_bytes(b"")
    elif how == "longer":
        path.write_bytes(path.read_bytes() + b"\0")
    elif how == "flipped":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
    elif how == "link":
        path.rename(path.with_name("moved"))
        path.symlink_to("moved")
    elif how == "directory":
        path.unlink()
        path.mkdir()


DAMAGES = ("missing", "cut", "zeroed", "emptied", "longer", "flipped", "link", "directory")


@pytest.mark.parametrize("file", ["manifest.json", "params.safetensors", "optim.safetensors"])
@pytest.mark.parametrize("how", DAMAGES)
def test_row_54_a_torn_newest_is_passed_over(tmp_path: Path, file: str, how: str) -> None:
    warnings: list[str] = []
    saved = make(tmp_path / "c", 3, warnings)
    for step in (100, 200, 300):
        saved.save(entry(step), PARAMS, OPTIM)
    damage(Path(saved.path(300)) / file, how)
    assert saved.newest(strict=False).entry.cursor.step == 200
    assert len(warnings) == 1 and "step-000000300" in warnings[0] and file in warnings[0]
    with pytest.raises(RunError) as caught:
        saved.newest(strict=True)
    assert caught.value.code.name == "E-CKPT-002" and caught.value.code.exit == 4
    assert saved.steps() == [100, 200, 300]


def test_row_54_the_run_goes_on_past_a_torn_one(
    artifact: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is moved aside, not overwritten, when the run reaches its step again; the end is the uninterrupted run's."""
    assert run_toy(artifact, tmp_path / "whole", "-q") == 0
    out = tmp_path / "out"
    assert run_toy(artifact, out, "-q", "--steps", "4") == 0
    damage(folder_of(out, 4) / "params.safetensors", "flipped")
    assert run_toy(artifact, out, "-q", "--resume", "--strict") == 4
    one_error(capsys.readouterr().err, "E-CKPT-002")
    assert run_toy(artifact, out, "-q", "--resume") == 0
    assert "step-000000004 is not whole" in capsys.readouterr().err
    assert len(list((out / "checkpoints").glob("step-000000004.torn-*"))) == 1
    assert contents(out, 6) == contents(tmp_path / "whole", 6) and metrics(out) == metrics(tmp_path / "whole")


def test_row_55_all_bad(artifact: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_toy(artifact, out, "-q") == 0
    for step, how in zip((2, 4, 6), ("missing", "cut", "flipped"), strict=True):
        damage(folder_of(out, step) / "params.safetensors", how)
    before = sorted(p.name for p in (out / "checkpoints").iterdir())
    assert run_toy(artifact, out, "-q", "--resume") == 4
    text = one_error(capsys.readouterr().err.splitlines()[-1], "E-CKPT-002")
    assert all(f"step-00000000{step}" in text for step in (2, 4, 6))
    assert sorted(p.name for p in (out / "checkpoints").iterdir()) == before
    assert run_toy(artifact, out, "-q", "--resume=auto") == 4  # auto starts anew only where there is nothing


# Rows 26 and 56: whose it is


@pytest.mark.parametrize("component", ["language", "model", "prepare", "objective", "generate", "optimizer", "run"])
def test_row_56_another_run_file(artifact: str, out: Path, component: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_toy(artifact, out, "-q", "--steps", "2") == 0
    made = toy.manifest()
    other = attrs.evolve(made.run.identity, **{component: "0" * 64, "run": "1" * 64})
    path = toy.write(Path(artifact).parent, attrs.evolve(made, run=attrs.evolve(made.run, identity=other)), "other.tar")
    assert run_toy(path, out, "-q", "--resume") == 4
    text = one_error(capsys.readouterr().err, "E-CKPT-003")
    old, new = getattr(made.run.identity, component), getattr(other, component)
    assert f"{component} differs" in text and old in text and new in text and "--fork" in text
    assert steps(out) == [2]


def test_row_56_another_seed(artifact: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_toy(artifact, out, "-q", "--steps", "2") == 0
    path = toy.write(Path(artifact).parent, toy.manifest(seed=8), "other.tar")
    assert run_toy(path, out, "-q", "--resume") == 4
    assert "seed differs: the checkpoint has 7, this run has 8" in one_error(capsys.readouterr().err, "E-CKPT-003")


def test_rows_26_and_56_other_data(artifact: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_toy(artifact, out, "-q", "--steps", "2") == 0
    np.savez(Path(artifact).with_name("rows.npz"), **toy.records(toy.N, 9))
    assert run_toy(artifact, out, "-q", "--resume") == 4
    text = one_error(capsys.readouterr().err, "E-CKPT-003")
    assert "data (loader rows, file rows.npz) differs" in text and len(re.findall(r"[0-9a-f]{64}", text)) == 2


def test_what_is_not_identity_may_change(artifact: str, tmp_path: Path) -> None:
    """Steps, cadences, the name, passes' data and another library: the run goes on."""
    assert run_toy(artifact, tmp_path / "o", "-q", "--steps", "2") == 0
    np.savez(tmp_path / "held.npz", **toy.records(12, 9))
    path = toy.write(tmp_path, toy.manifest(name="other", steps=8, log_every=1, checkpoint_every=3), "other.tar")
    assert run_toy(path, tmp_path / "o", "-q", "--resume") == 0 and steps(tmp_path / "o")[-1] == 8


def test_a_forks_weights_take_the_place_of_the_seeds(
    artifact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside them they would take memory that is in no plan."""

    def made(*more: str) -> int:
        """Tensors that a run of a step makes of arrays."""
        tensor = mock.Mock(side_effect=HostDevice(toy.manifest(), {}).tensor)
        monkeypatch.setattr(HostDevice, "tensor", tensor)
        assert run_toy(artifact, tmp_path / str(len(more)), "-q", "--steps", "1", *more) == 0
        monkeypatch.undo()
        return tensor.call_count

    assert 0 < made() == made("--fork", str(tmp_path / "0"))


def test_row_56_fork_starts_a_new_run_from_the_weights(
    artifact: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_toy(artifact, tmp_path / "a", "-q") == 0
    path = toy.write(tmp_path, toy.manifest(seed=8), "other.tar")
    assert run_toy(path, tmp_path / "b", "-q", "--fork", str(tmp_path / "a"), "--steps", "1") == 0
    one = checkpoint.load(str(folder_of(tmp_path / "b", 1)))
    assert one.entry.cursor.step == 1 and one.entry.origin == contents(tmp_path / "a", 6)["params.safetensors"]
    scratch = tmp_path / "c"
    assert run_toy(path, scratch, "-q", "--steps", "1") == 0
    fresh = checkpoint.load(str(folder_of(scratch, 1)))
    assert not np.array_equal(fresh.params["net/w"], one.params["net/w"]) and fresh.entry.run_id != one.entry.run_id
    assert run_toy(path, tmp_path / "b", "-q", "--resume") == 0  # and it is a run like any other
    assert checkpoint.load(str(folder_of(tmp_path / "b", 6))).entry.run_id == one.entry.run_id
    assert run_toy(path, tmp_path / "d", "-q", "--fork", str(folder_of(tmp_path / "a", 4))) == 0
    assert run_toy(path, tmp_path / "a", "-q", "--fork", str(tmp_path / "a")) == 4
    one_error(capsys.readouterr().err, "E-CKPT-006")
    assert run_toy(path, tmp_path / "e", "-q", "--fork", str(tmp_path / "nothing")) == 4
    assert "--fork takes" in one_error(capsys.readouterr().err, "E-CKPT-001")


def test_fork_needs_the_same_tensors(artifact: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_toy(artifact, tmp_path / "a", "-q") == 0
    path = folder_of(tmp_path / "a", 6)
    loaded = checkpoint.load(str(path))
    bad = {"net/w": np.zeros(4, np.float32), "net/other": np.zeros(1, np.float32)}
    shutil.rmtree(path)
    store.Store(str(path.parent), 3, print).save(attrs.evolve(loaded.entry, files=()), bad, OPTIM)
    assert run_toy(artifact, tmp_path / "b", "-q", "--fork", str(tmp_path / "a")) == 4
    text = one_error(capsys.readouterr().err, "E-CKPT-007")
    assert (
        "net/t is missing" in text
        and "net/other is not in the run" in text
        and "net/w is f32[4], the run has f32[3]" in text
    )


def test_a_directory_with_checkpoints_is_not_started_over(
    artifact: str, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_toy(artifact, out, "-q") == 0
    before = contents(out, 6)
    assert run_toy(artifact, out, "-q") == 4
    assert "--resume" in one_error(capsys.readouterr().err, "E-CKPT-006") and contents(out, 6) == before


@pytest.mark.parametrize("version, word", [(2, "newer"), (0, "wrote it")])
def test_row_57_other_formats(
    artifact: str, out: Path, version: int, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_toy(artifact, out, "-q") == 0
    path = folder_of(out, 6) / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"version":1', b'"version":%d' % version))
    assert run_toy(artifact, out, "-q", "--resume") == 4
    assert word in one_error(capsys.readouterr().err, "E-CKPT-004")


# Rows 58 to 62: the directory


def test_row_58_strangers_are_left_alone(artifact: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = out / "checkpoints"
    names = [
        "step-abc",
        "step-12.bak",
        "step-0000000001",
        "step-12",
        ".nfs0001",
        ".tmp-1",
        "latest",
        "step-000000099.bak",
    ]
    for name in names:
        (folder / name).mkdir(parents=True)
    (folder / "step-000000050").write_text("a file")
    mine = folder / ".tmp-000000002-99999-0123abcd"
    mine.mkdir()
    (mine / "params.safetensors").write_bytes(b"half")
    guest = folder / ".tmp-000000002-99998-0123abcd"
    guest.mkdir()
    (guest / "notes.txt").write_text("someone's")
    link = folder / ".tmp-000000002-99997-0123abcd"
    link.symlink_to(Path(artifact).parent)
    assert run_toy(artifact, out, "-v") == 0
    err = capsys.readouterr().err
    assert all(f"/{name}" in err for name in names)
    assert all((folder / name).is_dir() for name in names)
    assert not mine.exists() and (guest / "notes.txt").exists() and link.is_symlink() and Path(artifact).exists()


@pytest.mark.parametrize("number", [13, 30])  # permission denied, read-only
def test_row_59_a_directory_that_cannot_be_written(
    artifact: str, out: Path, number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before step 1. (The tests may run as root, whom no mode stops: the system call is made to fail.)"""
    real = os.mkdir

    def mkdir(path: str, *args: Any) -> None:
        if ".tmp-" in str(path):
            raise OSError(number, os.strerror(number), path)
        real(path, *args)

    monkeypatch.setattr(os, "mkdir", mkdir)
    assert run_toy(artifact, out, "-q") == 5
    one_error(capsys.readouterr().err, "E-IO-010")
    assert not (out / "metrics.jsonl").exists()


def test_row_59_a_place_where_nothing_can_be_made(artifact: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_toy(artifact, Path("/proc/no-such-place"), "-q") == 5
    one_error(capsys.readouterr().err, "E-IO-010")


def test_row_74_no_room_is_found_before_the_first_step(
    artifact: str, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(atomic_files, "free_bytes", lambda path: 2**20)
    assert run_toy(artifact, out, "-q") == 5
    assert "1048604" in one_error(capsys.readouterr().err, "E-IO-011") and steps(out) == []


def test_row_60_a_published_step_is_never_overwritten(tmp_path: Path) -> None:
    saved = make(tmp_path / "c")
    path = Path(saved.save(entry(100), PARAMS, OPTIM))
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in path.iterdir()}
    saved.save(entry(100), PARAMS, OPTIM)  # the same again is no fault, and writes nothing
    with pytest.raises(RunError) as caught:
        saved.save(entry(100), {**PARAMS, "net/t": np.zeros(1, np.float32)}, OPTIM)
    assert caught.value.code.name == "E-CKPT-005"
    assert {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in path.iterdir()} == before
    assert [p.name for p in (tmp_path / "c").iterdir()] == ["step-000000100"]


def test_row_61_a_second_process(artifact: str, out: Path) -> None:
    """The first is stopped within a step, holding the lock; the second refuses and says who holds it."""
    first = subprocess.Popen(arguments(artifact, out, "-q"), env=environment(TOY_SIGNAL="train:3:SIGSTOP"))
    try:
        os.waitpid(first.pid, os.WUNTRACED)
        before = steps(out)
        second = child(artifact, out, "--resume=auto")
        assert second.returncode == 4
        text = one_error(second.stderr, "E-LOCK-001")
        assert f"process {first.pid} on {os.uname().nodename} since 20" in text and steps(out) == before
        first.send_signal(signal.SIGCONT)  # row 79: and it goes on as if nothing had been
        assert first.wait(30) == 0 and steps(out)[-1] == 6
    finally:
        first.kill()
        first.wait()


def test_row_62_a_lock_of_a_dead_process_is_no_lock(artifact: str, out: Path) -> None:
    dead = child(artifact, out, "-q", env={"TOY_SIGNAL": "train:5:SIGKILL"})
    assert dead.returncode == -9 and (out / "lock").exists() and steps(out) == [2]
    assert run_toy(artifact, out, "-q", "--resume") == 0


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 4096, b"\xff", b"3", b"{}", b'{"pid":[],"host":{},"since":0}'])
def test_whatever_a_lock_s_holder_wrote_into_it(tmp_path: Path, text: bytes) -> None:
    with directory_lock.hold(str(tmp_path), lambda _: None):
        (tmp_path / "lock").write_bytes(text)
        with pytest.raises(RunError) as caught, directory_lock.hold(str(tmp_path), lambda _: None):
            pass
    assert caught.value.code.name == "E-LOCK-001"


def test_a_lock_that_its_holder_gave_up_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the opening of the file and the lock on it, its holder removed it: another one could be there by now."""
    real = directory_lock.fcntl.flock

    def late(fd: int, how: int) -> None:
        (tmp_path / "lock").unlink()
        real(fd, how)

    monkeypatch.setattr(directory_lock.fcntl, "flock", late)
    with pytest.raises(RunError) as caught, directory_lock.hold(str(tmp_path), lambda _: None):
        pass
    assert caught.value.code.name == "E-LOCK-001"


def test_row_62_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(fd: int, how: int) -> None:
        raise OSError(37, "No locks available")

    warnings: list[str] = []
    monkeypatch.setattr(directory_lock.fcntl, "flock", none)
    with directory_lock.hold(str(tmp_path), warnings.append) as locked:
        assert not locked
    assert len(warnings) == 1


# Pruning


@settings(max_examples=60, deadline=None)
@given(
    keep=st.integers(2, 4),
    plan=st.lists(st.tuples(st.integers(1, 1200), st.booleans()), min_size=1, max_size=9, unique_by=lambda p: p[0]),
)
def test_pruning_keeps_the_newest_of_its_own(
    tmp_path_factory: pytest.TempPathFactory, keep: int, plan: list[tuple[int, bool]]
) -> None:
    """Two runs in one directory, steps past 999: only the saving run's older ones go, never the last ``keep``."""
    saved = make(tmp_path_factory.mktemp("prune") / "c", keep)
    mine, theirs = "a" * 16, "b" * 16
    there: dict[int, str] = {}
    for step, own in plan:
        run_id = mine if own else theirs
        saved.save(entry(step, run_id), PARAMS, OPTIM)
        there[step] = run_id
        older = sorted(s for s, r in there.items() if r == run_id and s <= step)
        for gone in older[:-keep]:
            del there[gone]
        assert saved.steps() == sorted(there)
    for step in saved.steps():
        checkpoint.load(saved.path(step))


def test_keep(artifact: str, out: Path) -> None:
    assert run_toy(artifact, out, "-q", "--keep", "2") == 0 and steps(out) == [4, 6]
    assert run_toy(artifact, out, "-q", "--keep", "5", "--resume", "--steps", "12") == 0
    assert steps(out) == [4, 6, 8, 10, 12]


# The manifest


def test_the_manifest_says_what_it_must(artifact: str, out: Path) -> None:
    assert run_toy(artifact, out, "-q", "--steps", "5") == 0
    data = json.loads((folder_of(out, 5) / "manifest.json").read_bytes())
    assert data["cursor"] == {
        "step": 5,
        "records": 40,
        "stage": 0,
        "stage_step": 5,
        "stage_records": 40,
        "positions": {"rows": 40},
        "counters": {"tokens": 40},
    }
    assert sorted(f["path"] for f in data["files"]) == ["optim.safetensors", "params.safetensors"]
    assert set(json.loads((folder_of(out, 5) / "info.json").read_bytes())) == {"host", "pid", "time"}


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_fuzz_a_damaged_checkpoint_is_torn_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    base = tmp_path_factory.getbasetemp() / "fuzzed"
    if not base.exists():
        make(base).save(entry(7), PARAMS, OPTIM)
    path = base / "step-000000007"
    target = path / data.draw(st.sampled_from(["manifest.json", "params.safetensors", "optim.safetensors"]))
    before = target.read_bytes()
    bytes_ = bytearray(before)
    at = data.draw(st.integers(0, len(bytes_) - 1))
    bytes_[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    try:
        target.write_bytes(bytes(bytes_))
        try:
            loaded = checkpoint.load(str(path))
        except (checkpoint.Torn, RunError):
            return
        assert target.name == "manifest.json" or bytes(bytes_) == before
        assert canonical_json.loads_canonical(loaded.entry.to_bytes()) is not None
    finally:
        target.write_bytes(before)


def test_the_identity_of_data_is_its_bytes_and_its_forms() -> None:
    made = toy.manifest()
    one = identity.components(made, {"rows": [["a.npz", "1"]]})
    assert one == identity.components(made, {"rows": [["moved/b.npz", "1"]]})
    assert one["data"] != identity.components(made, {"rows": [["a.npz", "2"]]})["data"]
    other = attrs.evolve(made, run=attrs.evolve(made.run, identity=attrs.evolve(made.run.identity, data="0")))
    assert one["data"] != identity.components(other, {"rows": [["a.npz", "1"]]})["data"]
    assert list(one) == [a.name for a in attrs.fields(manifest.Identity)]
