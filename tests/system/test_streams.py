"""What both command lines have in common: options with an empty value, lines of JSON, streams that are read slowly."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from attrs import frozen

from artifacts import options, run
from artifacts.base import canonical_json
from sexpgpu.cli import commands, main
from sexpgpu.cli.app import app
from sexpgpu.reports import output
from tests.artifacts import toy
from tests.artifacts.support import arguments, environment, metrics
from tests.conftest import EXAMPLES, called

TINY = EXAMPLES / "tiny-generate/run.sx"
Captured = pytest.CaptureFixture[str]


# Options with an empty value


@frozen
class Parameter:
    """An option, by its ``names``, or an argument, which has none, of a command of a program."""

    command: tuple[str, ...]
    dest: str
    names: tuple[str, ...]
    is_flag: bool
    shown: str  # what a message calls it


def of_the_runner() -> Iterator[Parameter]:
    for action in options.parser()._actions:
        if action.dest not in ("help", "version"):
            names = tuple(action.option_strings)
            shown = names[-1] if names else str(action.metavar or action.dest)
            yield Parameter((), action.dest, names, action.nargs == 0, shown)


def of_the_builder() -> Iterator[Parameter]:
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        for parameter in command.params:
            if parameter.name != "help":
                is_option = parameter.param_type_name == "option"
                names = tuple(parameter.opts) if is_option else ()
                shown = names[-1] if is_option else parameter.metavar
                yield Parameter((name,), parameter.name, names, getattr(parameter, "is_flag", False), shown)


OURS = [("run", parameter) for parameter in of_the_runner()] + [("sexpgpu", p) for p in of_the_builder()]


def empty(parameter: Parameter) -> list[list[str]]:
    """Every way to give the option or argument no more than an empty word."""
    if not parameter.names:
        return [["a.tar", ""]] if parameter.dest == "other" else [[""]]
    joined = [[f"{name}="] for name in parameter.names if name.startswith("--")]
    return joined if parameter.is_flag else [*joined, *([name, ""] for name in parameter.names)]


@pytest.mark.parametrize(("program", "parameter"), OURS, ids=lambda x: getattr(x, "dest", None))
def test_an_empty_value_is_refused_by_the_option_s_name(
    program: str, parameter: Parameter, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``--fork "$UNSET"`` gives it; before any work."""
    monkeypatch.setattr(run, "_guarded", lambda *_: pytest.fail("the run was begun"))
    monkeypatch.setattr(commands, "plan_of", lambda *_: pytest.fail("the work was begun"))
    for words in empty(parameter):
        before = ["a.tar", "--out", "o"] if program == "run" and parameter.names else []
        status = run.main([*before, *words]) if program == "run" else main.main([*parameter.command, *words])
        found = capsys.readouterr()
        assert (status, found.out) == (2, ""), words
        assert found.err.startswith("error[E-CLI-00") and found.err.count("\n") == 1
        assert parameter.shown in found.err, (words, found.err)


def test_an_empty_word_beyond_the_arguments_is_refused(capsys: Captured) -> None:
    """As ``--resume "$UNSET"`` gives it: an option without a value, and a word."""
    assert run.main(["a.tar", "--out", "o", "--resume", ""]) == 2
    assert "there is no argument that is empty" in capsys.readouterr().err
    assert main.main(["check", str(TINY), ""]) == 2
    assert "an argument too many, which is empty" in capsys.readouterr().err


def test_the_walk_sees_every_command() -> None:
    assert {parameter.command for _, parameter in OURS} == {
        (), *((name,) for name in ["check", "explain", "build", "tune", "inspect", "verify", "diff", "targets", "runs"])
    }  # fmt: skip
    assert len(OURS) > 60


# Lines of JSON


ODD = {"a": [math.inf, -math.inf, math.nan, 0.1, [1e300 * 1e10]], "b": {"c": (math.nan, True, None, 2**60)}}


@pytest.mark.parametrize("make", [canonical_json.line, output.line])
def test_a_line_is_strict_json(make) -> None:  # noqa: ANN001
    said = {"a": ["inf", "-inf", "nan", 0.1, ["inf"]], "b": {"c": ["nan", True, None, 2**60]}}
    assert strict(make(ODD)) == said
    assert strict(make({"path": "a\udcffb\u00e4\U0001f600"})) == {"path": "a\\udcffb\u00e4\U0001f600"}


def strict(text: str) -> object:
    """The value of one line of JSON, which may hold neither NaN and infinities nor half a surrogate pair."""
    assert "\n" not in text
    found = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    json.dumps(found, ensure_ascii=False).encode("utf-8")
    return found


def test_nothing_else_makes_json_that_may_not_be_strict() -> None:
    """Every other call of json.dumps says allow_nan=False, or has no numbers that are not whole."""
    known = {  # of strings and whole numbers alone
        "artifacts/base/directory_lock.py", "artifacts/checkpoint/store.py", "artifacts/base/safetensors_io.py",
        "sexpgpu/phases/identity.py",
        "lowering/link/shared_library.py", "lowering/link/standalone_kernel.py",
        "schedules/tuning/records.py", "schedules/tuning/tuner.py",
    }  # fmt: skip
    root = Path(run.__file__).parents[1]
    found = set()
    for package in ("artifacts", "sexpgpu", "lowering", "schedules"):
        for path in (root / package).rglob("*.py"):
            calls = [line for line in path.read_text().splitlines() if re.search(r"\bjson\.dumps\(", line)]
            if any("allow_nan=False" not in line for line in calls):
                found.add(str(path.relative_to(root)))
    assert found <= known


