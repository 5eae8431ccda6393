"""Artifacts that several files of the build tier share: each is built once a session."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

# A test run that was started in the background or under nohup has these ignored, and so would the processes that the
# tests start and then signal.
for _ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    if signal.getsignal(_ignored) is signal.SIG_IGN:
        signal.signal(_ignored, signal.default_int_handler if _ignored is signal.SIGINT else signal.SIG_DFL)

EXAMPLES = Path(__file__).parent.parent / "examples"


def sexpgpu(*args: object, **more) -> subprocess.CompletedProcess[str]:
    """The compiler's command line."""
    return subprocess.run([sys.executable, "-m", "sexpgpu", *map(str, args)], capture_output=True, text=True, **more)


def build(run: Path, output: Path) -> Path:
    done = sexpgpu("build", run, "-o", output)
    assert done.returncode == 0, done.stderr
    return output


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifact of examples/tiny-generate."""
    return build(EXAMPLES / "tiny-generate/run.sx", tmp_path_factory.mktemp("tiny") / "tiny.tar")


@pytest.fixture(scope="session")
def characters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifact of examples/characters."""
    return build(EXAMPLES / "characters/run.sx", tmp_path_factory.mktemp("characters") / "characters.tar")
