"""The command line, in a process of its own where that matters: exits, signals, streams, limits, surroundings."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import resource
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import attrs
import pytest

from artifacts import reporting, run
from artifacts.base import errors
from artifacts.base.clock import Clock
from artifacts.base.errors import CKPT_NONE, CODES, RunError
from artifacts.device import cpu, threads
from artifacts.format import tarball
from artifacts.metrics_log import Log
from artifacts.options import parse
from tests.artifacts import toy

from .support import (
    CHILD,
    arguments,
    checkpoint,
    child,
    contents,
    environment,
    metrics,
    one_error,
    run_toy,
    steps,
    toy_digest,
)

Captured = pytest.CaptureFixture[str]


def usage(capsys: Captured, code: str, *argv: str) -> str:
    assert run.main(argv) == 2
    found = capsys.readouterr()
    assert found.out == ""
    return one_error(found.err, code)


# Rows 63 to 65: wrong usage


@pytest.mark.parametrize(
    "argv, words",
    [
        ([], "ARTIFACT"),
        (["a.tar"], "--out"),
        (["a.tar", "--out"], "--out"),
        (["a.tar", "--out", "o", "--thread", "2"], "did you mean --threads?"),
        (["a.tar", "--out", "o", "--resmue"], "did you mean --resume?"),
        (["a.tar", "--out", "o", "--xyzzy"], "see sexpgpu-run --help"),
        (["a.tar", "b.tar", "--out", "o"], "no argument b.tar"),
        (["a.tar", "--out", "o", "--output-format", "xml"], "xml"),
        (["a.tar", "--out", "o", "--res"], "did you mean"),
    ],
)
def test_row_63_unknown_or_missing(capsys: Captured, argv: list[str], words: str) -> None:
    assert words in usage(capsys, "E-CLI-001", *argv)


@pytest.mark.parametrize(
    "text", ["-1", "0", "nan", "1e3", "\u0663", "1.0", " 1", "+1", "0x1", "9" * 30, "1_000", "1\n"]
)
@pytest.mark.parametrize("flag", ["--steps", "--threads", "--keep"])
def test_row_64_numbers(capsys: Captured, flag: str, text: str) -> None:
    line = usage(capsys, "E-CLI-002", "a.tar", "--out", "o", f"{flag}={text}")
    assert flag in line and "from" in line and "to" in line


def test_row_64_other_values(capsys: Captured) -> None:
    assert "2" in usage(capsys, "E-CLI-002", "a.tar", "--out", "o", "--keep", "1")
    assert "auto" in usage(capsys, "E-CLI-002", "a.tar", "--out", "o", "--resume=always")
    assert "sha256" in usage(capsys, "E-CLI-002", "a.tar", "--out", "o", "--require-digest", "md5:1")


@pytest.mark.parametrize("pair", [("-q", "-v"), ("--resume", "--fork=d"), ("--resume=auto", "--fork=d")])
def test_row_65_two_that_exclude_each_other(capsys: Captured, pair: tuple[str, str]) -> None:
    line = usage(capsys, "E-CLI-003", "a.tar", "--out", "o", *pair)
    assert "not allowed with" in line


def test_options_of_every_kind() -> None:
    found = parse(
        ["--out", "o", "--resume=auto", "--keep", "9", "--diagnostic", "a", "--diagnostic", "a", "--", "-odd.tar"]
    )
    assert (found.artifact, found.resume, found.keep, found.diagnostics) == ("-odd.tar", "auto", 9, ("a",))
    assert (
        parse(["a", "--out", "o", "--resume", "--strict"]).resume == "must" and parse(["a", "--out", "o"]).resume == ""
    )


def test_help_and_version() -> None:
    for flag, words in (("--help", "exit status"), ("--version", "sexpgpu-run 0.1.0")):
        done = subprocess.run(
            [sys.executable, "-m", "artifacts.run", flag], env=environment(), capture_output=True, text=True
        )
        assert done.returncode == 0 and words in done.stdout and done.stderr == ""


def test_usage_needs_no_heavy_module() -> None:
    """--help and a usage error import neither NumPy nor tvm_ffi: they answer at once."""
    program = "import sys; from artifacts.run import main; code = main(['--nope']); print(code, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True)
    assert done.stdout.strip() == "2 False"


def test_a_run_imports_nothing_of_ours_but_artifacts_and_never_tvm(artifact: str, out: Path) -> None:
    program = (
        CHILD.replace("sys.exit(", "code = (") + "; print(code, sorted(m for m in sys.modules if m.split('.')[0] in "
        "('tvm', 'sexpgpu', 'lowering', 'schedules', 'typer', 'onnx', 'rich', 'tqdm')))"
    )
    argv = [*arguments(artifact, out, "-q")]
    argv[2] = program
    done = subprocess.run(argv, env=environment(), capture_output=True, text=True)
    assert done.stdout.strip() == "0 []"


# Row 48: the machine


@pytest.mark.parametrize(
    "machine, flags, words",
    [
        ("aarch64", (), "built for aarch64, this machine is x86_64"),
        ("x86_64", ("sse2", "avx512f", "avx512bw"), "lacks avx512f avx512bw"),
    ],
)
def test_row_48_another_machine(machine: str, flags: tuple[str, ...], words: str) -> None:
    made = attrs.evolve(
        toy.manifest(), targets=(attrs.evolve(toy.manifest().targets[0], machine=machine, cpu_flags=flags),)
    )
    with pytest.raises(RunError) as caught:
        cpu.choose(made, "x86_64", frozenset({"sse2", "avx2"}))
    assert caught.value.code.name == "E-TARGET-010" and caught.value.code.exit == 3 and words in str(caught.value)


def test_row_48_the_first_target_that_fits() -> None:
    base = toy.manifest().targets[0]
    wide, plain = (
        attrs.evolve(base, name=name, machine="x86_64", cpu_flags=flags)
        for name, flags in (("v4", ("avx512f",)), ("v3", ("avx2",)))
    )
    made = attrs.evolve(toy.manifest(), targets=(wide, plain))
    assert cpu.choose(made, "x86_64", frozenset({"avx2"})).name == "v3"
    assert cpu.choose(made, "x86_64", frozenset({"avx2", "avx512f"})).name == "v4"


def test_a_target_is_run_by_name_or_refused_with_those_there_are() -> None:
    base = attrs.evolve(toy.manifest().targets[0], machine="x86_64")
    wide, plain = (attrs.evolve(base, name=n, cpu_flags=(f,)) for n, f in (("v4", "avx512f"), ("v3", "avx2")))
    made, flags = attrs.evolve(toy.manifest(), targets=(wide, plain)), frozenset({"avx2", "avx512f"})
    assert cpu.choose(made, "x86_64", flags, name="v3").name == "v3"
    for have, name, words, status in (
        (flags, "v5", "there is no target v5 in the artifact (it has v4 v3)", 2),
        (frozenset({"avx2"}), "v4", "built for v4; this processor lacks avx512f", 3),
        (frozenset(), None, "built for v4; this processor lacks avx512f", 3),
    ):
        with pytest.raises(RunError, match=re.escape(words)) as caught:
            cpu.choose(made, "x86_64", have, name=name)
        assert caught.value.code.name.startswith("E-TARGET-01") and caught.value.code.exit == status


def test_the_command_line_hands_the_target_on(tmp_path: Path, out: Path, capsys: Captured) -> None:
    artifact = toy.write(tmp_path)
    assert run.main([artifact, "--out", str(out), "--data", str(tmp_path), "--target", "no-such"]) == 2
    line = one_error(capsys.readouterr().err, "E-TARGET-011")
    assert "there is no target no-such in the artifact (it has cpu-any)" in line


def test_row_48_is_asked_before_any_code_is_loaded(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    other = attrs.evolve(toy.manifest().targets[0], cpu_flags=("no_such_flag",))
    artifact = toy.write(tmp_path, attrs.evolve(toy.manifest(), targets=(other,)))
    monkeypatch.setattr(cpu.ctypes, "CDLL", lambda *_: pytest.fail("native code was loaded"))
    assert run.main([artifact, "--out", str(out), "--data", str(tmp_path)]) == 3
    assert "no_such_flag" in one_error(capsys.readouterr().err, "E-TARGET-010")


def test_cpu_flags_are_those_of_every_processor(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("flags\t\t: sse2 avx2 avx512f\nmodel\t: x\nflags\t\t: sse2 avx2\n")
    assert cpu.cpu_flags(str(path)) == {"sse2", "avx2"}
    path.write_text("Features\t: fp asimd\n")
    assert cpu.cpu_flags(str(path)) == {"fp", "asimd"}
    assert cpu.cpu_flags(str(tmp_path / "none")) == frozenset()
    assert cpu.cpu_flags()


def test_row_49_another_tvm_ffi(tmp_path: Path, out: Path, capsys: Captured) -> None:
    tools = attrs.evolve(toy.manifest().toolchain, tvm_ffi="9.9.9")
    artifact = toy.write(tmp_path, attrs.evolve(toy.manifest(), toolchain=tools))
    assert run.main([artifact, "--out", str(out), "--data", str(tmp_path)]) == 4
    assert "pip install apache-tvm-ffi==9.9.9" in one_error(capsys.readouterr().err, "E-ART-009")


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "77")
    monkeypatch.setenv("TVM_BIND_THREADS", "1")
    assert threads.set_threads(3) == 3 and os.environ["TVM_NUM_THREADS"] == "3"
    assert os.environ["TVM_BIND_THREADS"] == "0"  # or the runtime would put all runs of one thread on the first core
    assert threads.set_threads(None) == len(os.sched_getaffinity(0))


def test_more_threads_than_cores_do_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand threads on two cores that look for work in a loop keep the process from its end for minutes."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    for name in ("TVM_NUM_THREADS", "TVM_BIND_THREADS", "TVM_THREAD_POOL_SPIN_COUNT"):
        monkeypatch.setenv(name, "7")
    threads.set_threads(2)
    assert os.environ["TVM_THREAD_POOL_SPIN_COUNT"] == str(threads.SPIN_COUNT)
    threads.set_threads(3)
    assert os.environ["TVM_THREAD_POOL_SPIN_COUNT"] == "0"


# Row 67: odd paths


@pytest.mark.parametrize(
    "name", [b"a b", b"new\nline", b"-dash", b"\xff\xfe", "n\u00e4h".encode(), b"\x1b[31mred", b"x" * 255]
)
def test_row_67_odd_directories(artifact: str, tmp_path: Path, name: bytes, capsys: Captured) -> None:
    out = tmp_path / os.fsdecode(name)
    assert run_toy(artifact, out) == 0 and steps(out) == [2, 4, 6]
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out and "new\nline" not in printed.out
    printed.out.encode("utf-8")  # no lone surrogate
    assert run_toy(artifact, out) == 4
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("name", ["x" * 256, "y/" * 2100, "nul\0"])
def test_row_67_impossible_directories(artifact: str, tmp_path: Path, name: str, capsys: Captured) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert run_toy(artifact, tmp_path / name) == 5
    one_error(capsys.readouterr().err, "E-IO-010")
    assert sorted(tmp_path.rglob("*")) == before
    assert run.main([name, "--out", str(tmp_path)]) == 5
    one_error(capsys.readouterr().err, "E-IO-012")


def test_row_67_out_is_the_artifact(artifact: str, capsys: Captured) -> None:
    before = Path(artifact).read_bytes()
    assert run_toy(artifact, Path(artifact)) == 5
    one_error(capsys.readouterr().err, "E-IO-010")
    assert Path(artifact).read_bytes() == before


# Row 68: standard output and error


def test_row_68_a_closed_pipe_does_not_end_training(artifact: str, out: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = child(artifact, out, stdout=write)
    os.close(write)
    assert done.returncode == 0 and steps(out) == [2, 4, 6] and len(metrics(out)) == 8
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("warning: standard output is lost")


def test_row_68_nor_does_a_full_device(artifact: str, out: Path) -> None:
    with open("/dev/full", "w") as full:
        done = child(artifact, out, stdout=full)
    assert done.returncode == 0 and steps(out) == [2, 4, 6]
    assert len(done.stderr.splitlines()) == 1 and "No space left" in done.stderr


def test_row_68_nor_do_closed_descriptors(artifact: str, out: Path) -> None:
    argv = arguments(artifact, out)
    done = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *argv], env=environment(), timeout=30)
    assert done.returncode == 0 and steps(out) == [2, 4, 6]


def test_row_68_commands_that_only_print_say_so() -> None:
    argv = [sys.executable, "-m", "artifacts.run", "--version"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(argv, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 5
    one_error(done.stderr, "E-IO-010")
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(argv, env=environment(), stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert done.returncode == 141 and done.stderr == ""


# Rows 69 and 73: surroundings


ALL_AT_ONCE = {  # each of which is to change nothing, so any number of them may stand together
    "TERM": "dumb",
    "NO_COLOR": "1",
    "CI": "1",
    "SOURCE_DATE_EPOCH": "abc",
    "TZ": "Nowhere/None",
    "PYTHONHASHSEED": "99",
}


@pytest.mark.parametrize(
    "env",
    [{}, {"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, ALL_AT_ONCE],
)
def test_rows_69_and_73_the_environment_changes_nothing(artifact: str, tmp_path: Path, env: dict[str, str]) -> None:
    done = child(artifact, tmp_path / "n\u00e4h", env=env)
    assert done.returncode == 0 and done.stderr == ""
    assert contents(tmp_path / "n\u00e4h", 6)["params.safetensors"] == toy_digest(tmp_path, artifact)


@pytest.mark.parametrize("now", [-10, 0.0, 4102444800.0])
def test_row_73_the_clock_is_in_no_digest(
    artifact: str, tmp_path: Path, now: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_toy(artifact, tmp_path / "a", "-q") == 0
    monkeypatch.setattr(time, "time", lambda: now)
    assert run_toy(artifact, tmp_path / "b", "-q") == 0
    assert contents(tmp_path / "a", 6) == contents(tmp_path / "b", 6)


@pytest.mark.parametrize("columns", [0, 20, 80])
def test_row_69_a_terminal_gets_a_bar_on_standard_error(
    artifact: str, out: Path, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    seen: list[bytes] = []
    reader = threading.Thread(target=lambda: seen.extend(iter(lambda: _read(main), b"")))
    reader.start()
    monkeypatch.setenv("TERM", "xterm")
    with open(side, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        assert run_toy(artifact, out) == 0
    reader.join(10)
    os.close(main)
    printed = capsys.readouterr().out
    assert b"6/6" in b"".join(seen)
    assert "step 2/6" not in printed and "pass held at step 6" in printed and "params sha256:" in printed


SILENT = {"TQDM_DISABLE": "1", "TQDM_MININTERVAL": "1e9", "TQDM_LEAVE": "False", "TQDM_TOTAL": "3", "TQDM_NCOLS": "0"}
GARBAGE = {f"TQDM_{name}": "no" for name in ("MININTERVAL", "NCOLS", "ASCII", "BAR_FORMAT", "UNIT_SCALE")}
SCREEN = {"COLUMNS": "no", "LINES": "-1"}


@pytest.mark.parametrize("env", [SILENT, {"TQDM_BAR_FORMAT": "{nonsense}"}, GARBAGE, SCREEN, {"COLUMNS": "1"}])
def test_no_variable_silences_a_run_or_stops_it(artifact: str, out: Path, env: dict[str, str]) -> None:
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    done = child(artifact, out, env={"TERM": "xterm", **env}, stderr=side)
    os.close(side)
    seen = b"".join(iter(lambda: _read(main), b""))
    os.close(main)
    assert done.returncode == 0 and "params sha256:" in done.stdout and "step 2/6" not in done.stdout
    assert b"6/6" in seen and b"loss " in seen and b"Traceback" not in seen


def test_without_a_bar_there_are_lines(artifact: str, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fails as it is made, and one that fails later."""

    class Failing:
        def __getattr__(self, name: str) -> None:
            raise KeyError(name)

    console = reporting.Console()
    monkeypatch.setattr(reporting, "_terminal", lambda: True)
    monkeypatch.setattr(reporting, "_bar", lambda *_: 1 / 0)
    assert not reporting.Progress(console, 0, 6, Clock()).shown
    monkeypatch.setattr(reporting, "_bar", lambda *_: Failing())
    progress = reporting.Progress(console, 0, 6, Clock())
    assert progress.shown
    progress.step(0.5)
    assert not progress.shown


