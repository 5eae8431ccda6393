"""Signals: which end a run and how, what a second one does, and what a suspension is not counted in."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from artifacts import signals
from artifacts.base.clock import Clock
from surroundings import end_signals
from tests.artifacts import toy
from tests.artifacts.support import arguments, child, contents, environment, forked, metrics, run_toy, steps, toy_digest

Captured = pytest.CaptureFixture[str]


# Rows 76 to 79: signals


@pytest.mark.parametrize("name", [number.name for number in end_signals.HANDLED])
def test_row_76_each_signal_stops_cleanly(
    artifact: str, tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert forked(artifact, out, f"generate.step:15:{name}") == 128 + getattr(signal, name)
    said = capfd.readouterr().err
    assert f"stopped by {name} after step 2" in said and "--resume" in said and steps(out) == [2]
    assert run_toy(artifact, out, "--resume", "-q") == 0
    assert contents(out, 6)["params.safetensors"] == toy_digest(tmp_path, artifact)


@pytest.mark.parametrize(
    "plan, step",
    [
        ("init:1", 0),
        ("generate.init:1", 0),
        ("generate.finish:3", 1),
        ("train:5", 2),
        ("update:3", 3),
        ("eval.held:1", 3),
        ("eval.held:3", 6),
    ],
)
def test_row_76_in_every_phase(
    artifact: str, tmp_path: Path, plan: str, step: int, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """In this process, which the runner's handlers are to leave alive; the test above has a copy of it."""
    out = tmp_path / "out"
    monkeypatch.setenv("TOY_SIGNAL", f"{plan}:SIGTERM")
    assert run_toy(artifact, out, "-q") == 143 and len(capsys.readouterr().err.splitlines()) == 1
    monkeypatch.delenv("TOY_SIGNAL")
    assert steps(out)[-1:] == ([step] if plan != "init:1" else [])
    assert run_toy(artifact, out, "--resume=auto", "-q") == 0
    assert contents(out, 6)["params.safetensors"] == toy_digest(tmp_path, artifact)


def test_signals_that_ask_for_an_end() -> None:
    """Those of the schedulers, of timers and of a failing power supply among them."""
    assert {s.name for s in end_signals.HANDLED} == {
        "SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGPWR", "SIGXCPU", "SIGALRM", "SIGVTALRM", "SIGPROF"
    }  # fmt: skip


@pytest.mark.parametrize("name", [number.name for number in end_signals.TIMERS])
def test_a_timer_that_comes_again_does_not_end_a_save(
    artifact: str, out: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGXCPU comes each second until the limit that kills."""
    monkeypatch.setenv("TOY_SIGNAL", f"train:5:{name}:again")
    assert run_toy(artifact, out, "-q") == 128 + getattr(signal, name) and steps(out) == [2]


BUSY = """
import sys, time, toy
from artifacts.run import main

train = toy.FUNCTIONS["train"]

def busy(*inputs):
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    return train(*inputs)

toy.FUNCTIONS["train"] = busy
sys.exit(main(sys.argv[1:], device=toy.device))
"""


@pytest.mark.parametrize("limit", [(2, 2), (1, 30)])
def test_a_limit_of_processor_time_leaves_a_checkpoint(artifact: str, out: Path, limit: tuple[int, int]) -> None:
    """With one value for both, as ``ulimit -t`` sets them, the system would kill."""
    argv = arguments(artifact, out, "-q", "--steps", "100000")
    argv[2] = BUSY
    set_limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, limit)  # noqa: E731
    done = subprocess.run(argv, env=environment(), capture_output=True, text=True, timeout=120, preexec_fn=set_limit)
    assert done.returncode == 128 + signal.SIGXCPU and "stopped by SIGXCPU after step" in done.stderr
    assert steps(out) and f"after step {steps(out)[-1]};" in done.stderr


SUSPENDED = """
import os, signal, subprocess, sys, toy
from artifacts.run import main

name, seconds = sys.argv[1], sys.argv[2]

def suspending(role):
    function, calls = toy.FUNCTIONS[role], []
    def call(*inputs):
        calls.append(role)
        if len(calls) == 3:
            waker = f"sleep {seconds}; kill -CONT {os.getpid()}"
            subprocess.Popen(["sh", "-c", waker], start_new_session=True)
            os.kill(os.getpid(), getattr(signal, name))
        return function(*inputs)
    toy.FUNCTIONS[role] = call

for role in ("train", "eval.held", "generate.step"):
    suspending(role)
sys.exit(main(sys.argv[3:], device=toy.device))
"""


Timed = tuple[subprocess.CompletedProcess[str], float]


def as_a_job(argv: list[str]) -> Timed:
    """What a program said in a process group of its own, as a shell's job has, and the seconds that it took."""
    began = time.monotonic()
    how = {"capture_output": True, "text": True, "timeout": 60, "process_group": 0}
    return subprocess.run(argv, env=environment(), **how), time.monotonic() - began


@pytest.fixture(scope="module")
def suspended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Future[Timed], Path]]]:
    """All programs that are suspended for seconds, each with its folder; started together, to be waited for once."""
    with ThreadPoolExecutor(3) as pool:
        jobs = {"waiting": (pool.submit(as_a_job, [sys.executable, "-c", WAITING]), Path())}
        for name in ("SIGSTOP", "SIGTSTP"):
            folder = tmp_path_factory.mktemp(name)
            argv = arguments(toy.write(folder), folder / "out", "--output-format", "json")
            argv[2:3] = [SUSPENDED, name, "1.5"]
            jobs[name] = (pool.submit(as_a_job, argv), folder / "out")
        yield jobs


