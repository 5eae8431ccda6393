"""The step: what runs, in which order, on what; a stop anywhere is as if the step had not begun."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from artifacts import run, session
from artifacts.base.errors import RunError
from artifacts.checkpoint import cursor
from artifacts.data.loaders import Training, open_records
from artifacts.device.interface import HostDevice
from artifacts.format import manifest as m
from artifacts.format import tarball
from artifacts.loop.phase_binding import bind
from artifacts.loop.step import Loop
from artifacts.options import parse
from artifacts.reporting import Console
from artifacts.signals import Stop, Stopped
from tests.artifacts import toy
from tests.artifacts.support import checkpoint, contents, metrics, one_error, run_toy, steps


class StopAt(Stop):
    """A stop that comes at the k-th look."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.left = k

    def look(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Stopped(15)


def stopped_run(artifact: str, out: Path, k: int, *more: str) -> tuple[int, int]:
    """(exit status, looks left over) of a run that is stopped at its k-th look."""
    stop = StopAt(k)
    options = parse([artifact, "--out", str(out), "--data", str(Path(artifact).parent), "-q", *more])
    return session.run(options, Console(quiet=True), stop, toy.device), stop.left


def looks(artifact: str, out: Path) -> int:
    """How often a whole run looks for a stop."""
    far = 10**9
    status, left = stopped_run(artifact, out, far)
    assert status == 0
    return far - left


def test_looks_before_every_microbatch_trip_train_and_batch(artifact: str, out: Path) -> None:
    microbatch = 1 + toy.TRIPS + 1
    passes = 2 * 2 * (1 + toy.TRIPS)  # two passes of two batches
    assert looks(artifact, out) == toy.STEPS * toy.MICRO * microbatch + passes


def test_stop_at_every_place_and_resume_is_the_uninterrupted_run(tmp_path: Path) -> None:
    """Four steps, with checkpoints at 2 and 4, a pass at 3 and one after the last."""
    artifact, whole = toy.write(tmp_path, toy.manifest(steps=4)), tmp_path / "whole"
    total = looks(artifact, whole)
    for k in range(1, total + 1):
        out = tmp_path / f"stop-{k}"
        assert stopped_run(artifact, out, k) == (143, 0)
        saved = steps(out)[-1]
        assert steps(out) == sorted({*range(2, saved + 1, 2), saved})
        assert run_toy(artifact, out, "--resume", "-q") == 0
        assert contents(out, 4) == contents(whole, 4), k
        assert metrics(out) == metrics(whole), k


def test_many_stops_in_one_run(artifact: str, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    total = looks(artifact, whole)
    status = stopped_run(artifact, out, 7)[0]
    for _ in range(total):
        if status == 0:
            break
        status = stopped_run(artifact, out, 19, "--resume")[0]
    assert status == 0 and contents(out, 6) == contents(whole, 6) and metrics(out) == metrics(whole)


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 7, 8, 11])
def test_resume_in_epochs_0_1_2_and_later(tmp_path: Path, at: int) -> None:
    """22 records, 8 a step: step 3 crosses into epoch 1, step 6 into 2, step 9 into 3."""
    artifact = toy.write(tmp_path, toy.manifest(steps=12))
    assert run_toy(artifact, tmp_path / "whole", "-q") == 0
    assert run_toy(artifact, tmp_path / "out", "-q", "--steps", str(at)) == 0
    assert run_toy(artifact, tmp_path / "out", "-q", "--resume") == 0
    assert contents(tmp_path / "out", 12) == contents(tmp_path / "whole", 12)
    training = [line for line in metrics(tmp_path / "out") if "pass" not in line]
    assert training == [line for line in metrics(tmp_path / "whole") if "pass" not in line]


