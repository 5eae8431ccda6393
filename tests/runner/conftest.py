from __future__ import annotations

from pathlib import Path

import pytest

from . import toy


@pytest.fixture
def artifact(tmp_path: Path) -> str:
    """The toy's artifact, its data beside it."""
    return toy.write(tmp_path)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"