@pytest.mark.parametrize("columns", ["no", "-5", "0", "1", "9" * 30])
def test_help_stands_any_width_of_the_screen(columns: str) -> None:
    for module in ("artifacts.run", "sexpgpu"):
        argv = [sys.executable, "-m", module, "--help"]
        done = subprocess.run(argv, env=environment(COLUMNS=columns, LINES=columns), capture_output=True, text=True)
        assert done.returncode == 0 and "exit status" in done.stdout and done.stderr == ""


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""


# Row 74 and 75: limits


def limited(kind: int, value: int):  # noqa: ANN201
    return lambda: resource.setrlimit(kind, (value, value))


def test_row_74_a_file_size_limit(artifact: str, out: Path) -> None:
    """The second run may write no file as large as a manifest: the old checkpoint stays, alone and whole."""
    assert run_toy(artifact, out, "-q", "--steps", "2") == 0
    before = contents(out, 2)
    env = {"PYTHONDONTWRITEBYTECODE": "1"}  # Python would leave modules cut short for all that import them later
    done = child(artifact, out, "-q", "--resume", env=env, preexec_fn=limited(resource.RLIMIT_FSIZE, 1000))
    assert done.returncode == 5
    one_error(done.stderr.splitlines()[-1], "E-IO-011")
    assert steps(out) == [2] and contents(out, 2) == before and not list((out / "checkpoints").glob(".tmp*"))
    assert run_toy(artifact, out, "-q", "--resume") == 0 and steps(out)[-1] == 6


