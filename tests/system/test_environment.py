"""Every variable that what we load reads of its environment, and what comes of odd values: nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from surroundings import entry
from tests.artifacts import toy
from tests.conftest import EXAMPLES, ONE, build
from tests.support import run_text

ROOT = EXAMPLES.parent
SITE = next(path for path in sys.path if path.endswith("site-packages"))
# The toy's device imports NumPy: it has to come late.
TOY = """
import sys
from artifacts.run import main
def device(*how):
    from tests.artifacts import toy
    return toy.device(*how)
sys.exit(main(sys.argv[1:], device))
"""

# From their Python, as test_no_library_reads_another finds them; those of shared libraries from their strings.
READ = """
TVM: TVM_BACKTRACE TVM_BIND_THREADS TVM_BLACK_FORMAT TVM_CACHE_DIR TVM_COMPILE_FORCE_FALLBACK TVM_CUDA_COMPILE_MODE
 TVM_CUDA_NVCC_NO_FAST_MATH TVM_CUDA_NVRTC_EXTRA_OPTS TVM_CUDA_PTXAS_EXTRA_OPTS TVM_CUDA_PTXAS_REG_LEVEL
 TVM_DEVICE_BACKEND_AUTOLOAD TVM_EXCLUDE_WORKER0 TVM_HOME TVM_IKET_INJECTED_CHILD_ENABLE TVM_IKET_OFFICIAL_PROFILE
 TVM_KERNEL_DEBUG TVM_KERNEL_DUMP TVM_LIBRARY_PATH TVM_LOG_DEBUG TVM_NDK_CC TVM_NUM_THREADS
 TVM_PRINT_AFTER_TIRX_DISPATCH_OPS TVM_S_TIR_META_SCHEDULE_CLEAR_SCREEN TVM_THREAD_POOL_SPIN_COUNT
 TVM_TRACEBACK_LIMIT TVM_TRACKER_HOST TVM_TRACKER_KEY TVM_TRACKER_PORT TVM_USE_CUDA TVM_USE_LLVM TVM_USE_NCCL
 TVM_USE_NVSHMEM TVM_USE_NVTX TVM_USE_RUNTIME_LIB TVM_WIN_CC TVM_WIN_TARGET CC CXX CUDA_PATH NVSHMEM_HOME
 PYTEST_CURRENT_TEST R2S_DUMP ROCM_PATH TEST_DATA_ROOT_PATH XDG_CACHE_HOME XDG_CONFIG_HOME
tvm_ffi: CUDA_HOME MAX_JOBS ROCM_HOME TVM_FFI_CACHE_DIR TVM_FFI_CPP_EXTENSION_LOG_BUILD TVM_FFI_CUDA_ARCH_LIST
 TVM_FFI_DISABLE_TORCH_C_DLPACK TVM_FFI_GPU_BACKEND TVM_FFI_REPR_WITH_ADDR TVM_FFI_ROCM_ARCH_LIST
LLVM: LLVM_DISABLE_SYMBOLIZATION LLVM_ENABLE_SYMBOLIZER_MARKUP LLVM_OVERRIDE_PRODUCER LLVM_SYMBOLIZER_PATH TEMPDIR
NumPy: NPY_DISABLE_CPU_FEATURES NPY_ENABLE_CPU_FEATURES NPY_PROMOTION_STATE NUMPY_MADVISE_HUGEPAGE
 NUMPY_WARN_IF_NO_MEM_POLICY PROCESSOR_ARCHITECTURE PROCESSOR_ARCHITEW6432
OpenBLAS: GOTO_NUM_THREADS MKL_NUM_THREADS OMP_ADAPTIVE OMP_CANCELLATION OMP_NUM_THREADS OMP_PROC_BIND
 OPENBLAS_BLOCK_FACTOR OPENBLAS_CORETYPE OPENBLAS_DEFAULT_NUM_THREADS OPENBLAS_L2_SIZE OPENBLAS_NUM_THREADS
 OPENBLAS_THREAD_TIMEOUT OPENBLAS_VERBOSE
zig: CLICOLOR_FORCE NO_COLOR ZIG_DEBUG_CMD ZIG_GLOBAL_CACHE_DIR ZIG_LIBC ZIG_LIB_DIR ZIG_LOCAL_CACHE_DIR ZIG_PROGRESS
 ZIG_VERBOSE_CC ZIG_VERBOSE_LINK
NVRTC: CUDA_CACHE_DISABLE NVRTC_DISABLE_CONCURRENT_NVVM NVRTC_DISABLE_PCH NVRTC_PCH_HEAP_SIZE
CUDA: CUDA_ENABLE_MODULE_LAZY_LOADING CUDA_INJECTION64_PATH CUDA_PREFER_SPINLOCKS_ON_HOST CUDA_VISIBLE_DEVICES
setuptools: SETUPTOOLS_USE_DISTUTILS
typer: COMP_CWORD COMP_WORDS FORCE_COLOR GITHUB_ACTIONS PY_COLORS TERMINAL_WIDTH TYPER_STANDARD_TRACEBACK TYPER_USE_RICH
 _SEXPGPU_COMPLETE _TYPER_COMPLETE_ARGS _TYPER_STANDARD_TRACEBACK
Python: COLUMNS HOME LANG LANGUAGE LC_ALL LC_CTYPE LC_MESSAGES LINES LOGNAME PATH PYTHONBREAKPOINT PYTHONNOUSERSITE
 PYTHONSTARTUP PYTHONUSERBASE PYTHONWARNINGS PYTHON_COLORS TEMP TERM TMP TMPDIR TZ USER USERNAME
 XDG_DATA_HOME
