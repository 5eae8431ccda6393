"""Artifacts that several files of the build tier share: each is built once a session."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
