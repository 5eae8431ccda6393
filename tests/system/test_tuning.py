"""sexpgpu tune and build --records: what is kept, what is gone on with, what is refused."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from sexpgpu.cli import commands, main
from tests.conftest import ONE, sexpgpu
from tests.support import run_text

pytestmark = pytest.mark.build

RUN = run_text(model="(defmodel m (x) (linear (gelu (linear x :hidden 24)) :out 2))")
PRODUCTS = ("--only", "matmul*")
OTHER = "cpu-x86-64-v3" if ONE == "cpu-aarch64" else "cpu-aarch64"  # of a machine that this is not
GPU, GPU_SET = "nvidia-h100", "cuda-sm_80"
needs_cuda = pytest.mark.skipif(find_spec("nvidia") is None, reason="needs the extra `cuda`")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tuning") / "run.sx"
    path.write_text(RUN)
    return path


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """A runner that runs nothing: its times follow from the library, and its bits from the kernel's parameters, so that
    all candidates have the rules' bits. What it was given to measure."""
    from schedules.tuning.measure import Measured
    from sexpgpu.build import tuner

    seen: list[bytes] = []

    def measure(library: bytes, wanted: Any) -> Measured:
        seen.append(library)
        number = int.from_bytes(hashlib.sha256(library).digest()[:4], "big")
        return Measured((1 + number / 2**32) * 1e-6, hashlib.sha256(repr(wanted).encode()).hexdigest())

    monkeypatch.setattr(tuner, "measurer", lambda *_: measure)
    return seen


def command(*argv: Any) -> int:
    """The exit status of the command line, in this process."""
    try:
        return main.main([str(word) for word in argv])
    except SystemExit as done:
        return int(done.code or 0)


def tuned(run: Path, out: Path, *more: str, target: str = ONE, trials: int = 2) -> int:
    place = () if "--tracker" in more else ("--local",)
    return command("tune", run, "--target", target, "--trials", trials, "--out", out, *place, *more)


def text(out: Path, of: str = ONE) -> str:
    return (out / of / "records.jsonl").read_text()


def rows(out: Path, of: str = ONE) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text(out, of).splitlines()[1:]]


