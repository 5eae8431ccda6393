"""Symbolic links in a directory of a run: what they lead to is neither removed nor changed, whatever the run does."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from artifacts.format import tar_writer
from tests.artifacts import toy
from tests.artifacts.support import checkpoint, contents, metrics, one_error, run_toy, steps


def tree(folder: Path) -> dict[str, str]:
    """Path -> what it is: where a link leads to, a file's digest, or that it is a directory."""
    out = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            out[str(path.relative_to(folder))] = f"link to {os.readlink(path)}"
        elif path.is_file():
            out[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            out[str(path.relative_to(folder))] = "directory"
    return out


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    return folder


def moved(path: Path, outside: Path) -> Path:
    """``path`` is now in ``outside``, and a link to it in its place."""
    kept = outside / path.name
    shutil.move(path, kept)
    path.symlink_to(kept)
    return kept


@pytest.mark.parametrize("step", [2, 4, 6])
def test_a_checkpoint_that_is_a_link_is_passed_over_and_never_removed(
    artifact: str, out: Path, outside: Path, step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether it is the newest, which the run would start from, or an older one, which it would remove."""
    assert run_toy(artifact, out, "-q") == 0
    kept, whole = contents(out, step), contents(out, 6)
    moved(checkpoint(out, step), outside)
    before = tree(outside)
    assert run_toy(artifact, out, "-q", "--resume", "--keep", "2", "--steps", "12") == 0
    warned = f"step-00000000{step} is not whole (it is a symbolic link" in capsys.readouterr().err
    assert warned == (step == 6), "only the newest is looked at"
    assert tree(outside) == before
    assert {key: before[f"step-00000000{step}/{key}"] for key in kept} == kept
    names = sorted(p.name for p in (out / "checkpoints").iterdir())
    assert not [name for name in names if name.startswith(".tmp")]
    assert steps(out)[-2:] == [10, 12]
    if step == 6:  # the run made it anew, and moved the link aside as a link
        assert [n for n in names if n.startswith("step-000000006.torn-")] and whole
    else:
        assert checkpoint(out, step).is_symlink()


@pytest.mark.parametrize("lead", ["nowhere", "file", "checkpoint", "itself", "above"])
def test_whatever_the_link_of_a_step_leads_to(artifact: str, out: Path, outside: Path, lead: str) -> None:
    """To what is not there, to a file, to another checkpoint of this run, to itself, to the folder that it is in."""
    assert run_toy(artifact, out, "-q", "--keep", "9") == 0
    to = {
        "nowhere": outside / "nowhere",
        "file": outside / "mine.txt",
        "checkpoint": checkpoint(out, 4),
        "itself": checkpoint(out, 8),
        "above": out / "checkpoints",
    }
    checkpoint(out, 8).symlink_to(to[lead])
    shutil.rmtree(checkpoint(out, 2))
    checkpoint(out, 2).symlink_to(to[lead])
    before, fourth, last = tree(outside), contents(out, 4), contents(out, 6)
    assert run_toy(artifact, out, "-q", "--resume", "--keep", "9", "--steps", "12") == 0
    assert tree(outside) == before and contents(out, 4) == fourth and contents(out, 6) == last
    assert not checkpoint(out, 8).is_symlink() and steps(out)[-1] == 12
    assert run_toy(artifact, out, "-q", "--resume", "--keep", "2", "--steps", "16") == 0
    assert tree(outside) == before and checkpoint(out, 2).is_symlink()
    assert [step for step in steps(out) if not checkpoint(out, step).is_symlink()] == [14, 16]


def test_a_checkpoint_under_the_name_of_another_step_is_not_taken(
    artifact: str, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_toy(artifact, out, "-q") == 0
    shutil.copytree(checkpoint(out, 4), checkpoint(out, 9))
    assert run_toy(artifact, out, "-q", "--resume", "--steps", "8") == 0
    assert "step-000000009 is not whole (it is a checkpoint of step 4)" in capsys.readouterr().err
    assert steps(out)[-1] == 9 and metrics(out)[-1]["step"] == 8


def test_links_of_temporary_names(artifact: str, out: Path, outside: Path) -> None:
    """One that leads nowhere is what an older runner left, and goes; what another leads to stays."""
    folder = out / "checkpoints"
    folder.mkdir(parents=True)
    dangling, leading = folder / ".tmp-000000002-99999-0123abcd", folder / ".tmp-000000002-99998-0123abcd"
    dangling.symlink_to(outside / "nowhere")
    (outside / "params.safetensors").write_text("mine")
    leading.symlink_to(outside)
    inner = folder / ".tmp-000000002-99997-0123abcd"
    inner.mkdir()
    (inner / "params.safetensors").symlink_to(outside / "params.safetensors")
    before = tree(outside)
    assert run_toy(artifact, out, "-q") == 0
    assert tree(outside) == before
    assert not dangling.is_symlink() and leading.is_symlink() and not inner.exists()


@pytest.mark.parametrize("there", [True, False])
def test_checkpoints_that_are_a_link_are_refused(
    artifact: str, out: Path, outside: Path, there: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another run may keep its checkpoints there, under a lock of its own."""
    other = outside / "other"
    assert run_toy(artifact, other, "-q") == 0
    out.mkdir()
    (out / "checkpoints").symlink_to(other / "checkpoints" if there else outside / "nowhere")
    before = tree(outside)
    for more in ([], ["--resume"], ["--resume=auto"]):
        assert run_toy(artifact, out, "-q", *more) == 5
        said = one_error(capsys.readouterr().err, "E-IO-010")
        assert "symbolic link" in said and "--out" in said
    assert tree(outside) == before


def test_a_run_directory_that_is_a_link_is_what_it_leads_to(artifact: str, tmp_path: Path, outside: Path) -> None:
    (tmp_path / "link").symlink_to(outside)
    assert run_toy(artifact, tmp_path / "link", "-q") == 0 and steps(outside) == [2, 4, 6]
    assert run_toy(artifact, tmp_path / "link", "-q", "--resume", "--steps", "8", "--keep", "2") == 0
    assert steps(outside) == [6, 8] and (outside / "mine.txt").read_text() == "mine"
    assert run_toy(artifact, tmp_path / "fork", "-q", "--fork", str(tmp_path / "link")) == 0
    (tmp_path / "one").symlink_to(checkpoint(outside, 8))  # a path that the user names is followed
    assert run_toy(artifact, tmp_path / "again", "-q", "--fork", str(tmp_path / "one")) == 0


def with_forms(artifact: str) -> str:
    tar_writer.write(artifact, toy.manifest(), {**toy.MEMBERS, "identity.json": b'{"forms":[]}'}, force=True)
    return artifact


@pytest.mark.parametrize("name", ["metrics.jsonl", "identity.json"])
@pytest.mark.parametrize("there", [True, False])
def test_files_of_a_run_that_are_links(artifact: str, out: Path, outside: Path, name: str, there: bool) -> None:
    """The link is replaced by the file: nothing is written through it."""
    out.mkdir()
    (out / name).symlink_to(outside / ("mine.txt" if there else "nowhere"))
    before = tree(outside)
    assert run_toy(with_forms(artifact), out, "-q") == 0
    assert tree(outside) == before and not (out / name).is_symlink()
    assert run_toy(artifact, out, "-q", "--resume", "--steps", "8") == 0 and len(metrics(out)) > 8


@pytest.mark.parametrize("there", [True, False])
def test_a_lock_that_is_a_link_is_not_written_through(
    artifact: str, out: Path, outside: Path, there: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    out.mkdir()
    (out / "lock").symlink_to(outside / ("mine.txt" if there else "nowhere"))
    before = tree(outside)
    assert run_toy(artifact, out, "-q") == 5
    assert "symbolic link" in one_error(capsys.readouterr().err, "E-IO-010")
    assert tree(outside) == before


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: os.mkfifo(path)], ids=["directory", "fifo"])
def test_what_is_no_file_is_not_waited_for(artifact: str, out: Path, make: Callable[[Path], None]) -> None:
    out.mkdir()
    make(out / "identity.json")
    assert run_toy(with_forms(artifact), out, "-q") == 0
