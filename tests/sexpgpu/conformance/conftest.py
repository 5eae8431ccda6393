from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is durable is tested in tests/artifacts; hundreds of runs here need not wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