@pytest.mark.parametrize("name", ["SIGSTOP", "SIGTSTP"])
def test_no_time_has_the_seconds_of_a_suspension(suspended: dict[str, tuple[Future[Timed], Path]], name: str) -> None:
    """Three of 1.5 s each: in a trip, a training call and a pass."""
    job, out = suspended[name]
    done, took = job.result()
    assert done.returncode == 0 and took > 4.5, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[-1]["latency"] < 1.4 and lines[-1]["seconds"] < 4.4
    logged = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()[1:]]
    assert all(line["seconds"] < 1.4 for line in logged)


def test_work_beside_a_suspension_is_counted() -> None:
    """SIGCONT alone takes nothing away, and a suspension no more than it lasted."""
    with Clock() as clock:
        began, end = clock.now(), time.process_time() + 0.3
        while time.process_time() < end:
            os.kill(os.getpid(), signal.SIGCONT)
        assert clock.now() - began > 0.2


WAITING = """
import os, subprocess, time
from artifacts.base.clock import Clock
from surroundings import end_signals

with Clock(ticks=True) as clock:
    began = clock.now()
    time.sleep(0.8)
    subprocess.Popen(["sh", "-c", f"sleep 3; kill -CONT {os.getpid()}"], start_new_session=True)
    subprocess.run(["kill", "-STOP", str(os.getpid())])
    time.sleep(0.8)
    print(clock.now() - began)
"""


def test_waiting_beside_a_suspension_is_counted(suspended: dict[str, tuple[Future[Timed], Path]]) -> None:
    """As a build waits for its compiling processes: of 4.6 s at least 1.1, and none of the 3."""
    done, _ = suspended["waiting"][0].result()
    assert done.returncode == 0 and 1.1 < float(done.stdout) < 3, done


def test_row_76_while_starting() -> None:
    """Until there is state to keep, the signal stops the program where it stands."""
    with pytest.raises(signals.Stopped), signals.Stop():
        os.kill(os.getpid(), signal.SIGTERM)


def test_row_77_a_second_signal_ends_at_once(artifact: str, out: Path) -> None:
    done = child(artifact, out, "-q", env={"TOY_SIGNAL": "generate.step:15:SIGINT:again"})
    assert done.returncode == 130 and steps(out) == [2] and "at once" in done.stderr


TWICE_IN_THE_SECOND_SAVE = """
import os, signal, sys, toy
from artifacts.run import main

real, manifests = os.fsync, []

def fsync(fd):
    if os.readlink(f"/proc/self/fd/{fd}").endswith("/manifest.json"):
        manifests.append(fd)
        if len(manifests) == 2:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
    real(fd)

os.fsync = fsync
sys.exit(main(sys.argv[1:], device=toy.device))
"""


def test_row_77_during_a_save_only_a_temporary_name_is_left(artifact: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    argv = arguments(artifact, out, "-q")
    argv[2] = TWICE_IN_THE_SECOND_SAVE
    done = subprocess.run(argv, env=environment(), capture_output=True, text=True, timeout=30)
    assert done.returncode == 130 and steps(out) == [2]
    assert len(list((out / "checkpoints").glob(".tmp-*"))) == 1
    assert run_toy(artifact, out, "--resume", "-q") == 0 and not list((out / "checkpoints").glob(".tmp-*"))
    assert contents(out, 6)["params.safetensors"] == toy_digest(tmp_path, artifact)


@pytest.mark.parametrize("plan", ["train:1", "train:8", "update:4", "eval.held:2"])
def test_row_78_killed(artifact: str, tmp_path: Path, plan: str) -> None:
    out = tmp_path / "out"
    assert forked(artifact, out, f"{plan}:SIGKILL") == -signal.SIGKILL
    assert run_toy(artifact, out, "--resume=auto", "-q") == 0
    assert contents(out, 6)["params.safetensors"] == toy_digest(tmp_path, artifact)
    assert len(metrics(out)) == 8


@pytest.mark.parametrize("name", ["SIGPIPE", "SIGWINCH", "SIGCONT"])
def test_row_79_signals_that_mean_nothing(
    artifact: str, out: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("TOY_SIGNAL", f"train:3:{name}")
    assert run_toy(artifact, out, "-q") == 0 and capsys.readouterr().err == "" and steps(out) == [2, 4, 6]


def test_a_signal_that_was_to_be_ignored_stays_ignored(
    artifact: str, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As nohup does."""
    monkeypatch.setenv("TOY_SIGNAL", "train:3:SIGHUP")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_toy(artifact, out, "-q") == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
