"""The compiler's command line: rows 63 to 69 of the table of bad inputs, and what each command prints."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import EXAMPLES, sexpgpu
from tests.support import run_text

TINY = EXAMPLES / "tiny-generate/run.sx"


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "run.sx"
    path.write_text(run_text())
    return path


def test_check_says_what_it_found(good: Path) -> None:
    done = sexpgpu("check", good)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{good}: ok: r, 3 phases, 2 parameters\n"
    found = json.loads(sexpgpu("check", good, "--output-format", "json").stdout)
    assert found["phases"] == ["init", "train", "update"] and len(found["identity"]) == 8


def test_check_reports_every_fault_in_the_order_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "run.sx"
    path.write_text(run_text(model="(defmodel m (x) (linear x :out zzz))", optimizer="(defoptimizer (sdg :lr 0.1))"))
    done = sexpgpu("check", path)
    assert done.returncode == 1 and done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert lines == [
        f"error[E-NAME-001]: {path}:1:32: zzz is not defined",
        f"error[E-NAME-001]: {path}:5:16: sdg is not defined (did you mean sgd?)",
    ]
    assert done.stderr.endswith("2 errors\n") and "^^^" in done.stderr
    as_json = sexpgpu("check", path, "--output-format", "json").stderr.splitlines()
    assert [json.loads(line)["where"] for line in as_json] == [f"{path}:1:32", f"{path}:5:16"]


def test_check_needs_no_compiler() -> None:
    code = "import sys; from sexpgpu.cli import main; main(['check', sys.argv[1]]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(TINY)], capture_output=True, text=True)
    loaded = {name.split(".")[0] for name in done.stdout.splitlines()[-1].split()}
    assert not loaded & {"tvm", "tvm_ffi", "numpy", "lowering", "schedules", "artifacts", "typer"}


@pytest.mark.parametrize(
    "args, words",
    [
        (["chekc", "x.sx"], "did you mean check?"),
        (["check"], "file"),
        (["check", "x.sx", "--output-fromat", "json"], "did you mean --output-format?"),
        (["check", "x.sx", "--output-format", "xml"], "xml"),
        (["build", "x.sx"], "-o"),
        ([], "COMMAND"),
    ],
)
def test_row_63_wrong_usage(args: list[str], words: str) -> None:
    done = sexpgpu(*args)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error[E-CLI-001]: ") and done.stderr.count("\n") == 1 and words in done.stderr


def test_help_and_version_go_to_stdout() -> None:
    for args in (["--help"], ["build", "--help"], ["--version"]):
        done = sexpgpu(*args)
        assert done.returncode == 0 and done.stdout and not done.stderr


@pytest.mark.build
def test_row_66_an_output_that_exists_or_is_the_input(good: Path) -> None:
    taken = good.with_name("taken.tar")
    taken.write_bytes(b"mine")
    for output, more in ((taken, []), (taken, ["--force"]), (good, ["--force"])):
        before = output.read_bytes()
        done = sexpgpu("build", good, "-o", output, *more)
        assert done.returncode == 2 and done.stderr.startswith("error[E-CLI-") and done.stderr.count("\n") == 1
        assert output.read_bytes() == before


@pytest.mark.build
def test_an_unknown_target_is_refused_with_those_there_are(good: Path) -> None:
    done = sexpgpu("build", good, "-o", good.with_name("x.tar"), "--target", "cpu-native")
    assert done.returncode == 2
    assert done.stderr.startswith("error[E-TARGET-001]: there is no target cpu-native (one of cpu-x86-64-v3 ")
    assert "cpu-aarch64" in sexpgpu("targets").stdout


@pytest.mark.build
def test_a_target_of_another_machine_needs_its_runtime(good: Path) -> None:
    other = "cpu-aarch64" if platform.machine() == "x86_64" else "cpu-x86-64-v3"
    for more in ([], ["--runtime", str(good)], ["--runtime", str(good.parent / "nowhere")]):
        done = sexpgpu("build", good, "-o", good.with_name("x.tar"), "--target", other, *more)
        assert done.returncode == 3 and not good.with_name("x.tar").exists()
        assert done.stderr.startswith("error[E-TARGET-003]: ") and done.stderr.count("\n") == 1


@pytest.mark.build
@pytest.mark.parametrize("swallowed", ["pass", "raise RuntimeError() from None"])
def test_ctrl_c_ends_a_build_whatever_becomes_of_it_inside_tvm(good: Path, swallowed: str) -> None:
    code = (
        "import signal, sys, schedules\nkept = schedules.first\n"
        "def first(func, target):\n"
        "    try:\n        signal.raise_signal(signal.SIGINT)\n"
        f"    except BaseException:\n        {swallowed}\n"
        "    return kept(func, target)\n"
        "schedules.first = first\nfrom sexpgpu.cli import main\nsys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "build", str(good), "-o", str(good.with_name("x.tar"))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 130 and done.stderr.endswith("stopped by SIGINT\n")
    assert not good.with_name("x.tar").exists()


def test_an_error_that_ctrl_c_became_is_told_as_ctrl_c(good: Path) -> None:
    code = (
        "import signal, sys\nfrom sexpgpu import cli\n"
        "def run(options):\n"
        "    try:\n        signal.raise_signal(signal.SIGINT)\n"
        "    except KeyboardInterrupt:\n        raise RuntimeError('') from None\n"
        "cli.run_check = run\nsys.exit(cli.main(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", code, "check", str(good)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "stopped by SIGINT\n")


@pytest.mark.build
def test_a_kernel_without_a_rule_is_refused_when_asked(good: Path) -> None:
    code = (
        "import sys, schedules\nfrom schedules import Scheduled\n"
        "schedules.first = lambda func, target: Scheduled(None, '', ())\n"
        "from sexpgpu.cli import main\nsys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "build", str(good), "-o", str(good.with_name("x.tar")), "--strict-schedules"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("error[E-TARGET-002]: no schedule rule took ")
    assert not good.with_name("x.tar").exists()


@pytest.mark.build
def test_an_output_that_cannot_be_written_is_refused_before_the_work(good: Path) -> None:
    done = sexpgpu("build", good, "-o", good.parent / "nowhere/x.tar")
    assert done.returncode == 5 and done.stderr.startswith("error[E-IO-") and done.stderr.count("\n") == 1


def test_building_without_the_compiler_says_what_to_install(good: Path) -> None:
    code = (
        "import sys, importlib.metadata as m\nreal = m.version\n"
        "def version(name):\n"
        "    if name == 'apache-tvm': raise m.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "m.version = version\nfrom sexpgpu.cli import main\nsys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "build", str(good), "-o", str(good.with_name("x.tar"))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr == "error[E-ENV-001]: building needs apache-tvm (pip install 'sexpgpu[build]')\n"


@pytest.mark.build
def test_data_to_embed_that_is_not_there_points_at_the_loader(tmp_path: Path) -> None:
    shutil.copy(TINY, tmp_path / "run.sx")
    done = sexpgpu("build", tmp_path / "run.sx", "-o", tmp_path / "x.tar")
    assert done.returncode == 1 and done.stderr.startswith("error[E-DATA-001]: ") and "(defloader rows" in done.stderr


@pytest.mark.parametrize("name", ["a b.sx", "-x.sx", "ö.sx", "new\nline.sx", "b\udcffd.sx"])
def test_row_67_paths_of_any_kind(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(run_text())
    assert sexpgpu("check", path).returncode == 0
    path.write_text("(")
    done = sexpgpu("check", path, errors="surrogateescape")
    assert done.returncode == 1 and done.stderr.splitlines()[0].startswith("error[E-READ-003]: ")


def test_row_68_a_closed_or_full_stdout() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sexpgpu", "explain", str(TINY)], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 5 and done.stderr.startswith("error[E-IO-001]: ") and done.stderr.count("\n") == 1
    command = f"{sys.executable} -m sexpgpu explain {TINY} | head -c 10; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode in (0, 141) and done.stderr == ""


def test_row_69_a_bare_environment() -> None:
    keep = {"PATH": os.environ["PATH"], "PYTHONPATH": str(EXAMPLES.parent), "LC_ALL": "C", "TERM": "dumb"}
    done = sexpgpu("check", TINY, env=keep)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unforeseen_error_is_ours_and_one_line(good: Path) -> None:
    code = (
        "import sys, sexpgpu.phases as p\ndef trace_run(*a): raise RuntimeError('first\\nsecond')\n"
        "p.trace_run = trace_run\nfrom sexpgpu.cli import main\nsys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", code, "check", str(good)], capture_output=True, text=True)
    assert done.returncode == 70
    assert done.stderr.startswith("internal error: RuntimeError: first (") and done.stderr.count("\n") == 1


@pytest.mark.build
def test_inspect_verify_and_diff(tiny: Path, tmp_path: Path) -> None:
    assert "tiny-generate" in sexpgpu("inspect", tiny).stdout
    as_json = json.loads(sexpgpu("inspect", tiny, "--output-format", "json").stdout)
    assert sexpgpu("verify", tiny).stdout == f"{tiny}: ok: {as_json['hash']}\n"
    assert sexpgpu("diff", tiny, tiny).stdout == "the same\n"
    data = bytearray(tiny.read_bytes())
    data[-2000] ^= 1
    (tmp_path / "bad.tar").write_bytes(data)
    done = sexpgpu("verify", tmp_path / "bad.tar")
    assert done.returncode == 4 and done.stderr.startswith("error[E-ART-") and done.stderr.count("\n") == 1