def spy(artifact: str) -> tuple[Loop, list[tuple[str, list[np.ndarray]]], Callable[[], None]]:
    """A loop on the toy, the calls it makes with copies of their inputs, and its end."""
    calls: list[tuple[str, list[np.ndarray]]] = []
    opened = tarball.open(artifact)
    folder = str(Path(artifact).parent)
    records = {entry.name: open_records(entry, folder, opened) for entry in opened.manifest.loaders}
    device = toy.device(opened, None)

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: np.ndarray) -> Any:
            calls.append((name, [a.copy() for a in args]))
            return function(*args)

        return call

    device._functions = {name: watched(name, f) for name, f in toy.FUNCTIONS.items()}
    training = Training(opened.manifest, records)
    return Loop(opened.manifest, device, training, records, lambda: None), calls, training.close


def test_the_phases_of_a_step_in_order_and_their_inputs(artifact: str) -> None:
    loop, calls, close = spy(artifact)
    now = loop.initial()
    loop.step(now)
    loop.step(now)
    one = ["generate.init", *["generate.step"] * 3, "generate.finish", "train"]
    assert [name for name, _ in calls] == ["init", *(one * 2 + ["update"]) * 2]
    assert np.array_equal(calls[0][1][0], np.array([7, 0], np.uint32))
    given = {name: [args for n, args in calls if n == name] for name in toy.FUNCTIONS}
    assert [(int(a[1]), int(a[2])) for a in given["generate.init"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [int(a[2]) for a in given["generate.step"]] == [0, 1, 2] * 4
    assert [int(a[3]) for a in given["train"]] == [0, 4, 8, 12]  # records before the microbatch
    assert [int(a[4]) for a in given["train"]] == [0, 4, 8, 12]  # the counter runs on from microbatch to microbatch
    assert [a[5].any() for a in given["train"]] == [
        False,
        True,
        False,
        True,
    ]  # accumulators are zeroed before the first
    assert [int(a[4]) for a in given["update"]] == [8, 16] and [int(a[3]) for a in given["update"]] == [0, 1]
    assert now.cursor == cursor.Cursor(2, 16, 0, 2, 16, {"rows": 16}, {"tokens": 16})
    close()


def test_the_seed_is_two_words(tmp_path: Path) -> None:
    loop, calls, close = spy(toy.write(tmp_path, toy.manifest(seed=2**40 + 3)))
    loop.initial()
    assert calls[0][1][0].tolist() == [3, 2**8]
    close()


def test_parameters_move_in_place_and_only_in_update(artifact: str) -> None:
    loop, calls, close = spy(artifact)
    now = loop.initial()
    w, before = now.params["net/w"], now.params["net/w"].copy()
    loop.step(now)
    assert now.params["net/w"] is w and not np.array_equal(w, before)
    assert all(np.array_equal(args[0], before) for name, args in calls if name in ("train", "generate.step"))
    close()


def test_a_bound_phase_gives_every_output(artifact: str) -> None:
    """Those in place as the very tensor they were written into."""
    opened = tarball.open(artifact)
    device = toy.device(opened, None)
    phase = opened.manifest.phase("update")
    assert phase is not None
    env = {
        p.key: device.tensor(np.ones(p.shape, p.dtype.replace("i", "int").replace("f", "float"))) for p in phase.inputs
    }
    made = bind(device, phase)(env)
    assert list(made) == [("metric", "grad_norm"), ("metric", "lr"), ("param", "net/w"), ("optimizer", "net/w/m")]
    assert made["param", "net/w"] is env["param", "net/w"]


def test_outputs_that_are_not_in_place_are_bound_anew(tmp_path: Path) -> None:
    """The same run with no pair in place: the same bytes."""
    plain = attrs.evolve(toy.manifest(), phases=tuple(attrs.evolve(p, in_place=()) for p in toy.PHASES))
    assert run_toy(toy.write(tmp_path), tmp_path / "a", "-q") == 0
    assert run_toy(toy.write(tmp_path, plain, "plain.tar"), tmp_path / "b", "-q") == 0
    assert contents(tmp_path / "a", 6)["params.safetensors"] == contents(tmp_path / "b", 6)["params.safetensors"]


def test_one_microbatch_without_accumulators_or_generator(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smallest run: train returns its gradients, nothing is generated."""
    base = toy.manifest(microbatches=1)
    x, y, w = toy.x, toy.y, toy.w
    train = toy.phase("train", [w, x, y], [toy.loss, toy.grad])
    held = toy.phase("eval.held", [w, x, y], [toy.loss])
    keep = {p.name: p for p in base.phases if p.name in ("init", "update")}
    step = attrs.evolve(
        base.step, trips=None, generated=(), diagnostics=(), passes=(attrs.evolve(base.step.passes[0], generate=False),)
    )
    made = attrs.evolve(base, phases=(keep["init"], train, keep["update"], held), step=step)

    def slope(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[Any, ...]:
        off = x.astype(np.float32) / 100 @ w - y
        return np.mean(off**2), (2 * off[:, None] * x / 100).mean(0).astype(np.float32)

    update = base.phases[5]
    made = attrs.evolve(
        made,
        phases=tuple(
            attrs.evolve(p, inputs=update.inputs[:4], outputs=update.outputs) if p.name == "update" else p
            for p in made.phases
        ),
    )
    monkeypatch.setitem(toy.FUNCTIONS, "train", slope)
    monkeypatch.setitem(toy.FUNCTIONS, "eval.held", lambda w, x, y: slope(w, x, y)[:1])
    monkeypatch.setitem(toy.FUNCTIONS, "update", lambda w, m_, g, step: toy.update(w, m_, g, step, np.int64(0)))
    assert run_toy(toy.write(tmp_path, made), out, "-q") == 0
    losses = [line["loss"] for line in metrics(out) if "pass" not in line]
    assert losses[-1] < losses[0]


def test_a_generator_without_finish_gives_its_last_state(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = toy.manifest()
    phases = []
    for phase in base.phases:
        swap = {toy.sample: toy.port("generated", "row", (toy.B, toy.W), "i32")}
        if phase.name != "generate.finish":
            phases.append(attrs.evolve(phase, inputs=tuple(swap.get(p, p) for p in phase.inputs)))
    made = attrs.evolve(base, phases=tuple(phases), step=attrs.evolve(base.step, generated=("row",)))
    for name in ("train", "eval.held"):
        real = toy.FUNCTIONS[name]
        monkeypatch.setitem(
            toy.FUNCTIONS, name, lambda w, y, row, *rest, real=real: real(w, y, row / np.float32(97), *rest)
        )
    assert run_toy(toy.write(tmp_path, made), out, "-q") == 0


# Stages and epochs


def test_stages_by_steps_and_records() -> None:
    stages = (m.Stage("a", 2, None, "rows"), m.Stage("b", None, 20, "held"), m.Stage("c", None, None, "rows"))
    made = attrs.evolve(toy.manifest(), step=attrs.evolve(toy.manifest().step, stages=stages))
    now = cursor.start(made)
    seen = []
    for _ in range(7):
        seen.append((now.stage, now.stage_step, now.stage_records))
        now = cursor.advance(now, made, now.counters)
    assert seen == [(0, 0, 0), (0, 1, 8), (1, 0, 0), (1, 1, 8), (1, 2, 16), (2, 0, 0), (2, 1, 8)]
    assert now.positions == {"rows": 32, "held": 24} and now.records == 56


def test_a_curriculum_resumes_in_its_stage(tmp_path: Path) -> None:
    stages = (m.Stage("a", 2, None, "rows"), m.Stage("b", None, 16, "held"), m.Stage("c", None, None, "rows"))
    made = toy.manifest(steps=8)
    artifact = toy.write(tmp_path, attrs.evolve(made, step=attrs.evolve(made.step, stages=stages)))
    assert run_toy(artifact, tmp_path / "whole", "-q") == 0
    for at in range(1, 8):
        out = tmp_path / str(at)
        assert run_toy(artifact, out, "-q", "--steps", str(at)) == 0 and run_toy(artifact, out, "-q", "--resume") == 0
        assert contents(out, 8) == contents(tmp_path / "whole", 8)


def test_epochs_end_the_run_in_words(tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = toy.manifest(steps=50)
    rows = attrs.evolve(made.loaders[0], epochs=2)  # 44 records: 5 whole steps of 8
    artifact = toy.write(tmp_path, attrs.evolve(made, loaders=(rows, made.loaders[1])))
    assert run_toy(artifact, out) == 0
    assert "the data ends after step 5" in capsys.readouterr().out
    assert steps(out)[-1] == 5 and metrics(out)[-1]["pass"] == "held"
    assert run_toy(artifact, out, "--resume") == 0 and steps(out)[-1] == 5


# Row 80: numbers that are not finite


def poison(
    monkeypatch: pytest.MonkeyPatch, name: str, k: int, change: Callable[[tuple[Any, ...]], tuple[Any, ...]]
) -> None:
    real, calls = toy.FUNCTIONS[name], [0]

    def call(*args: Any) -> tuple[Any, ...]:
        calls[0] += 1
        made = real(*args)
        return change(made) if calls[0] == k else made

    monkeypatch.setitem(toy.FUNCTIONS, name, call)


NAN = np.array([np.nan, 1, 1], np.float32)


@pytest.mark.parametrize(
    "phase, call, change, step, words",
    [
        ("train", 7, lambda made: (np.float32(np.nan), *made[1:]), 4, "loss is nan in phase train"),
        ("train", 8, lambda made: (np.float32(np.inf), *made[1:]), 4, "loss is inf in phase train"),
        ("train", 5, lambda made: (*made[:3], NAN, *made[4:]), 3, "gradient that is not finite is net/w"),
        (
            "train",
            7,
            lambda made: (np.float32(np.nan), *made[1:4], made[4] * np.float32(np.inf)),
            4,
            "; diagnostics that are not finite: rows",
        ),
        ("train", 7, lambda made: (np.float32(np.nan), *made[1:]), 4, "build with --diagnostic NAME"),
    ],
)
def test_row_80_not_finite(
    artifact: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    phase: str,
    call: int,
    change: Callable[[tuple[Any, ...]], tuple[Any, ...]],
    step: int,
    words: str,
) -> None:
    """A diagnostic is named where it is not finite itself."""
    assert run_toy(artifact, tmp_path / "whole", "-q", "--steps", str(step - 1)) == 0
    poison(monkeypatch, phase, call, change)
    assert run_toy(artifact, tmp_path / "out", "-q") == 6
    text = one_error(capsys.readouterr().err, "E-NUM-001")
    assert (
        f"step {step}: " in text
        and words in text
        and ("not finite: rows" in text) == ("rows" in words)
        and str(checkpoint(tmp_path / "out", step - 1)) in text
    )
    assert contents(tmp_path / "out", step - 1) == contents(tmp_path / "whole", step - 1)


def test_row_24_data_that_goes_bad_during_the_run_keeps_the_state(
    artifact: str, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from artifacts.base.errors import DATA_RANGE
    from artifacts.data.loaders import Records

    real, calls = Records.batch, [0]

    def batch(self: Records, numbers: np.ndarray) -> Any:
        calls[0] += 1
        if calls[0] > 9:  # the batches of steps 1 to 4 are whole, and the first of step 5
            raise RunError(DATA_RANGE, "field x holds 500, which is not in 0..99", "rows.npz: record 3")
        return real(self, numbers)

    monkeypatch.setattr(Records, "batch", batch)
    made = toy.manifest()
    path = toy.write(
        Path(artifact).parent, attrs.evolve(made, step=attrs.evolve(made.step, passes=()), phases=made.phases[:-1])
    )
    assert run_toy(path, out, "-q") == 1
    assert "record 3" in one_error(capsys.readouterr().err, "E-DATA-013") and steps(out) == [2, 4]


def test_a_phase_that_fails_is_a_device_error_without_a_new_checkpoint(
    artifact: str, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from artifacts.base.errors import DEVICE_CALL

    def fail(made: Any) -> Any:
        raise RunError(DEVICE_CALL, "phase train failed: gone")

    poison(monkeypatch, "train", 7, fail)
    assert run_toy(artifact, out, "-q") == 3
    one_error(capsys.readouterr().err, "E-DEVICE-001")
    assert steps(out) == [2]


def test_pass_values_are_means_over_batches(artifact: str, out: Path) -> None:
    loop, calls, close = spy(artifact)
    now = loop.initial()
    result = loop.evaluate(now, loop.manifest.step.passes[0])
    losses = [float(toy.evaluate(*args)[0]) for name, args in calls if name == "eval.held"]
    assert len(losses) == 2 and result.loss == sum(losses) / 2 and result.batches == 2
    close()


def test_main_is_the_same_run(artifact: str, out: Path) -> None:
    assert run.main([artifact, "--out", str(out), "--data", str(Path(artifact).parent), "-q"], device=toy.device) == 0


@pytest.mark.parametrize("in_place", [(), ((0, 1),)])
def test_each_trip_reads_what_the_one_before_made(in_place: tuple[tuple[int, int], ...]) -> None:
    """By hand: the state goes round, an output that the step does not read is the last trip's, the rest stays."""
    made = toy.manifest()
    row, total = m.Port("state", "row", (2,), "i32"), m.Port("state", "total", (2,), "i32")
    trip, by = m.Port("trip", "", (), "i64"), m.Port("param", "by", (2,), "i32")
    phase = m.Phase("generate.step", "generate_step", 1, (by, row, trip), (row, total), in_place, 0)
    made = attrs.evolve(made, phases=tuple(phase if p.name == phase.name else p for p in made.phases))
    step = bind(HostDevice(made, {"generate.step": lambda by, row, n: (row * by + n, row * by - n)}), phase)
    env = {row.key: np.array([1, 2], np.int32), by.key: np.array([3, 5], np.int32)}
    looked: list[int] = []
    out = step.repeat(env, trip.key, [np.array(n) for n in (10, 20, 30)], lambda: looked.append(1))
    first = np.array([1, 2]) * [3, 5] + 10
    second = first * [3, 5] + 20
    assert out[row.key].tolist() == (second * [3, 5] + 30).tolist()
    assert out[total.key].tolist() == (second * [3, 5] - 30).tolist() and len(looked) == 3


class Counting(HostDevice):
    """How many tensors it was asked for, and of how many bytes."""

    tensors = nbytes = 0

    def tensor(self, array: np.ndarray) -> np.ndarray:
        self.tensors, self.nbytes = self.tensors + 1, self.nbytes + array.nbytes
        return super().tensor(array)


def with_trips(folder: Path, trips: int) -> str:
    made = toy.manifest()
    return toy.write(folder, attrs.evolve(made, step=attrs.evolve(made.step, trips=trips)), f"trips-{trips}.tar")


@pytest.mark.parametrize("looks", [1, 2, 3, 9])
def test_a_trip_takes_nothing_before_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    """As many tensors for 400,000 trips as for 12, up to a stop before the first microbatch or some trips into it."""
    taken = []
    for trips in (12, 400_000):
        opened: list[Counting] = []

        def device(artifact: tarball.Artifact, threads: int | None, opened: list[Counting] = opened) -> Counting:
            opened.append(Counting(artifact.manifest, toy.FUNCTIONS))
            return opened[-1]

        monkeypatch.setattr(toy, "device", device)
        assert stopped_run(with_trips(tmp_path, trips), tmp_path / str(trips), looks) == (143, 0)
        taken.append((opened[0].tensors, opened[0].nbytes))
    assert taken[0] == taken[1] and taken[0][0] < 40


def test_a_stop_among_many_trips_names_the_last_finished_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the first step of a run, of one resumed there, and of one resumed after its second."""
    artifact, out, later = with_trips(tmp_path, 400_000), tmp_path / "out", tmp_path / "later"
    assert run_toy(with_trips(tmp_path, 3), later, "-q", "--steps", "2") == 0
    for folder, step, more in ((out, 0, ()), (out, 0, ("--resume",)), (later, 2, ("--resume",))):
        capsys.readouterr()
        assert stopped_run(artifact, folder, 6, *more) == (143, 0)
        told = capsys.readouterr().err
        assert f" after step {step}; saved {checkpoint(folder, step)}; " in told and "before the first" not in told
        assert steps(folder)[-1] == step
