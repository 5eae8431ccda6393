"""The command line itself: wrong usage, what help says, names of targets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer

from sexpgpu.cli.app import app
from tests.conftest import ONE
from tests.system.test_cli import called, good

__all__ = ["good"]  # the fixture
OTHER = "cpu-x86-64-v3" if ONE == "cpu-aarch64" else "cpu-aarch64"  # of a machine that this is not
needs_cuda = pytest.mark.skipif(find_spec("nvidia") is None, reason="needs the extra `cuda`")


COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def parsed(command: str, *argv: str) -> dict[str, Any]:
    return COMMANDS[command].make_context(command, [*argv]).params


@pytest.mark.parametrize(
    "args, words",
    [
        (["chekc", "x.sx"], "did you mean check?"),
        (["check"], "'FILE'"),
        (["check", "x.sx", "--output-fromat", "json"], "did you mean --output-format?"),
        (["check", "x.sx", "--output-format", "xml"], "xml"),
        (["build", "x.sx"], "-o"),
        (["build", "x.sx", "-o", "x.tar", "--jobs", "0"], "0 is not a whole number from 1 to 256"),
        (["build", "x.sx", "-o", "x.tar", "--jobs", "٢"], "is not a whole number"),
        ([], "missing command (see sexpgpu --help)"),
        (["run", "x.sx"], "(sexpgpu-run trains from an artifact)"),
        (["build", "x.sx", "--stack"], "(see sexpgpu build --help)"),
        (["build", "x.sx", "--force=yes"], "sexpgpu build: option '--force' does not take a value (see sexpgpu build"),
        (["build", "x.sx", "-o", "x.tar", "--dump", ""], "'--dump': it is empty; give it a value, or leave it out"),
        (["build", "x.sx", "-o", "x.tar", "y.tar"], "extra argument(s) (y.tar)"),
        (["build", "x.sx", "-o", "x.tar", "--graphs", "on"], "'off' (see sexpgpu build --help)"),  # not: json
        (["build", "x.sx", "-o", "x.tar", "--graphs", "of"], "(did you mean off?)"),
        (
            ["tune", "x.sx", "--target", "cpu", "--trials", "1", "--out", "r", "--local", "--key", "k"],
            "--local asks no",
        ),
    ],
)
def test_row_63_wrong_usage(args: list[str], words: str) -> None:
    done = called(*args)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error[E-CLI-001]: ") and done.stderr.count("\n") == 1 and words in done.stderr


def test_help_and_version_go_to_stdout() -> None:
    for args in (["--help"], ["build", "--help"], ["--version"]):
        done = called(*args)
        assert done.returncode == 0 and done.stdout and not done.stderr


def test_help_says_what_each_argument_is() -> None:
    assert len(COMMANDS) == 9
    for name, command in COMMANDS.items():
        assert command.help
        for parameter in command.params:
            assert parameter.help, f"{name}: {parameter.name}"
    assert "exit status: 0 done" in called("--help").stdout


@pytest.mark.parametrize(("to", "status", "lines"), [(">&-", 0, 0), (">&- 2>&-", 0, 0), (">/dev/full", 5, 1)])
def test_a_standard_output_that_is_closed_or_full_is_no_bug(good: Path, to: str, status: int, lines: int) -> None:
    command = f'exec "$0" -m sexpgpu check "$1" {to}'
    env = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}  # as a user's is
    done = subprocess.run(["sh", "-c", command, sys.executable, str(good)], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stderr.count("\n")) == (status, lines), done.stderr


def test_an_output_has_one_name_in_all_commands() -> None:
    from artifacts import options as run_options

    for name in ("-o", "--out"):
        assert parsed("build", "x.sx", name, "x.tar")["output"] == "x.tar"
        tuned = ["x.sx", "--target", "cpu", "--local", "--trials", "1", name, "records"]
        assert parsed("tune", *tuned)["out"] == "records"
        assert run_options.parse(["x.tar", name, "run"]).out == "run"


def test_a_machine_without_typer_is_told_of_the_extra() -> None:
    code = "import sys\nsys.modules['typer'] = None\nfrom sexpgpu.cli.main import main\nsys.exit(main(['check', 'x']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 3 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error[E-ENV-001]: the command line of the builder needs the extra `cli` (pip ")


@pytest.mark.parametrize("variable", ["_SEXPGPU_COMPLETE=bash_source", "TYPER_USE_RICH=maybe", "COLUMNS=1"])
def test_a_variable_of_typer_changes_no_status(variable: str) -> None:
    name, _, value = variable.partition("=")
    env = {**os.environ, name: value}
    done = subprocess.run([sys.executable, "-m", "sexpgpu", "--help"], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stderr) == (0, "") and "Usage: sexpgpu" in done.stdout


@pytest.mark.parametrize("seed", [0, 257, 2**63 - 1])
def test_a_search_takes_any_seed_that_a_run_file_may_have(seed: int) -> None:
    argv = ["x.sx", "--target", "cpu", "--local", "--trials", "1", "--out", "r", "--seed", str(seed)]
    assert parsed("tune", *argv)["seed"] == seed
    assert parsed("tune", *argv[:-2])["seed"] == 1


@pytest.mark.build
def test_an_unknown_target_is_refused_with_those_there_are(good: Path) -> None:
    done = called("build", good, "-o", good.with_name("x.tar"), "--target", "cpu-native")
    assert done.returncode == 2
    assert done.stderr.startswith("error[E-TARGET-001]: there is no target cpu-native (one of cpu nvidia-b200 ")
    said = {
        "cpu-x86-64-v3,": "--target has an empty name in it (a list is ",
        "cpu, nvidia-l4": 'there is no target " nvidia-l4", with a space in it (did you mean nvidia-l4? ',
        "h100": "there is no target h100 (did you mean nvidia-h100? sexpgpu targets lists them all)\n",
        "NVIDIA-H100": "there is no target NVIDIA-H100 (did you mean nvidia-h100? ",
        "cpu,nvdia-h100": "there is no target nvdia-h100 (did you mean nvidia-h100? ",
        "sm_90": "there is no target sm_90 (did you mean cuda-sm_90? ",
        "cuda-sm_70": "there is no target cuda-sm_70 (one of ",  # and no other capability is named in its place
        "cuda-sm_999": "there is no target cuda-sm_999 (one of ",
        "nvidia-v100": "there is no target nvidia-v100 (one of ",
    }
    for names, words in said.items():
        for command in (["build", "-o", good.with_name("x.tar")], ["explain"], ["explain", "--cost"]):
            done = called(*command, good, "--target", names)
            assert done.returncode == 2 and done.stderr.startswith(f"error[E-TARGET-001]: {words}")
    rows = {row.split()[0]: row for row in called("targets").stdout.splitlines()}
    assert {"cpu", "cpu-x86-64-v4", "cpu-x86-64-v3", "cpu-aarch64", "nvidia-h100", "cuda-sm_75"} <= set(rows)
    assert "x86_64, needs compute capability 9.0, 80 GiB; sexpgpu[cuda] builds for it" in rows["nvidia-h100"]
    found = json.loads(called("targets", "--output-format", "json").stdout)
    assert list(found) == list(rows) and found["nvidia-l4"]["library"] == "cuda-sm_80"
    assert found["cpu-aarch64"]["extras"] == ["build"] and found["nvidia-l4"]["extras"] == ["cuda"]


@pytest.mark.build
@pytest.mark.parametrize(
    ("argv", "status", "what"),
    [
        (["--target", f"{ONE},{OTHER}", "--local"], 2, "E-TARGET-004"),
        (["--target", "cpu-x86-64-v3,cpu-x86-64-v4", "--local"], 2, "E-TUNE-004"),
        pytest.param(["--target", "nvidia-h100", "--local"], 3, "E-TUNE-003", marks=needs_cuda),
        (["--target", OTHER, "--local"], 3, "E-TUNE-003"),
        (["--target", ONE, "--tracker", "127.0.0.1:9"], 2, "--tracker needs --key"),
        (["--target", ONE, "--tracker", "127.0.0.1:9", "--key", "k", "--threads", "1"], 2, "--threads is for --local"),
        (["--target", ONE, "--tracker", "nowhere"], 2, "nowhere is not HOST:PORT"),
        (["--target", ONE], 2, "one of --local and --tracker is required"),
        (["--target", ONE, "--local", "--trials", "0"], 2, "0 is not a whole number"),
        (["--target", ONE, "--local", "--seed", str(2**63)], 2, "is not a whole number from 0 to 9223372036854775807"),
        (["--target", ONE, "--local", "--only", "mat"], 2, "E-TUNE-005]: --only mat is the name of none of "),
        (["--target", ONE, "--tracker", "127.0.0.1:9", "--key", "k"], 3, "no tracker answers at 127.0.0.1:9: [Errno"),
        (["--target", ONE, "--local", "--out", __file__], 5, "test_usage.py is not a folder"),
        (["--target", ONE, "--local", "--out", "/proc/1/records"], 5, "error[E-IO-001]: --out: the folder /proc/1 "),
    ],
)
def test_what_cannot_be_tuned_is_refused(good: Path, argv: list[str], status: int, what: str) -> None:
    out = good.with_name("records")
    done = called("tune", good, "--trials", 1, "--out", out, *argv)
    assert done.returncode == status and what in done.stderr and done.stderr.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(("seconds", "words"), [(1.1e-5, "11.0 us"), (1e-6, "1.0 us"), (3.4e-8, "0.034 us")])
def test_times_are_told_apart(seconds: float, words: str) -> None:
    from sexpgpu.build.tuner import us

    assert us(seconds) == words