@pytest.mark.parametrize(
    "kind, value", [(resource.RLIMIT_NOFILE, 16), (resource.RLIMIT_NOFILE, 5), (resource.RLIMIT_AS, 150 * 2**20)]
)
def test_row_75_limits_of_the_process(artifact: str, out: Path, kind: int, value: int) -> None:
    """Addresses are laid out at random: what meets a limit of memory first differs, and may be the reading of data."""
    done = child(artifact, out, "-q", preexec_fn=limited(kind, value))
    allowed = {0: "", 3: r"error\[E-ENV-01[02]\]: ", 5: r"error\[E-DATA-010\]: .*: it takes more memory than there is"}
    assert done.returncode in allowed and (done.returncode != 5 or kind == resource.RLIMIT_AS), done.stderr
    if done.returncode:
        assert re.match(allowed[done.returncode], done.stderr.splitlines()[-1]) and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "error, code",
    [
        (MemoryError(), "E-ENV-012"),
        (OSError(24, "Too many open files", "f"), "E-ENV-012"),
        (OSError(28, "No space left on device", "f"), "E-IO-011"),
        (OSError(5, "Input/output error", "f"), "E-IO-010"),
        (RuntimeError("can't start new thread"), "E-ENV-012"),
        (ModuleNotFoundError("No module named 'numpy'", name="numpy"), "E-ENV-010"),
    ],
)
def test_row_75_what_the_system_refuses_is_coded(error: Exception, code: str) -> None:
    found = run.as_run_error(error)
    assert found is not None and found.code.name == code