@pytest.fixture(scope="module")
def tuned_records(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of the run's products, one candidate's trace each."""
    import attrs

    import schedules
    from lowering.math import elementary
    from schedules.tuning import records
    from schedules.tuning.search_space import Search
    from sexpgpu.build.tuner import wanted_programs
    from sexpgpu.language.diagnostics import Report

    target = attrs.evolve(schedules.TARGETS[ONE], functions=elementary.STEPS)
    plan = commands.plan_of(str(run), Report())
    found = [
        records.Record(records.key_of(func), name, records.trace_of(Search(func, target, 1, 5).next()[0].sch))
        for name, func in wanted_programs(plan, "matmul*").items()
    ]
    out = tmp_path_factory.mktemp("records")
    records.write(out, ONE, found)
    return out


# Tuning


@pytest.mark.skipif(ONE.startswith("cpu-aarch64"), reason="x86-64 only so far: no machine of the other kind was there")
def test_tuning_here_measures_all_kernels_and_leaves_a_record_of_each(run: Path, tmp_path: Path) -> None:
    done = sexpgpu("tune", run, "--target", ONE, "--local", "--trials", 1, "--out", tmp_path, "--threads", 1, *PRODUCTS)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == len(rows(tmp_path)) and all(f"/{len(lines)}] " in line for line in lines)
    assert all("1 trials, " in line and " us by the rules, " in line and " us tuned" in line for line in lines)
    assert "other bits" not in done.stderr and "failed" not in done.stderr
    log = [json.loads(line) for line in (tmp_path / ONE / "trials.jsonl").read_text().splitlines()]
    assert len(log) == len(lines) * (1 + 1 + 2 * 3) and all(row["seconds"] > 0 and not row["error"] for row in log)


def test_the_same_seed_and_times_give_the_same_records(run: Path, tmp_path: Path, stub: list[bytes]) -> None:
    for name in ("a", "b"):
        assert tuned(run, tmp_path / name, *PRODUCTS) == 0
    assert text(tmp_path / "a") == text(tmp_path / "b")
    assert any("trace" in row for row in rows(tmp_path / "a"))
    assert [row["key"] for row in rows(tmp_path / "a")] == sorted(row["key"] for row in rows(tmp_path / "a"))


def test_a_tuning_that_was_stopped_goes_on(run: Path, tmp_path: Path, stub: list[bytes], monkeypatch, capsys) -> None:
    """Stopped at each of a few measurements: nothing is measured twice, and the records are those of one go."""
    from sexpgpu.build import interrupt

    assert tuned(run, tmp_path / "whole", *PRODUCTS) == 0
    whole = len(stub)
    for stop in (1, 2, 3, whole // 2):
        left = [stop]

        def check(left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(interrupt, "check", check)
            assert tuned(run, tmp_path / "parts", *PRODUCTS) == 130
        assert "the same command goes on from there" in capsys.readouterr().err
    assert tuned(run, tmp_path / "parts", *PRODUCTS) == 0
    assert len(stub) == 2 * whole
    assert text(tmp_path / "parts") == text(tmp_path / "whole")


def test_ctrl_c_stops_with_what_was_measured(run: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sexpgpu", "tune", run, "--target", ONE, "--local", "--trials", "500"]
    process = subprocess.Popen(
        [*map(str, command), "--out", str(tmp_path), "--threads", "1", *PRODUCTS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    log = tmp_path / ONE / "trials.jsonl"
    end = time.monotonic() + 60
    while not (log.exists() and log.read_text().count("\n") > 2) and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-2:] == ["what was measured is kept, and the same command goes on from there",
                                     "stopped by SIGINT"]  # fmt: skip
    assert all(json.loads(line)["digest"] for line in log.read_text().splitlines())


def test_a_candidate_with_other_bits_is_thrown_away(run: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    from schedules.tuning.measure import Measured
    from sexpgpu.build import tuner

    count = iter(range(1000))
    monkeypatch.setattr(tuner, "measurer", lambda *_: lambda *job: Measured(1.0 / (1 + next(count)), str(next(count))))
    assert tuned(run, tmp_path, *PRODUCTS) == 0
    assert {row["why"] for row in rows(tmp_path)} == {"candidates have other bits: they round at other places"}
    assert "2 with other bits" in capsys.readouterr().err


@needs_cuda
def test_candidates_for_a_gpu_carry_their_cubins(run: Path, tmp_path: Path, stub: list[bytes]) -> None:
    out = tmp_path / "gpu"
    assert tuned(run, out, "--tracker", "127.0.0.1:1", "--key", "h", *PRODUCTS, target=GPU, trials=1) == 0
    assert len(rows(out, GPU_SET)) == 2
    assert len(stub) == 2 * (1 + 1 + 2 * 3)
    for library in stub:
        assert b"cubin" in library and b"\x7fELF" in library[4:] and b"__global__" not in library
        assert b"main_kernel" in library


# Over TVM's RPC


@pytest.fixture
def tracker() -> Iterator[str]:
    """HOST:PORT of a tracker with one server for the key cpu, on ports that were free."""
    for package in ("cloudpickle", "psutil", "tornado"):
        pytest.importorskip(package, reason="the extra tune is not installed")
    from tvm import rpc
    from tvm.rpc.tracker import Tracker

    host = "127.0.0.1"
    tracker = Tracker(host, port=9190, port_end=9990, silent=True)
    server = rpc.Server(host, 9190, 9990, key="cpu", tracker_addr=(host, tracker.port), silent=True)
    try:
        end = time.monotonic() + 60
        while not rpc.connect_tracker(host, tracker.port).summary()["server_info"] and time.monotonic() < end:
            time.sleep(0.02)
        yield f"{host}:{tracker.port}"
    finally:
        server.terminate()
        tracker.terminate()


def test_kernels_are_measured_by_a_server_of_a_tracker(run: Path, tmp_path: Path, tracker: str, capsys) -> None:
    done = sexpgpu("tune", run, "--target", ONE, "--tracker", tracker, "--key", "cpu", "--trials", 1, "--out", tmp_path,
                   *PRODUCTS)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "[2/2] matmul" in done.stderr and " us by the rules, " in done.stderr and " us tuned" in done.stderr
    log = [json.loads(line) for line in (tmp_path / ONE / "trials.jsonl").read_text().splitlines()]
    assert len(log) == 16 and len({row["digest"] for row in log}) == 2 and not any(row["error"] for row in log)
    wrong = sexpgpu(
        "tune", run, "--target", ONE, "--tracker", tracker, "--key", "gpu", "--trials", 1, "--out", tmp_path
    )
    assert wrong.returncode == 3 and "has no server for the key gpu" in wrong.stderr


def test_two_cannot_tune_into_one_folder(run: Path, tmp_path: Path, stub: list[bytes], capsys) -> None:
    from artifacts.base import directory_lock

    (tmp_path / ONE).mkdir()
    with directory_lock.hold(str(tmp_path / ONE), print):
        assert tuned(run, tmp_path) == 4
    err = capsys.readouterr().err
    assert err.startswith("error[E-LOCK-001]: ") and "is in use by process" in err and err.count("\n") == 1
    assert tuned(run, tmp_path) == 0 and stub


# Replaying


@attrs.frozen
class Made:
    """Artifacts of the run, with records twice and without, and what the builds said of themselves."""

    folder: Path
    said: dict[str, Any]

    def member(self, artifact: str, name: str) -> str:
        with tarfile.open(self.folder / f"{artifact}.tar") as tar:
            file = tar.extractfile(name)
            assert file
            return file.read().decode()


@pytest.fixture(scope="module")
def builds(run: Path, tuned_records: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    said = {}
    for name, more in (("tuned", ("--records", tuned_records)), ("again", ("--records", tuned_records)), ("plain", ())):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            argv = ("build", run, "-o", folder / f"{name}.tar", "--target", ONE, "--output-format", "json", *more)
            assert command(*argv) == 0
        said[name] = json.loads(out.getvalue())
    return Made(folder, said)


def test_a_build_replays_records_to_the_same_bytes(builds: Made, tuned_records: Path) -> None:
    one, two = ((builds.folder / f"{name}.tar").read_bytes() for name in ("tuned", "again"))
    assert one == two
    assert builds.said["tuned"]["hash"] != builds.said["plain"]["hash"]
    assert builds.member("tuned", f"records/{ONE}/records.jsonl") == text(tuned_records)
    assert command("verify", builds.folder / "tuned.tar") == 0


def test_a_build_counts_kernels_with_and_without_records(builds: Made, tuned_records: Path) -> None:
    counted = builds.said["tuned"]["tuning"][ONE]
    assert counted["tuned"] == len(rows(tuned_records)) > 1 and counted["settled"] == 0
    missing = builds.said["tuned"]["kernels"] - counted["tuned"]
    assert len(counted["missing"]) == missing
    said = f"{counted['tuned']} kernels by their records, 0 left to the rules by theirs, {missing} have none"
    report = builds.member("tuned", "report.txt")
    assert f"tuning       {ONE}: {said}\n" in report and "  tuned " in report
    assert builds.said["plain"]["tuning"] == {} and "tuning" not in builds.member("plain", "report.txt")


def test_a_run_tuned_or_not_has_the_same_bits(builds: Made, tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.linspace(-1, 1, 24, dtype="f").reshape(8, 3), y=np.arange(8, dtype="i4") % 2)
    hashes = set()
    for name in ("tuned", "plain"):
        argv = [builds.folder / f"{name}.tar", "--out", tmp_path / name, "--data", tmp_path]
        ran = subprocess.run([sys.executable, "-m", "artifacts.run", *map(str, argv)], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        (weights,) = (tmp_path / name / "checkpoints").rglob("param*.safetensors")
        hashes.add(hashlib.sha256(weights.read_bytes()).hexdigest())
    assert len(hashes) == 1


def refused(capsys: pytest.CaptureFixture[str], run: Path, tmp_path: Path, *more: Any) -> str:
    """The one line that a build ends with, which leaves no artifact."""
    assert command("build", run, "-o", tmp_path / "run.tar", "--target", ONE, *more) == 1
    assert not (tmp_path / "run.tar").exists()
    return capsys.readouterr().err


def test_a_kernel_without_a_record_is_refused_where_all_must_have_one(run, tuned_records, tmp_path, capsys) -> None:
    said = refused(capsys, run, tmp_path, "--records", tuned_records, "--require-tuned")
    assert said.startswith("error[E-TUNE-002]: ") and "update_elements" in said and " matmul" not in said
    (tmp_path / OTHER).mkdir()
    (tmp_path / OTHER / "records.jsonl").write_bytes((tuned_records / ONE / "records.jsonl").read_bytes())
    assert f"(no {ONE}/records.jsonl)" in refused(capsys, run, tmp_path, "--records", tmp_path, "--require-tuned")
    assert command("build", run, "-o", tmp_path / "run.tar", "--require-tuned") == 2
    assert "--require-tuned needs --records" in capsys.readouterr().err


def test_a_folder_that_has_no_records_is_refused(run, tuned_records, tmp_path, capsys) -> None:
    """Else a misspelt folder is a build without its records, and nothing says so."""
    for folder, words in (
        (tmp_path / "nowhere", "there is no folder "),
        (tmp_path, "has no TARGET/records.jsonl in it"),
        (tuned_records / ONE, "has no TARGET/records.jsonl in it"),
        (tuned_records / ONE / "records.jsonl", "there is no folder "),
    ):
        said = refused(capsys, run, tmp_path, "--records", folder)
        assert said.startswith("error[E-TUNE-001]: ") and str(folder) in said and words in said
        assert said.endswith("(give the folder that was --out of sexpgpu tune, or shipped)\n") and said.count("\n") == 1


def test_records_that_were_tampered_with_are_refused(run, tuned_records, tmp_path, capsys) -> None:
    from schedules.tuning import records

    changed = tmp_path / "changed" / ONE / "records.jsonl"
    changed.parent.mkdir(parents=True)
    changed.write_text(text(tuned_records).replace('"SSRSRS', '"SRSRSS', 1))
    said = refused(capsys, run, tmp_path, "--records", tmp_path / "changed")
    assert said.startswith("error[E-TUNE-001]: ") and "was changed" in said
    first, second, *_ = records.load(tuned_records, ONE).by_key.values()
    trace = [[["GetSBlock", [], ["no such block", "main"], ["b0"]]], []]
    records.write(tmp_path / "mixed", ONE, [attrs.evolve(first, trace=trace), second])
    said = refused(capsys, run, tmp_path, "--records", tmp_path / "mixed")
    assert f"error[E-TUNE-001]: the record of {first.kernel} for {ONE} does not fit it" in said


def test_the_library_of_a_gpu_replays_the_records_of_its_level(run: Path) -> None:
    import tvm

    import schedules
    from schedules.tuning import records
    from schedules.tuning.search_space import Search
    from sexpgpu.build.compile import compile_part
    from sexpgpu.build.tuner import wanted_programs
    from sexpgpu.language.diagnostics import Report

    programs = wanted_programs(commands.plan_of(str(run), Report()), "matmul*")
    traces = {n: records.trace_of(Search(f, schedules.TARGETS[GPU], 1, 5).next()[0].sch) for n, f in programs.items()}
    first, *others = traces
    key = records.key_of(programs[first])
    part = tvm.ir.save_json(tvm.IRModule(programs))
    made = compile_part(part, GPU_SET, None, {key: records.Record(key, first, traces[first])})
    assert made.outcomes[first] == ("tuned", ()) and others
    assert all(made.outcomes[name][0] not in ("", "tuned") for name in others)
    assert made.device is not None and not made.unbound


def test_the_package_s_own_records_have_a_word() -> None:
    from argparse import Namespace

    from sexpgpu.build import tuning_records

    found = tuning_records.found(["cpu-x86-64-v3", "cpu-x86-64-v4"], Namespace(records="shipped", require_tuned=False))
    assert found["cpu-x86-64-v3"].by_key and not found["cpu-x86-64-v4"].by_key
    assert found["cpu-x86-64-v4"].reason == "no cpu-x86-64-v4/records.jsonl"


@pytest.mark.parametrize("broken", [b"\0" * 40 + b"\n", b'{"what": "a"}\n', b"[]\n", b"\xff\n"])
def test_a_broken_measurement_is_taken_again_and_the_others_are_kept(tmp_path: Path, broken: bytes) -> None:
    from schedules.tuning.measure import Measured
    from schedules.tuning.tuner import Log

    path, taken = tmp_path / "measured.jsonl", []

    def get(log: Log, what: str) -> Measured:
        return log.get(what, lambda: taken.append(what) or Measured(1.0, what))

    log = Log(path)
    assert [get(log, what).digest for what in "abc"] == ["a", "b", "c"]
    log.close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join((lines[0], broken, lines[2])) + b'{"what": "d", ')
    log = Log(path)
    assert [get(log, what).digest for what in "abcd"] == ["a", "b", "c", "d"] and taken == [*"abc", "b", "d"]
    log.close()
