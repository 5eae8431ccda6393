"""An artifact's run as the runner's own loop, for tests that look at what a step leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from artifacts import tarball
from artifacts.data import Training, open_records
from artifacts.device import Device
from artifacts.loop import Loop


@contextmanager
def loop_of(artifact: tarball.Artifact, device: Device, folder: Path) -> Iterator[tuple[Loop, Training]]:
    """The loop on ``device`` with the data that lie in ``folder``, and its training data."""
    manifest = artifact.manifest
    records = {n: open_records(manifest.loader(n), str(folder), artifact) for n in manifest.loaders_used()}
    training = Training(manifest, records)
    try:
        yield Loop(manifest, device, training, records, lambda: None), training
    finally:
        training.close()
