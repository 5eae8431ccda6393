"""Several microbatches in one call: the run is the one that takes them one by one, wherever it is stopped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import attrs
import pytest

from artifacts.base.errors import RunError
from artifacts.checkpoint import contents as saved
from artifacts.describe import describe
from artifacts.format import manifest as m
from artifacts.format import manifest_reader, tarball
from tests.artifacts import toy
from tests.artifacts.support import checkpoint, contents, metrics, run_toy
from tests.artifacts.test_loop import looks, stopped_run


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def artifact_of(folder: Path, degree: int, **run: Any) -> str:
    made = toy.manifest(**{"microbatches": 5, "steps": 4, **run})
    return toy.write(folder, toy.stacked(made, degree) if degree > 1 else made, f"by-{degree}.tar")


def tensors(out: Path, step: int) -> tuple[Any, ...]:
    """What a checkpoint holds of the run, of which the artifact's hash is no part."""
    folder = checkpoint(out, step)
    return (
        *((folder / name).read_bytes() for name in ("params.safetensors", "optim.safetensors")),
        saved.read_entry(str(folder))[0].cursor,
    )


@pytest.mark.parametrize("degree", [2, 3, 4, 5])
def test_the_run_is_that_of_one_microbatch_a_call(tmp_path: Path, degree: int) -> None:
    """Of five microbatches: a rest of one, of two, of one, and none."""
    assert run_toy(artifact_of(tmp_path, 1), tmp_path / "one", "-q") == 0
    assert run_toy(artifact_of(tmp_path, degree), tmp_path / "many", "-q") == 0
    assert metrics(tmp_path / "many") == metrics(tmp_path / "one")
    assert tensors(tmp_path / "many", 4) == tensors(tmp_path / "one", 4)


def test_looks_before_every_trip_of_every_call(tmp_path: Path) -> None:
    call, passes = 1 + toy.TRIPS + 1, 2 * 2 * (1 + toy.TRIPS)
    assert looks(artifact_of(tmp_path, 2), tmp_path / "out") == 4 * 3 * call + passes


def test_stop_at_every_place_and_resume_is_the_uninterrupted_run(tmp_path: Path) -> None:
    artifact, whole = artifact_of(tmp_path, 2, steps=2), tmp_path / "whole"
    for k in range(1, looks(artifact, whole) + 1):
        out = tmp_path / f"stop-{k}"
        assert stopped_run(artifact, out, k) == (143, 0)
        assert run_toy(artifact, out, "--resume", "-q") == 0
        assert contents(out, 2) == contents(whole, 2), k
        assert metrics(out) == metrics(whole), k


@pytest.mark.parametrize(("first", "then"), [(1, 4), (4, 1), (2, 3)])
def test_a_checkpoint_resumes_at_another_degree(tmp_path: Path, first: int, then: int) -> None:
    artifacts = {degree: artifact_of(tmp_path, degree) for degree in (1, first, then)}
    assert run_toy(artifacts[1], tmp_path / "whole", "-q") == 0
    assert stopped_run(artifacts[first], tmp_path / "out", 30)[0] == 143
    assert run_toy(artifacts[then], tmp_path / "out", "--resume", "-q") == 0
    assert tensors(tmp_path / "out", 4) == tensors(tmp_path / "whole", 4)
    assert metrics(tmp_path / "out") == metrics(tmp_path / "whole")


def test_the_last_copy_gives_the_diagnostic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for degree in (1, 5):
        assert run_toy(artifact_of(tmp_path, degree), tmp_path / f"out-{degree}", "--diagnostic", "rows") == 0
        text = capsys.readouterr().out
        shown.append(text[text.index("diagnostic rows, step 4") :].split("pass ")[0])
    assert shown[0] == shown[1]


def test_inspect_tells_the_degree(tmp_path: Path) -> None:
    with tarball.open(artifact_of(tmp_path, 4)) as artifact:
        text = describe(artifact)
    assert "4 steps x 5 microbatches, 4 a call, f32" in text and "\n  train*4: " in text


def changed(made: m.Manifest, name: str, **more: Any) -> m.Manifest:
    return attrs.evolve(made, phases=tuple(attrs.evolve(p, **more) if p.name == name else p for p in made.phases))


def without(made: m.Manifest, *names: str) -> m.Manifest:
    return attrs.evolve(made, phases=tuple(p for p in made.phases if p.name not in names))


def own_less(port: m.Port) -> m.Port:
    return attrs.evolve(port, shape=port.shape[1:]) if port.kind in ("metric", "ctx") and port.shape else port


def flat(made: m.Manifest, side: str) -> m.Manifest:
    phase = made.phase("train*2")
    assert phase
    return changed(made, "train*2", **{side: tuple(map(own_less, getattr(phase, side)))})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda made: without(made, "train"), "the phase train is missing"),
        (lambda made: without(made, "generate.step*2"), "the phase generate.step*2 is missing"),
        (lambda made: without(made, "generate.finish*2"), "generate.finish is missing for some microbatches"),
        (lambda made: attrs.evolve(made, run=attrs.evolve(made.run, microbatches=1)), "a step has 1 microbatches"),
        (lambda made: attrs.evolve(made, run=attrs.evolve(made.run, microbatches=4)), "the phase train has no place"),
        (lambda made: changed(made, "generate.init*2", stack=3), "phase generate.init*2: stack is 3"),
        (lambda made: changed(made, "train*2", stack=0), "*2 has no place"),
        (lambda made: changed(made, "eval.held", stack=2), "phase eval.held: stack is 2"),
        (lambda made: flat(made, "outputs"), "metric loss is not [2]"),
        (lambda made: flat(made, "inputs"), "ctx records is not i64[2]"),
    ],
)
def test_a_manifest_whose_degrees_do_not_fit_is_refused(change: Any, words: str) -> None:
    made = toy.stacked(toy.manifest(microbatches=5), 2)
    assert manifest_reader.read_manifest(made.to_bytes()) == made
    with pytest.raises(RunError) as caught:
        manifest_reader.read_manifest(change(made).to_bytes())
    assert words in str(caught.value)


def test_each_copys_batch_is_checked(tmp_path: Path) -> None:
    made = toy.stacked(toy.manifest(microbatches=5), 2)
    phase = made.phase("generate.init*2")
    assert phase
    inputs = tuple(attrs.evolve(p, shape=p.shape[1:]) if p.kind == "field" else p for p in phase.inputs)
    with pytest.raises(RunError, match="field x is not made so"):
        manifest_reader.read_manifest(changed(made, "generate.init*2", inputs=inputs).to_bytes())
