"""The log of a run directory, and what a start there may not take away: no whole line is lost in silence."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from artifacts.base import atomic_files, directory_lock
from artifacts.checkpoint import identity_forms
from artifacts.format import tar_writer
from artifacts.metrics_log import HEADER
from tests.artifacts import toy
from tests.artifacts.support import forked, metrics, run_toy, steps

Captured = pytest.CaptureFixture[str]
NULS = b"\0" * 40


def interrupted_log(artifact: str, out: Path) -> list[bytes]:
    """A run that is stopped in step 5 of 6: the lines of its log, the header and five more."""
    assert forked(artifact, out, "train:9:SIGTERM") == 143
    return (out / "metrics.jsonl").read_bytes().splitlines(keepends=True)


def resumed(artifact: str, out: Path, capsys: Captured) -> list[str]:
    """Go on to step 6: what was said on standard error."""
    assert run_toy(artifact, out, "-q", "--resume") == 0
    return capsys.readouterr().err.splitlines()


def uninterrupted_log(artifact: str, folder: Path) -> list[dict]:
    """The log of a run that was never stopped."""
    assert run_toy(artifact, folder / "whole", "-q") == 0
    return metrics(folder / "whole")


def kept(out: Path, word: str) -> bytes:
    """The bytes of the one file beside the log, metrics.jsonl.WORD-XXXXXXXX."""
    (path,) = out.glob(f"metrics.jsonl.{word}-*")
    return path.read_bytes()


def test_the_log_is_cut_back_to_the_checkpoint(artifact: str, tmp_path: Path) -> None:
    """Killed in step 6, the log has steps 1 to 5; the checkpoint is of step 4, and the log goes on from there."""
    out = tmp_path / "out"
    assert forked(artifact, out, "train:11:SIGKILL") == -signal.SIGKILL
    assert [line["step"] for line in metrics(out) if "pass" not in line] == [1, 2, 3, 4, 5]
    with open(out / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "lo')  # torn
    assert run_toy(artifact, out, "--resume", "-q") == 0
    assert metrics(out) == uninterrupted_log(artifact, tmp_path)
    assert not list(out.glob("metrics.jsonl.*"))


BROKEN = [t + b"\n" for t in (NULS, b'{"step": 2, "lo' + NULS, b'{"step": 2,', b"\xff\xfe", b"[1]", b'{"a": NaN}')]


@pytest.mark.parametrize("text", BROKEN)
@pytest.mark.parametrize("place", [0, 1, 2, 4])
def test_a_broken_line_is_kept_apart_and_the_others_stay(
    artifact: str, tmp_path: Path, capsys: Captured, text: bytes, place: int
) -> None:
    out = tmp_path / "out"
    lines = interrupted_log(artifact, out)
    gone, lines[place] = lines[place], text
    (out / "metrics.jsonl").write_bytes(b"".join(lines))
    (said,) = resumed(artifact, out, capsys)
    assert f"metrics.jsonl has a broken line, {place + 1}: it is now in {out}/metrics.jsonl.broken-" in said
    assert kept(out, "broken") == text
    left = [json.loads(line)["step"] for line in lines[1:] if line != text]
    assert [line["step"] for line in metrics(out)] == [*left, 5, 6, 6]
    assert len(left) == (5 if gone == HEADER else 4)


@pytest.mark.parametrize("before", [False, True])
def test_zeros_over_the_ends_of_lines_take_no_neighbour_with_them(
    artifact: str, out: Path, capsys: Captured, before: bool
) -> None:
    lines = interrupted_log(artifact, out)
    left = [json.loads(line)["step"] for line in (*lines[1:3], *lines[4:])]
    lines[2:4] = [lines[2][:-1] + NULS] if before else [lines[2] + NULS]
    (out / "metrics.jsonl").write_bytes(b"".join(lines))
    assert len(resumed(artifact, out, capsys)) == 1 and NULS in kept(out, "broken")
    assert [line["step"] for line in metrics(out)] == [*left, 5, 6, 6]


def test_several_broken_lines_are_told_of_once(artifact: str, out: Path, capsys: Captured) -> None:
    lines = interrupted_log(artifact, out)
    lines[2:4] = [NULS + b"\n", b"no\n"]
    (out / "metrics.jsonl").write_bytes(b"".join(lines) + b'{"step": 4, "lo')
    said = resumed(artifact, out, capsys)
    assert len(said) == 2 and "has 2 broken lines, from line 3: they are now in" in said[0]
    assert said[1] == f"warning: {out}/metrics.jsonl ends in the middle of a line: that line is cut"
    assert kept(out, "broken") == NULS + b"\nno\n"
    assert resumed(artifact, out, capsys) == []


@pytest.mark.parametrize("tail, said", [(b"", 0), (b"\0" * 999, 0), (b"\n" + NULS, 1), (b'\n{"step": 4, "lo', 1)])
def test_a_last_line_that_is_whole_stays_whatever_follows_it(
    artifact: str, tmp_path: Path, capsys: Captured, tail: bytes, said: int
) -> None:
    """After a loss of power a file may end in zeros, and its last newline may be missing."""
    out = tmp_path / "out"
    lines = interrupted_log(artifact, out)
    (out / "metrics.jsonl").write_bytes(b"".join(lines).rstrip(b"\n") + tail)
    assert len(resumed(artifact, out, capsys)) == said
    assert metrics(out) == uninterrupted_log(artifact, tmp_path) and not list(out.glob("metrics.jsonl.*"))


@pytest.mark.parametrize("text", [b"", b"\n\n", HEADER, HEADER[:20], NULS, None])
def test_a_log_without_lines_is_gone_on_with(artifact: str, out: Path, text: bytes | None) -> None:
    interrupted_log(artifact, out)
    os.unlink(out / "metrics.jsonl")
    if text is not None:
        (out / "metrics.jsonl").write_bytes(text)
    assert run_toy(artifact, out, "-q", "--resume") == 0
    assert [line["step"] for line in metrics(out)] == [5, 6, 6]
    assert not list(out.glob("metrics.jsonl.*"))


def test_a_log_of_another_version_is_put_aside(artifact: str, out: Path, capsys: Captured) -> None:
    lines = interrupted_log(artifact, out)
    newer = b'{"schema": "sexpgpu-metrics", "version": 2}\n' + b"".join(lines[1:])
    (out / "metrics.jsonl").write_bytes(newer)
    (said,) = resumed(artifact, out, capsys)
    assert "is not a log of this version: it is now" in said and kept(out, "old") == newer


def test_a_link_is_read_and_what_it_leads_to_stays(artifact: str, tmp_path: Path, capsys: Captured) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    interrupted_log(artifact, out)
    os.rename(out / "metrics.jsonl", elsewhere)
    os.symlink(elsewhere, out / "metrics.jsonl")
    before = elsewhere.read_bytes()
    (said,) = resumed(artifact, out, capsys)
    assert "is a link" in said and elsewhere.read_bytes() == before
    assert metrics(out) == uninterrupted_log(artifact, tmp_path)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_is_left_and_told_of(artifact: str, out: Path, capsys: Captured, make) -> None:  # noqa: ANN001
    interrupted_log(artifact, out)
    os.unlink(out / "metrics.jsonl")
    make(out / "metrics.jsonl")
    (said,) = resumed(artifact, out, capsys)
    assert "metrics.jsonl cannot be written (it is not a plain file); the run goes on without it" in said
    assert steps(out) == [2, 4, 6] and not (out / "metrics.jsonl").is_file()


def test_a_log_that_cannot_be_kept_apart_is_not_touched(
    artifact: str, out: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = interrupted_log(artifact, out)
    lines[2] = NULS + b"\n"
    (out / "metrics.jsonl").write_bytes(b"".join(lines))
    real = atomic_files._create_locked

    def full(folder: str) -> tuple[str, int]:
        if folder == str(out):
            raise OSError(28, "No space left on device")
        return real(folder)

    monkeypatch.setattr(atomic_files, "_create_locked", full)
    assert len(resumed(artifact, out, capsys)) == 1
    assert (out / "metrics.jsonl").read_bytes() == b"".join(lines) and steps(out)[-1] == 6


# A start where another run has left a log, but no checkpoint


def killed(artifact: str, out: Path) -> bytes:
    """A run that is killed in step 2, before its first checkpoint: its log."""
    assert forked(artifact, out, "train:3:SIGKILL") == -signal.SIGKILL
    assert steps(out) == [] and [line["step"] for line in metrics(out)] == [1]
    return (out / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("how", [(), ("--resume=auto",), ("--fork",)])
def test_a_start_keeps_the_log_of_one_that_left_no_checkpoint(
    artifact: str, tmp_path: Path, capsys: Captured, how: tuple[str, ...]
) -> None:
    """The same artifact or another one: nobody can tell from a log."""
    out = tmp_path / "out"
    before = killed(artifact, out)
    if how == ("--fork",):
        assert run_toy(artifact, tmp_path / "other", "-q", "--steps", "2") == 0
        how = ("--fork", str(tmp_path / "other"))
    assert run_toy(artifact, out, "-q", *how) == 0
    (said,) = capsys.readouterr().err.splitlines()
    assert f"{out}/metrics.jsonl is of a run that left no checkpoint: it is now {out}/metrics.jsonl.old-" in said
    assert kept(out, "old") == before and metrics(out)[0]["step"] == 1


def test_a_resume_from_before_the_first_step_is_no_new_start(artifact: str, tmp_path: Path, capsys: Captured) -> None:
    """Stopped in its first step, a run leaves a checkpoint of step 0."""
    out = tmp_path / "out"
    assert forked(artifact, out, "train:1:SIGTERM") == 143 and steps(out) == [0]
    assert run_toy(artifact, out, "-q", "--resume") == 0
    assert capsys.readouterr().err == "" and not list(out.glob("metrics.jsonl.*"))
    assert metrics(out) == uninterrupted_log(artifact, tmp_path)


@pytest.mark.parametrize("text", [b"", HEADER])
def test_a_log_that_says_nothing_is_not_kept(artifact: str, out: Path, capsys: Captured, text: bytes) -> None:
    out.mkdir()
    (out / "metrics.jsonl").write_bytes(text)
    assert run_toy(artifact, out, "-q") == 0
    assert capsys.readouterr().err == "" and not list(out.glob("metrics.jsonl.*"))


def test_a_refused_start_changes_nothing(artifact: str, out: Path, capsys: Captured) -> None:
    """With checkpoints there, a start without --resume is refused before it looks at the log."""
    interrupted_log(artifact, out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name != "lock"}
    assert run_toy(artifact, out) == 4
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name != "lock"} == before


def test_what_a_killed_start_left_is_swept(artifact: str, out: Path) -> None:
    """A temporary file of ours, and nothing that looks nearly like one."""
    out.mkdir()
    for name in (".tmp-12-0123abcd", ".tmp-12-0123abcd.bak", ".tmp-mine"):
        (out / name).write_text("half")
    (out / ".tmp-13-0123abcd").mkdir()
    assert run_toy(artifact, out, "-q") == 0
    assert sorted(path.name for path in out.glob(".tmp*")) == [".tmp-12-0123abcd.bak", ".tmp-13-0123abcd", ".tmp-mine"]


@pytest.mark.parametrize("link", [False, True])
def test_a_start_keeps_the_forms_of_another_run(tmp_path: Path, out: Path, capsys: Captured, link: bool) -> None:
    members = {**toy.MEMBERS, identity_forms.NAME: b'{"forms":[]}'}
    toy.write_data(tmp_path)
    artifact = str(tmp_path / "formed.tar")
    tar_writer.write(artifact, toy.manifest(), members)
    out.mkdir()
    (tmp_path / "mine").write_bytes(b'{"mine": 1}')
    if link:
        os.symlink(tmp_path / "mine", out / identity_forms.NAME)
    else:
        (out / identity_forms.NAME).write_bytes(b'{"mine": 1}')
    assert run_toy(artifact, out, "-q") == 0
    (said,) = capsys.readouterr().err.splitlines()
    assert "identity.json is not of this run: it is now" in said
    (aside,) = out.glob("identity.json.old-*")
    assert aside.read_bytes() == b'{"mine": 1}' and (tmp_path / "mine").read_bytes() == b'{"mine": 1}'
    assert (out / identity_forms.NAME).read_bytes() == members[identity_forms.NAME] and not (
        out / identity_forms.NAME
    ).is_symlink()
    assert run_toy(artifact, out, "-q", "--resume") == 0 and capsys.readouterr().err == ""


def test_a_file_called_lock_is_not_written_over(artifact: str, out: Path, capsys: Captured) -> None:
    """It is locked all the same."""
    out.mkdir()
    (out / directory_lock.NAME).write_text("the key of my house\n")
    assert run_toy(artifact, out, "-q") == 0 and (out / directory_lock.NAME).read_text() == "the key of my house\n"
    with directory_lock.hold(str(out), print):
        assert run_toy(artifact, out, "-q", "--resume") == 4
    assert "the directory is in use by another process" in capsys.readouterr().err


@pytest.mark.parametrize("there", [True, False])
def test_a_link_called_lock_is_not_written_through(
    artifact: str, tmp_path: Path, capsys: Captured, there: bool
) -> None:
    out, outside = tmp_path / "out", tmp_path / "outside"
    out.mkdir()
    if there:
        outside.write_text("mine")
    os.symlink(outside, out / directory_lock.NAME)
    assert run_toy(artifact, out) == 5
    assert "E-IO-010" in capsys.readouterr().err
    assert outside.read_text() == "mine" if there else not outside.exists()