@pytest.mark.parametrize(
    "argv",
    [["check", TINY], ["check", "no\udcff.sx"], ["explain", TINY], ["nonsense"], ["build", TINY], ["check", ""],
     ["verify", "nowhere.tar"], ["tune", TINY, "--local", "--key", "k", "--target", "t", "--trials", "1", "-o", "o"],
     ["build", TINY, "-o", "o", "--require-tuned"]],
)  # fmt: skip
def test_every_line_of_a_command_is_json_where_that_is_asked_for(argv: list[object]) -> None:
    done = called(*argv, "--output-format", "json")
    lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    assert len(lines) == 1 and isinstance(strict(lines[0]), dict)


# Streams


@contextlib.contextmanager
def slow_pipe() -> Iterator[tuple[int, list[bytes]]]:
    """The writing end of a pipe that never blocks, nearly full, and what is read of it: a little now and then."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    os.write(writer, b"-" * 4000)
    seen: list[bytes] = []

    def read() -> None:
        left = 4000
        while left:
            left -= len(os.read(reader, min(left, 700)))
            time.sleep(0.3)  # the writer is to find no room
        while data := os.read(reader, 700):
            seen.append(data)
            time.sleep(0.002)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield writer, seen
    finally:
        with contextlib.suppress(OSError):
            os.close(writer)
        thread.join(60)
        os.close(reader)


LOUD = ("--steps", "60", "--diagnostic", "rows")


@pytest.mark.parametrize(("form", "unbuffered"), [("text", "1"), ("json", "")])
def test_a_run_is_heard_whole_by_a_slow_reader(tmp_path: Path, form: str, unbuffered: str) -> None:
    artifact, out = toy.write(tmp_path, toy.manifest(log_every=1)), tmp_path / "out"
    argv = arguments(artifact, out, *LOUD, "--output-format", form)
    with slow_pipe() as (writer, seen):
        done = subprocess.run(
            argv, env=environment(PYTHONUNBUFFERED=unbuffered), stdout=writer, stderr=subprocess.PIPE, timeout=60
        )
    assert (done.returncode, done.stderr) == (0, b"")
    lines = b"".join(seen).decode().splitlines()
    if form == "json":
        steps = [line["step"] for line in map(json.loads, lines) if "lr" in line]
    else:
        steps = [int(line.split()[1].partition("/")[0]) for line in lines if line.startswith("step ")]
    assert steps == list(range(1, 61)) == [line["step"] for line in metrics(out) if "pass" not in line]
    assert "params" in lines[-1]


@pytest.mark.parametrize(("form", "unbuffered"), [("text", "1"), ("json", "")])
def test_a_command_is_heard_whole_by_a_slow_reader(form: str, unbuffered: str) -> None:
    argv = [sys.executable, "-m", "sexpgpu", "explain", str(TINY), "--output-format", form]
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with slow_pipe() as (writer, seen):
        done = subprocess.run(argv, env=env, stdout=writer, stderr=subprocess.PIPE, timeout=60)
    whole = subprocess.run(argv, env=env, capture_output=True, timeout=60).stdout
    assert (done.returncode, done.stderr) == (0, b"") and b"".join(seen) == whole and len(whole) > 1000


def test_errors_are_heard_whole_by_a_slow_reader(tmp_path: Path) -> None:
    path = tmp_path / "run.sx"
    path.write_text("(" + "nonsense " * 3000 + ")\n" + "(defthing)\n" * 90)
    argv = [sys.executable, "-m", "sexpgpu", "check", str(path)]
    whole = subprocess.run(argv, capture_output=True, timeout=60)
    with slow_pipe() as (writer, seen):
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=writer, timeout=60)
    assert done.returncode == whole.returncode == 1 and b"".join(seen) == whole.stderr and len(whole.stderr) > 1000


def test_a_reader_that_goes_away_is_told_of_once(tmp_path: Path) -> None:
    """The pipe is full, and its reader ends without a word."""
    artifact, out = toy.write(tmp_path, toy.manifest(log_every=1)), tmp_path / "out"
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    child = subprocess.Popen(
        arguments(artifact, out, *LOUD), env=environment(), stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    os.read(reader, 10)
    os.close(reader)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 0 and len(err.splitlines()) == 1
    assert err.startswith("warning: standard output is lost")


def test_a_stop_reaches_a_run_whose_reader_sleeps(tmp_path: Path) -> None:
    """As it waits for room in the pipe, a second signal ends it."""
    artifact, out = toy.write(tmp_path, toy.manifest(log_every=1)), tmp_path / "out"
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    child = subprocess.Popen(arguments(artifact, out, *LOUD), env=environment(), stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    poll_full(reader)
    for _ in range(2):
        child.send_signal(signal.SIGTERM)
        time.sleep(0.2)
    child.communicate(timeout=60)
    os.close(reader)
    assert child.returncode == 143


def poll_full(reader: int, room: int = 3000) -> None:
    """Wait until the pipe holds ``room`` bytes and no more come."""
    before = -1
    while True:
        held = int.from_bytes(fcntl.ioctl(reader, 0x541B, b"\0" * 4), sys.byteorder)  # FIONREAD
        if held == before and held > room:
            return
        before = held
        time.sleep(0.3)


def test_standard_error_that_came_closed_is_not_standard_output(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "sexpgpu", "check", str(tmp_path / "no.sx")]
    done = subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", *argv], stdout=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stdout) == (1, b"")


def test_commands_that_only_print_say_when_they_cannot() -> None:
    with open("/dev/full", "w") as full:
        for module in ("sexpgpu", "artifacts.run"):
            argv = [sys.executable, "-m", module, "--help"]
            done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
            assert done.returncode == 5 and done.stderr.startswith("error[E-IO-0") and done.stderr.count("\n") == 1