"""
# tqdm's are looked at where its bar is. These are told of, or belong to Python: it ends by itself where they are wrong.
TOLD = {"TVM_USE_RUNTIME_LIB"}
KNOWN = {name for line in READ.replace("\n ", " ").strip().splitlines() for name in line.partition(": ")[2].split()}

VALUES = {
    "text": "some ü text, with 'quotes' \x01 and $signs",
    "nothing": "",
    "one": "1",
    "negative": "-1",
    "huge": "9" * 40,
    "a place that is not there": "/nonexistent/a/b",
    "a relative place": "a/../b",
    "a long place": "/" + "x" * 5000,
    "a device": "/dev/null",
}
# Python itself speaks up where it cannot read the last.
FORCED = {"PYTHONPATH": f"{ROOT}{os.pathsep}{SITE}", "PYTHONWARNINGS": "error"}


def hostile(value: str) -> dict[str, str]:
    return {**dict.fromkeys(KNOWN - TOLD, VALUES[value]), **FORCED}


def called(folder: Path, *command: object, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Python's command in ``folder``, where relative places of the variables are."""
    words = [sys.executable, *map(str, command)]
    return subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, errors="backslashreplace")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The last line of the toy's run without any of the variables."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return trained(folder, toy.write(folder), FORCED)


def trained(folder: Path, artifact: str, env: dict[str, str]) -> str:
    """The last line of a run of the toy."""
    done = called(folder, "-c", TOY, artifact, "--out", folder / "out", "--data", folder, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("value", VALUES)
def test_checks_and_runs_do_not_depend_on_what_variables_hold(tmp_path: Path, value: str, undisturbed: str) -> None:
    artifact = toy.write(tmp_path)
    for command in (["check", EXAMPLES / "tiny-generate/run.sx"], ["inspect", artifact]):
        done = called(tmp_path, "-m", "sexpgpu", *command, env=hostile(value))
        assert (done.returncode, done.stderr) == (0, ""), command
    assert trained(tmp_path, artifact, hostile(value)) == undisturbed
    assert undisturbed.startswith("params sha256:")


@pytest.mark.build
@pytest.mark.parametrize("value", ["text", "one", "a long place"])
def test_builds_do_not_depend_on_what_variables_hold(tmp_path: Path, value: str, reference: bytes) -> None:
    path = tmp_path / "run.sx"
    path.write_text(run_text())
    done = called(
        tmp_path,
        "-m",
        "sexpgpu",
        "build",
        path,
        "-o",
        tmp_path / "x.tar",
        "--target",
        ONE,
        "--jobs",
        "1",
        env=hostile(value),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "x.tar").read_bytes() == reference


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The artifact of ``run_text`` as this process builds it."""
    folder = tmp_path_factory.mktemp("reference")
    (folder / "run.sx").write_text(run_text())
    return build(folder / "run.sx", folder / "x.tar").read_bytes()


@pytest.mark.build
@pytest.mark.parametrize("value", ["huge"])
def test_compiled_runs_do_not_depend_on_what_variables_hold(tiny: Path, tmp_path: Path, value: str) -> None:
    told = set()
    for n, env in enumerate((hostile(value), FORCED)):
        done = called(tmp_path, "-m", "artifacts.run", tiny, "--out", tmp_path / str(n), "--steps", "2", env=env)
        assert (done.returncode, done.stderr) == (0, "")
        told.add(done.stdout.splitlines()[-1])
    assert len(told) == 1 and told.pop().startswith("params sha256:")


# Everything that a build, a search and a run load; then the names of variables in the text of the libraries.
SCAN = r"""
import re, sys
import artifacts.device.cpu, artifacts.device.cuda, artifacts.session, lowering.codegen.objects, lowering.pipeline
import lowering.codegen.workers, lowering.link.shared_library, lowering.link.standalone_kernel, ml_dtypes, safetensors
import schedules.cuda.cubin, schedules.gpu.audit.launch_audit, schedules.tuning.measure, sexpgpu.build.driver
import sexpgpu.build.tuner, sexpgpu.cli.app
name = r'["\']([A-Z][A-Z0-9_]+)["\']'
calls = r'(?:environ(?:\.get|\.setdefault|\.pop)?|getenv)\s*[\[(]\s*'
reads = re.compile(calls + name + '|' + name + r'\s+(?:not\s+)?in\s+os\.environ')
paths = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
for path in sorted(path for path in paths if "site-packages" in path and path.endswith(".py")):
    with open(path, encoding="utf-8", errors="replace") as file:
        print(*(one or other for one, other in reads.findall(file.read())))
"""


@pytest.mark.build
def test_no_library_reads_another() -> None:
    done = called(ROOT, "-c", SCAN, env={"PATH": os.environ["PATH"], **FORCED})
    assert done.returncode == 0, done.stderr
    found = set(done.stdout.split())
    assert len(found) > 30 and found <= KNOWN, sorted(found - KNOWN)


def test_what_steers_a_library_is_dropped_and_what_is_the_user_s_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = {"CUDA_VISIBLE_DEVICES", "HOME", "TMPDIR", "XDG_CACHE_HOME", "LC_ALL", "PATH", "TVM_USE_RUNTIME_LIB"}
    for name in KNOWN:
        monkeypatch.setenv(name, "/")
    entry.enter()
    left = KNOWN & set(os.environ)
    assert theirs <= left and os.environ["OPENBLAS_NUM_THREADS"] == "1"
    steering = {name for name in left if name.startswith(entry.STEERING)}
    assert steering == {"OPENBLAS_NUM_THREADS", "TVM_USE_RUNTIME_LIB"}