# Row 81 and reports


def test_row_81_a_log_that_cannot_be_written(artifact: str, out: Path, capsys: Captured) -> None:
    (out / "metrics.jsonl").mkdir(parents=True)
    assert run_toy(artifact, out, "-q") == 0 and steps(out) == [2, 4, 6]
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_row_81_a_log_that_fails_later(
    artifact: str, out: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = open("/dev/full", "w")  # noqa: SIM115 (the log closes it)
    monkeypatch.setattr(Log, "_open", lambda self: setattr(self, "_file", full))
    assert run_toy(artifact, out, "-q") == 0 and steps(out) == [2, 4, 6]
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 1 and "metrics.jsonl cannot be written" in err[0]


def test_numbers_in_the_log_are_exact_and_json(artifact: str, out: Path) -> None:
    assert run_toy(artifact, out, "-q") == 0
    line = metrics(out)[0]
    assert set(line) == {"step", "loss", "metrics", "lr", "grad_norm", "records", "counters"}
    assert float(repr(line["loss"])) == line["loss"] and line["records"] == 8 and line["counters"] == {"tokens": 8}
    assert (
        reporting.number(float("nan")) == "nan"
        and reporting.number(float("-inf")) == "-inf"
        and reporting.number(0.1) == 0.1
    )


def test_text_lines(artifact: str, out: Path, capsys: Captured) -> None:
    assert run_toy(artifact, out) == 0
    lines = capsys.readouterr().out.splitlines()
    with tarball.open(artifact) as opened:
        assert lines[0] == f"run toy: 6 steps, artifact sha256:{opened.hash}"
    assert lines[1] == "pass held leaves out the last 1 of 9 records: they fill no batch"
    assert [line.split()[1] for line in lines if line.startswith("step ")] == ["2/6", "4/6", "6/6"]
    assert lines[-2:] == [f"checkpoint {checkpoint(out, 6)}", f"params sha256:{contents(out, 6)['params.safetensors']}"]


def test_json_lines(artifact: str, out: Path, capsys: Captured) -> None:
    assert run_toy(artifact, out, "--output-format", "json", "--diagnostic", "rows") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1]["done"] and lines[-1]["step"] == 6 and lines[-1]["params"].startswith("sha256:")
    assert len([line for line in lines if "diagnostic" in line]) == 5
    assert {"left_out": 1, "of": "held", "records": 9} in lines
    assert all({"step", "loss", "metrics"} <= set(line) for line in lines if "pass" in line)  # a reader may ask for it
    assert run.main([artifact, "--out", str(out), "--output-format", "json"]) != 0
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["code"].startswith("E-") and set(error) == {"code", "message", "hint", "where"}


