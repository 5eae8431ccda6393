"""The compiler's command line: rows 63 to 69 of the table of bad inputs, and what each command prints."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from artifacts import signals
from artifacts.format import tarball
from sexpgpu.build import interrupt
from sexpgpu.cli import commands, main
from sexpgpu.language.codes import ENV_MISSING
from sexpgpu.language.diagnostics import UserError
from sexpgpu.phases import trace_run
from tests.conftest import EXAMPLES, ONE, build, called, sexpgpu
from tests.support import run_text

TINY = EXAMPLES / "tiny-generate/run.sx"


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "run.sx"
    path.write_text(run_text())
    return path


def test_check_says_what_it_found(good: Path) -> None:
    done = called("check", good)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{good}: ok: r, 3 phases, 2 parameters\n"
    found = json.loads(called("check", good, "--output-format", "json").stdout)
    assert found["phases"] == ["init", "train", "update"] and len(found["identity"]) == 8


def test_check_reports_every_fault_in_the_order_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "run.sx"
    path.write_text(run_text(model="(defmodel m (x) (linear x :out zzz))", optimizer="(defoptimizer (sdg :lr 0.1))"))
    done = called("check", path)
    assert done.returncode == 1 and done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert lines == [
        f"error[E-NAME-001]: {path}:1:32: zzz is not defined",
        f"error[E-NAME-001]: {path}:5:16: sdg is not defined (did you mean sgd?)",
    ]
    assert done.stderr.endswith("2 errors\n") and "^^^" in done.stderr
    as_json = called("check", path, "--output-format", "json").stderr.splitlines()
    assert [json.loads(line)["where"] for line in as_json] == [f"{path}:1:32", f"{path}:5:16"]


@pytest.mark.build
def test_row_66_an_output_that_exists_or_is_the_input(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sexpgpu.build.driver.compile_plan", failing(AssertionError("the work was begun")))
    taken = good.with_name("taken.tar")
    taken.write_bytes(b"mine")
    for output, more in ((taken, []), (taken, ["--force"]), (good, ["--force"])):
        before = output.read_bytes()
        done = called("build", good, "-o", output, *more)
        assert done.returncode == 2 and done.stderr.startswith("error[E-CLI-") and done.stderr.count("\n") == 1
        assert output.read_bytes() == before


# Whatever is installed here, the packages are told as another release, or none.
WITHOUT_CUDA = """
import sys
from importlib.metadata import PackageNotFoundError
from schedules.cuda import nvrtc
release = sys.argv.pop(1)
def version(package):
    if release == "none":
        raise PackageNotFoundError(package)
    return "12.9"
nvrtc.version = version
from sexpgpu.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.build
@pytest.mark.parametrize(
    ("release", "words"),
    [
        ("none", "nvidia-cuda-nvrtc 13.5.37 (pip"),
        ("other", "nvidia-cuda-nvrtc 13.5.37, and 12.9 is installed (pip"),
    ],
)
def test_a_gpu_needs_the_extra_cuda_before_any_work(good: Path, release: str, words: str) -> None:
    def run(*options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WITHOUT_CUDA, release, *map(str, options)]
        return subprocess.run(command, capture_output=True, text=True)

    done = run("build", good, "-o", good.with_name("x.tar"), "--target", "cpu,nvidia-h100")
    assert done.returncode == 3 and not good.with_name("x.tar").exists()
    assert done.stderr == f"error[E-ENV-001]: building for nvidia-h100 needs {words} install 'sexpgpu[cuda]')\n"
    assert "ms h100" in run("explain", good, "--cost", "--target", "nvidia-h100").stdout


