from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.artifacts import toy


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is synced, and when, is tested in test_checkpoint.py; hundreds of runs here need not wait for the disk. Runs
    in processes of their own do."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def artifact(tmp_path: Path) -> str:
    """The toy's artifact, its data beside it."""
    return toy.write(tmp_path)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"