def test_a_diagnostic_that_is_not_finite_is_json(
    artifact: str, out: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*inputs):  # noqa: ANN002, ANN202
        *made, rows = toy.train(*inputs)
        return *made, rows * float("-inf")

    monkeypatch.setitem(toy.FUNCTIONS, "train", train)
    assert run_toy(artifact, out, "--output-format", "json", "-v", "--diagnostic", "rows") == 0
    found = capsys.readouterr()
    lines = [json.loads(line, parse_constant=pytest.fail) for line in (found.out + found.err).splitlines()]
    values = [line["values"] for line in lines if "diagnostic" in line]
    assert values[0][0] == ["-inf"] * 3 and any("detail" in line for line in lines)


def test_diagnostics(artifact: str, out: Path, capsys: Captured) -> None:
    assert run_toy(artifact, out, "-q", "--diagnostic", "rows") == 0
    text = capsys.readouterr().out
    assert text.count("diagnostic rows, step ") == 3 and text.count("diagnostic rows, pass held at step ") == 2
    assert "float32[4, 3]" in text
    assert run_toy(artifact, out, "--resume", "--diagnostic", "logits") == 2
    line = one_error(capsys.readouterr().err, "E-CLI-004")
    assert "sexpgpu build --diagnostic logits" in line and "rows" in line


