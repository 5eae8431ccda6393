"""Which modules each entry point loads, in a fresh interpreter: what a user waits for, and what ships."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = {"sexpgpu", "lowering", "schedules", "artifacts"}
COMPILER = {"tvm", "onnx", "ziglang", "torch", "typer"}
RUN_FILE = str(ROOT / "examples" / "tiny-generate" / "run.sx")

# module: what loading it must not load
IMPORTS = {
    "artifacts.run": COMPILER | OURS - {"artifacts"} | {"numpy", "tvm_ffi"},
    "artifacts.session": COMPILER | OURS - {"artifacts"},
    "schedules": OURS - {"schedules"},
    "sexpgpu.ops": COMPILER | OURS - {"sexpgpu"} | {"numpy", "tvm_ffi"},
    "sexpgpu.cli.main": COMPILER | OURS - {"sexpgpu"} | {"numpy", "tvm_ffi"},
}

# typer itself is loaded with the command line; the packages that it may use take longer than all of a check.
CHECK = COMPILER - {"typer"} | OURS - {"sexpgpu"} | {"numpy", "tvm_ffi", "rich", "pydantic"}


def loaded_by(code: str, *argv: str) -> set[str]:
    """Top-level packages in sys.modules after ``code`` has run in an interpreter of its own."""
    names = "{name.split('.')[0] for name, module in sys.modules.items() if module}"  # one that is None may not be
    code = f"import sys\n{code}\nprint('loaded', *sorted({names}))"
    done = subprocess.run([sys.executable, "-c", code, *argv], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split()[1:])


# Schedules are made of TVM, which loading them loads.
NEEDS_EXTRA = {"schedules": pytest.mark.build}


@pytest.mark.parametrize("module", [pytest.param(m, marks=NEEDS_EXTRA.get(m, ())) for m in IMPORTS])
def test_loading_a_module_loads_no_more_than_it_may(module):
    assert loaded_by(f"import {module}") & IMPORTS[module] == set()


def test_check_needs_no_compiler_and_no_numpy():
    loaded = loaded_by("from sexpgpu.cli.main import main\nassert main(sys.argv[1:]) == 0", "check", RUN_FILE)
    assert "sexpgpu" in loaded
    assert loaded & CHECK == set()


def imports_of(path: Path) -> set[str]:
    """Modules that the file imports anywhere, as written."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


# What lowering may know of the language: its data, and the operator table that gives them meaning.
SHARED = ("sexpgpu.graph.core", "sexpgpu.ops.types", "sexpgpu.ops")


def test_lowering_knows_only_the_language_s_data():
    for path in (ROOT / "lowering").rglob("*.py"):
        ours = {m for m in imports_of(path) if m.split(".")[0] == "sexpgpu" and m != "sexpgpu"}
        assert {m for m in ours if not m.startswith(SHARED)} == set(), path


@pytest.mark.build
def test_a_whole_run_loads_no_compiler(tiny, tmp_path):
    argv = [str(tiny), "--out", str(tmp_path / "run"), "--steps", "2"]
    loaded = loaded_by("from artifacts.run import main\nassert main(sys.argv[1:]) == 0", *argv)
    assert {"artifacts", "numpy", "tvm_ffi"} <= loaded
    assert loaded & (COMPILER | OURS - {"artifacts"}) == set()