@pytest.mark.build
def test_a_compiler_that_cannot_be_loaded_is_told_of(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM says nothing of it, be it for want of memory or of a library that its own needs."""
    monkeypatch.setenv("TVM_USE_RUNTIME_LIB", "1")
    for command in (["build", "-o", str(good.with_name("x.tar"))], ["explain", "--cost"]):
        done = subprocess.run([sys.executable, "-m", "sexpgpu", *command, str(good)], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.startswith("error[E-ENV-001]: the library of TVM's compiler cannot be loaded (")
        assert done.stderr.count("\n") == 1


@pytest.mark.build
def test_targets_of_two_machines_are_two_artifacts(good: Path) -> None:
    done = called("build", good, "-o", good.with_name("x.tar"), "--target", "cpu-aarch64,cpu-x86-64-v3")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error[E-TARGET-004]: cpu-aarch64,cpu-x86-64-v3 is for x86_64 and aarch64, and an artifact is for one"
        " (build an artifact for each)\n"
    )


@pytest.mark.build
def test_a_target_of_another_machine_needs_its_runtime(good: Path) -> None:
    other = "cpu-aarch64" if platform.machine() == "x86_64" else "cpu-x86-64-v3"
    for more in ([], ["--runtime", str(good)], ["--runtime", str(good.parent / "nowhere")]):
        done = called("build", good, "-o", good.with_name("x.tar"), "--target", other, *more)
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
        "schedules.first = first\nfrom sexpgpu.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "build", str(good), "-o", str(good.with_name("x.tar")), "--target", ONE]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 130 and done.stderr.endswith("stopped by SIGINT\n")
    assert not good.with_name("x.tar").exists()


def test_an_error_that_ctrl_c_became_is_told_as_ctrl_c(good: Path) -> None:
    code = (
        "import signal, sys\nfrom sexpgpu.cli import commands, main\n"
        "def run(options):\n"
        "    try:\n        signal.raise_signal(signal.SIGINT)\n"
        "    except KeyboardInterrupt:\n        raise RuntimeError('') from None\n"
        "commands.COMMANDS['check'] = run\nsys.exit(main.main(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", code, "check", str(good)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "stopped by SIGINT\n")


def test_the_compiler_stops_at_the_signals_that_the_runner_stops_at() -> None:
    assert (interrupt.ASKED, interrupt.TIMERS) == (signals.STOP_SIGNALS, signals.TIMERS)


@pytest.mark.parametrize("name", [number.name for number in signals.HANDLED])
@pytest.mark.parametrize("form", ["text", "json"])
def test_each_signal_ends_a_command_in_good_order(good: Path, name: str, form: str) -> None:
    """In processes of their own, forked: what is remembered of a signal stays."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writer, 2)
        signal.signal(getattr(signal, name), signal.SIG_DFL)  # the tests' own time limit has one
        commands.COMMANDS["check"] = lambda _: signal.raise_signal(getattr(signal, name))  # type: ignore
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
        os._exit(main.main(["check", str(good), "--output-format", form]))
    os.close(writer)
    with open(reader) as said:
        text = said.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + getattr(signal, name)
    assert (json.loads(text)["message"] if form == "json" else text.strip()) == f"stopped by {name}"


def test_a_worker_that_its_limit_ended_is_told_as_that(good: Path) -> None:
    code = (
        "import sys\nfrom sexpgpu.cli import commands, main\n"
        "class Died(RuntimeError):\n    status = -24\n"
        "def run(options):\n    raise Died('a compiling process ended')\n"
        "commands.COMMANDS['check'] = run\nsys.exit(main.main(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", code, "check", str(good)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (152, "stopped by SIGXCPU\n")


@pytest.mark.build
def test_a_kernel_without_a_rule_is_refused_when_asked(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import schedules

    monkeypatch.setattr(schedules, "first", lambda func, target: schedules.Scheduled(None, "", ()))
    done = called("build", good, "-o", good.with_name("x.tar"), "--strict-schedules", "--target", ONE)
    assert done.returncode == 1 and done.stderr.startswith("error[E-TARGET-002]: no schedule rule took ")
    assert not good.with_name("x.tar").exists()


@pytest.mark.build
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sexpgpu.build.driver.compile_plan", failing(AssertionError("the work was begun")))
    (good.parent / "there").mkdir()
    for name, words in (
        ("nowhere/x.tar", "nowhere is not there (make it first)"),
        ("there", "is a folder (name a file in"),
    ):
        done = called("build", good, "-o", good.parent / name)
        assert done.returncode == 5 and done.stderr.startswith("error[E-IO-010]: ") and done.stderr.count("\n") == 1
        assert words in done.stderr


def test_building_without_the_compiler_says_what_to_install(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sexpgpu.build import targets

    def version(name: str, real=targets.version) -> str:
        if name == "apache-tvm":
            raise targets.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(targets, "version", version)
    done = called("build", good, "-o", good.with_name("x.tar"))
    assert done.returncode == 3
    assert done.stderr == "error[E-ENV-001]: apache-tvm is not installed (pip install 'sexpgpu[build]')\n"


@pytest.mark.build
def test_data_to_embed_that_is_not_there_points_at_the_loader(tmp_path: Path) -> None:
    shutil.copy(TINY, tmp_path / "run.sx")
    done = called("build", tmp_path / "run.sx", "-o", tmp_path / "x.tar")
    assert done.returncode == 1 and done.stderr.startswith("error[E-DATA-001]: ") and "(defloader rows" in done.stderr


@pytest.mark.parametrize("name", ["a b.sx", "-x.sx", "ö.sx", "new\nline.sx", "b\udcffd.sx"])
def test_row_67_paths_of_any_kind(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(run_text())
    done = sexpgpu("check", path, errors="surrogateescape")
    assert done.returncode == 0 and done.stdout.count("\n") == 1
    path.write_text("(")
    done = called("check", path)
    assert done.returncode == 1 and done.stderr.splitlines()[0].startswith("error[E-READ-003]: ")
    assert "1 error" not in done.stderr


def test_row_68_a_closed_or_full_stdout() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sexpgpu", "explain", str(TINY)], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 5 and done.stderr.startswith("error[E-IO-001]: ") and done.stderr.count("\n") == 1
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "sexpgpu", "explain", str(TINY)], stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_row_69_a_bare_environment() -> None:
    keep = {"PATH": os.environ["PATH"], "PYTHONPATH": str(EXAMPLES.parent), "LC_ALL": "C", "TERM": "dumb"}
    done = sexpgpu("check", TINY, env=keep)
    assert (done.returncode, done.stderr) == (0, "")


def failing(error: BaseException) -> Callable[..., NoReturn]:
    def fail(*_: object) -> NoReturn:
        raise error

    return fail


def test_an_unforeseen_error_is_ours_and_one_line(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_run, "trace_run", failing(RuntimeError("first\nsecond")))
    monkeypatch.delenv("SEXPGPU_DEBUG", raising=False)
    done = called("check", good)
    assert (done.returncode, done.stdout) == (70, "")
    assert done.stderr == ("internal error: RuntimeError: first (please report; SEXPGPU_DEBUG=1 shows the traceback)\n")
    monkeypatch.setenv("SEXPGPU_DEBUG", "1")
    with pytest.raises(RuntimeError, match="first"):
        called("check", good)


def test_ctrl_c_ends_a_check(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_run, "trace_run", failing(KeyboardInterrupt()))
    done = called("check", good)
    assert (done.returncode, done.stderr) == (130, "stopped by SIGINT\n")


def test_a_fault_outside_the_run_file_has_its_status_and_is_data_when_asked(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_run, "trace_run", failing(UserError(ENV_MISSING, None, "what", hint="how")))
    done = called("check", good, "--output-format", "json")
    assert done.returncode == 3 and done.stdout == ""
    assert json.loads(done.stderr)["code"] == "E-ENV-001"


def test_explain_as_data(good: Path) -> None:
    found = json.loads(called("explain", good, "--output-format", "json").stdout)
    assert [p["phase"] for p in found["phases"]] == ["init", "train", "update"]
    assert found["phases"][1]["calls"] == 1 and found["phases"][1]["operators"]["matmul"] == 2
    assert found["run"] == {"name": "r", "steps": 2, "microbatches": 1, "seed": 1, "precision": "f32"}
    assert found["model"]["numbers"] == 8 and found["generation"] is None
    assert called("explain", good).stdout.startswith("run          r: 2 steps")


@pytest.mark.build
def test_explain_cost_reckons_with_the_rates_of_a_target(good: Path) -> None:
    done = called("explain", "--cost", good, "--target", "cpu-aarch64")
    assert (done.returncode, done.stderr) == (0, "") and "  ms aarch64\n" in done.stdout
    found = json.loads(called("explain", "--cost", good, "--target", "cpu-aarch64", "--output-format", "json").stdout)
    assert list(found["rates"]) == ["cpu-aarch64"] and found["phases"][2]["phase"] == "step"
    wrong = called("explain", "--cost", good, "--target", "cpu-z80")
    assert wrong.returncode == 2 and wrong.stderr.startswith("error[E-TARGET-") and len(wrong.stderr.splitlines()) == 1


@pytest.mark.build
def test_the_page_about_explain_has_the_table_that_explain_prints() -> None:
    said = called("explain", "--cost", TINY, "--stack", "1").stdout
    table = said.partition("\n")[2].partition("\n\n")[0]
    assert len(table.splitlines()) == 11 and table in (EXAMPLES.parent / "docs/explain.md").read_text()


@pytest.mark.build
def test_explain_target_says_what_a_build_reports(good: Path, tmp_path: Path) -> None:
    output = tmp_path / "run.tar"
    done = called("explain", "--target", "cpu-aarch64,cpu-aarch64", good)
    assert done.returncode == 0 and "\nlowered for cpu-aarch64: " in done.stdout  # no runtime for it is needed
    build(good, output)
    done = called("explain", "--target", ONE, good)
    with tarball.open(str(output)) as artifact:
        assert (done.returncode, done.stdout) == (0, artifact.read("report.txt").decode())
    found = json.loads(called("explain", "--target", ONE, good, "--output-format", "json").stdout)
    assert found["targets"] == [ONE] and all(k["rules"][ONE] for k in found["kernels"])
    train = next(p for p in found["phases"] if p["phase"] == "train")
    assert train["kernels"] == sum(k["calls"].get("train", 0) for k in found["kernels"]) > 0 < train["memory"]


def test_build_keeps_the_diagnostics_that_it_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, kept = tmp_path / "run.sx", []
    path.write_text(run_text(objective="(defobjective (inputs ctx) (mean (model (diagnostic :a (getf inputs :x)))))"))
    monkeypatch.setattr("sexpgpu.build.targets.find_targets", lambda names: ())  # which would load the compiler
    monkeypatch.setattr("sexpgpu.build.driver.build", lambda plan, _: kept.extend(plan.diagnostics) or sys.exit(0))
    called("build", path, "-o", "x.tar", "--diagnostic", "a")
    assert kept == ["a"]


@pytest.mark.parametrize("found, status, text", [("one byte", 1, "one byte\n"), ("", 0, "the same\n")])
def test_diff_has_the_status_of_diff(found: str, status: int, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sexpgpu.build.driver.diff", lambda one, other: found)
    done = called("diff", "a.tar", "b.tar")
    assert (done.returncode, done.stdout) == (status, text)
    as_json = called("diff", "a.tar", "b.tar", "--output-format", "json").stdout
    assert json.loads(as_json) == {"difference": found}


@pytest.mark.build
def test_inspect_verify_and_diff(tiny: Path, tmp_path: Path) -> None:
    assert "tiny-generate" in called("inspect", tiny).stdout
    as_json = json.loads(called("inspect", tiny, "--output-format", "json").stdout)
    assert called("verify", tiny).stdout == f"{tiny}: ok: {as_json['hash']}\n"
    assert called("diff", tiny, tiny).stdout == "the same\n"
    data = bytearray(tiny.read_bytes())
    data[-2000] ^= 1
    (tmp_path / "bad.tar").write_bytes(data)
    done = called("verify", tmp_path / "bad.tar")
    assert done.returncode == 4 and done.stderr.startswith("error[E-ART-") and done.stderr.count("\n") == 1
