"""The first thing that both programs do: nothing that the environment holds may steer what they compute, or end it."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable

from .streams import open_standard

# Variables by which the libraries are steered: TVM and its FFI, NumPy and its OpenBLAS, OpenMP, LLVM, zig, NVRTC. Only
# what is said on a command line, or in a run file, may change a result. CUDA_*, which choose a GPU, are the user's.
STEERING = ("TVM_", "NPY_", "NUMPY_", "OPENBLAS_", "GOTO_", "OMP_", "MKL_", "LLVM_", "ZIG_", "NVRTC_", "NVVM_")
REFUSED = ("TVM_USE_RUNTIME_LIB",)  # with it, TVM has no compiler: the message says so
NAMES = ("PYTHONWARNINGS", "R2S_DUMP", "TEST_DATA_ROOT_PATH")
NO_HOME = "/dev/null"  # in which no file can be made


def enter() -> None:
    """To be called before any library is imported."""
    open_standard()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # it came open
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.warnoptions.clear()  # children take them over
    warnings.simplefilter("ignore")
    for name in list(os.environ):
        if name in NAMES or (name.startswith(STEERING) and name not in REFUSED):
            del os.environ[name]
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy moves bytes here: starting its threads takes longer than a step
    find_home()
    without_torch()


def without_torch() -> None:
    """tvm_ffi imports PyTorch where that is installed, starts CUDA in it and compiles an extension for it: seconds, and
    whatever may be wrong with it. Nothing of ours is PyTorch's."""
    if _Without not in sys.meta_path:
        sys.meta_path.insert(0, _Without)


class _Without:
    """A finder of modules for which there is no PyTorch."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name=name)


def find_home() -> None:
    """Libraries ask for the user's folder when they are imported, and fail where there is none: a user without a name,
    or HOME that is no path. Nothing that decides a result is kept there."""
    if not os.environ.get("HOME", "/").startswith("/"):
        del os.environ["HOME"]
    if not os.path.expanduser("~").startswith("/"):
        os.environ["HOME"] = NO_HOME


def lost(paths: Iterable[str | None]) -> str | None:
    """The first relative one of ``paths`` where the current folder has been deleted: it names nothing."""
    try:
        os.getcwd()
    except OSError:
        return next((path for path in paths if path and not os.path.isabs(path)), None)
    return None
