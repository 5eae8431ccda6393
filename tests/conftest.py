"""Artifacts that several files of the build tier share: each is built once, in whichever process needs it first."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import io
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sexpgpu.cli import main
from sexpgpu.language import runfile
from sexpgpu.language.diagnostics import Report

# A test run that was started in the background or under nohup has these ignored, and so would the processes that the
# tests start and then signal.
for _ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    if signal.getsignal(_ignored) is signal.SIG_IGN:
        signal.signal(_ignored, signal.default_int_handler if _ignored is signal.SIGINT else signal.SIG_DFL)

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
COMPILE = ("tests/lowering", "tests/schedules", "tests/cuda_on_cpu")  # every test in here compiles


ALL_COMPILE = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.build\b", re.M)  # a file whose every test does


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where the tests that compile are left out, what holds no others is not imported: that would load TVM."""
    if "not build" not in config.option.markexpr:
        return None
    compiles = collection_path.relative_to(HERE.parent).as_posix() in COMPILE
    if not compiles and collection_path.suffix == ".py":
        compiles = ALL_COMPILE.search(collection_path.read_text(encoding="utf-8")) is not None
    return True if compiles else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Without the collector of garbage: hardly anything is any, of what five thousand tests are made of."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


# Those with the longest tests: what is left at the end should be short.
FIRST = tuple(
    f"tests/{name}"
    for name in (
        "system/test_stacking",
        "system/test_memory",
        "system/test_reproducible",
        "cuda_on_cpu/test_emulated_runs",
    )
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.nodeid.startswith(tuple(f"{folder}/" for folder in COMPILE)):
        item.add_marker("build")


def sexpgpu(*args: object, **more) -> subprocess.CompletedProcess[str]:
    """The compiler's command line."""
    return subprocess.run([sys.executable, "-m", "sexpgpu", *map(str, args)], capture_output=True, text=True, **more)


def called(*args: object) -> subprocess.CompletedProcess[str]:
    """The command line in this process, with streams that encode as those of a process do. For what asks nothing of
    the process itself: a process of its own takes ten times as long, and seconds more where it loads the compiler."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", "strict")
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace")
    argv = [*map(str, args)]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main.main(argv)
        except SystemExit as done:
            status = int(done.code or 0)
    out.flush(), err.flush()
    return subprocess.CompletedProcess(argv, status, *(f.buffer.getvalue().decode() for f in (out, err)))


ONE = "cpu-aarch64" if platform.machine() == "aarch64" else "cpu-x86-64-v3"  # a library that this machine can run


def build(run: Path, output: Path, *more: object, target: str = ONE) -> Path:
    """The artifact of a run file, built by this process alone: the other cores have tests of their own to run."""
    done = called("build", run, "-o", output, "--target", target, "--jobs", 1, *more)
    assert done.returncode == 0, done.stderr
    return output


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int], seconds: float = 20) -> bool:
    """Whether all of them end in time."""
    end = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(alive, pids))


def pytest_collection_finish(session: pytest.Session) -> None:
    """TVM has to be loaded before an artifact's library, which brings a runtime of its own. What is there by now stays:
    the collector of garbage need not look through thousands of tests again and again, a tenth of the time."""
    if any(item.get_closest_marker("build") for item in session.items):
        with contextlib.suppress(ImportError):
            import tvm  # noqa: F401
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """(name, make) -> the path ``name``, made by the first of this run's processes that asks for it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)

    def get(name: str, make: Callable[[Path], object]) -> Path:
        path = folder / name
        with open(folder / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                make(path)
        return path

    return get


@pytest.fixture(scope="session", autouse=True)
def prelude_read_once() -> Iterator[None]:
    """Hundreds of tests trace a run file of a few lines: most of their time went into reading the prelude anew."""
    report = Report()
    forms = runfile.prelude_forms(report)
    assert not report
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runfile, "prelude_forms", lambda report: list(forms))
        yield


@pytest.fixture(scope="session")
def tiny(shared: Callable[..., Path]) -> Path:
    """The artifact of examples/tiny-generate, for all targets of this machine, as the command line makes it, or as it
    made it just now: SEXPGPU_TINY is its path."""

    def make(path: Path) -> None:
        if made := os.environ.get("SEXPGPU_TINY"):
            shutil.copy(made, path)
            return
        done = sexpgpu("build", EXAMPLES / "tiny-generate/run.sx", "-o", path)
        assert done.returncode == 0, done.stderr

    return shared("tiny.tar", make)


@pytest.fixture(scope="session")
def small(shared: Callable[..., Path]) -> Path:
    """The artifact of examples/route-planner in its small size, for one target. A schedule rule must take each kernel,
    or the build fails."""
    run = EXAMPLES / "route-planner/small.sx"
    return shared("small.tar", lambda path: build(run, path, "--strict-schedules"))


@pytest.fixture(scope="session")
def characters(shared: Callable[..., Path]) -> Path:
    """The artifact of examples/characters, for one target."""
    return shared("characters.tar", lambda path: build(EXAMPLES / "characters/run.sx", path))
