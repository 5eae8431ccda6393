"""One small wrong run file for each code of the language: ``wrong/CODE.sx``; its first line says where the fault is."""

from __future__ import annotations

from pathlib import Path

import pytest

from sexpgpu.language.codes import CODES
from sexpgpu.language.diagnostics import Report
from sexpgpu.language.runfile import load
from sexpgpu.phases.trace_run import trace_run

WRONG = sorted((Path(__file__).parent / "wrong").glob("*.sx"))

# Codes that no single text file shows, and the test that does.
ELSEWHERE: dict[str, str] = {
    "E-READ-001": "a missing file: test_reader.py, row 1",
    "E-READ-011": "a device, a fifo, 16 MiB: test_reader.py, row 11",
    "E-READ-014": "a million data: test_reader.py, limits",
    "E-GRAD-001": "no operator of today lacks a gradient: tests/sexpgpu/graph/test_grad.py makes one that does",
    "E-ENV-001": "a package that is not installed: the command line's tests",
    "E-IO-001": "an output that cannot be written: the command line's tests",
    "E-MEM-001": "an option of build: test_memory_plan.py",
    "E-STACK-001": "an option of build and explain: test_stack.py",
    "E-STACK-002": "an option of build and explain: test_stack.py",
    "E-TARGET-001": "an option of build: the command line's tests",
    "E-TARGET-002": "an option of build: the command line's tests",
    "E-TARGET-003": "an option of build: the command line's tests",
    "E-TARGET-004": "an option of build: the command line's tests",
    "E-TARGET-005": "a kernel that no rule binds to threads: tests/system/test_gpu_build.py, lowering/test_device.py",
    "E-TARGET-006": "what TVM would write wrongly: tests/lowering/test_device.py",
    "E-DEF-001": "an option of the commands: tests/sexpgpu/language/test_def_values.py",
    "E-TUNE-001": "records: tests/system/test_tuning.py",
    "E-TUNE-002": "records: tests/system/test_tuning.py",
    "E-TUNE-003": "an option of tune: tests/system/test_tuning.py",
    "E-TUNE-004": "an option of tune: tests/system/test_tuning.py",
    "E-TUNE-005": "an option of tune: tests/system/test_tuning.py",
    "W-DRAW-001": "a warning: test_warnings.py",
}


def faults(path: Path) -> list[tuple[str, str]]:
    """(code, "line:column", or "-" for the whole file) of every fault that ``sexpgpu check`` shows."""
    report = Report()
    run = load(str(path), report)
    if run:
        assert trace_run(run, report) is None
    return [(e.code.name, ":".join(map(str, e.span.line_column())) if e.span else "-") for e in report.errors]


@pytest.mark.parametrize("path", WRONG, ids=[p.stem for p in WRONG])
def test_a_wrong_file_has_its_code_at_its_place(path: Path) -> None:
    place = path.read_bytes().split(b"\n", 1)[0].removeprefix(b"; ").decode()
    assert faults(path) == [(path.stem, place)]


def test_every_code_has_a_wrong_file_or_a_test_elsewhere() -> None:
    assert {p.stem for p in WRONG} | set(ELSEWHERE) == set(CODES)
    assert not {p.stem for p in WRONG} & set(ELSEWHERE)