def test_nothing_left_to_do(artifact: str, out: Path, capsys: Captured) -> None:
    assert run_toy(artifact, out, "-q") == 0
    assert run_toy(artifact, out, "--resume") == 0
    text = capsys.readouterr().out
    assert "done: step 6" in text and "step 7" not in text and f"checkpoint {checkpoint(out, 6)}" in text
    assert run_toy(artifact, out, "--resume", "--steps", "3", "-q") == 0 and steps(out) == [2, 4, 6]


def test_an_unexpected_error_is_ours(
    artifact: str, out: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(toy.FUNCTIONS, "train", lambda *_: 1 / 0)
    monkeypatch.delenv("SEXPGPU_DEBUG", raising=False)
    assert run_toy(artifact, out, "-q") == 70
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1 and err.startswith("internal error: ZeroDivisionError") and "report" in err
    monkeypatch.setenv("SEXPGPU_DEBUG", "1")
    assert run_toy(artifact, out.with_name("two"), "-q") == 70 and "Traceback" in capsys.readouterr().err


def test_codes_are_complete() -> None:
    assert all(re.fullmatch(r"E-(ART|CKPT|DATA|IO|LOCK|ENV|MEM|DEVICE|TARGET|NUM|CLI)-0\d\d", name) for name in CODES)
    assert all(c.summary and c.fix.endswith(".") and c.exit in (1, 2, 3, 4, 5, 6) for c in CODES.values())
    declared = {value.name for value in vars(errors).values() if isinstance(value, errors.Code)}
    assert declared == set(CODES)


def test_a_refusal_says_what_to_do() -> None:
    """Its own words, or else those of its code."""
    assert str(RunError(CKPT_NONE, "none")) == "error[E-CKPT-001]: none (check --out, or start without --resume)"
    assert RunError(CKPT_NONE, "none", hint="wait").hint == "wait"
    assert all(RunError(code, "what").hint for code in CODES.values())


def test_every_code_is_used() -> None:
    text = "".join(p.read_text() for p in Path(errors.__file__).parents[1].rglob("*.py"))
    names = [name for name, value in vars(errors).items() if isinstance(value, errors.Code)]
    assert [name for name in names if len(re.findall(rf"\b{name}\b", text)) < 2] == []


def test_start_is_light(artifact: str, out: Path) -> None:
    """To the first finished step and out again, beyond Python's own start: under 1.5 s of processor, which other work
    on the machine changes little. Importing a compiler or a framework alone takes more."""
    run = arguments(artifact, out, "-q", "--steps", "1")
    assert _processor_seconds(run) - _processor_seconds([sys.executable, "-c", "pass"]) < 1.5


def _processor_seconds(command: list[str]) -> float:
    process = subprocess.Popen(command, env=environment())
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime
