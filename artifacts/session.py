"""One call of ``sexpgpu-run``: opens the artifact, its data and a device, and runs the training session."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve

from . import reporting
from .base import directory_lock
from .base.atomic_files import make_directory, removed_on_failure
from .base.errors import ART_REQUIRED, CLI_DIAGNOSTIC, RunError
from .checkpoint import identity, store
from .checkpoint import identity_forms as forms
from .data.loaders import Records, Training, fingerprint, memory_needed, open_records
from .device import memory_check
from .device import threads as cores
from .device.interface import Choice, Device, choose
from .format import tarball
from .loop.step import Loop
from .options import Options
from .signals import Stop
from .training_session import Session, Stamp

MakeDevice = Callable[[tarball.Artifact, int | None], Device]


def opened(artifact: tarball.Artifact, threads: int | None, target: str | None = None) -> Device:
    """The device for one of the artifact's libraries, the best that this machine can run."""
    choice = choose(artifact.manifest, artifact.path, target)
    return choice.row.open(artifact, choice, threads)


def run(options: Options, console: reporting.Console, stop: Stop, make_device: MakeDevice | None = None) -> int:
    """The exit status of a run that finished or was stopped cleanly; RunError otherwise.

    make_device: makes the device, in the place of the one chosen for this machine
    """
    with tarball.open(options.artifact) as artifact:
        check_artifact(artifact, options)
        choice = None if make_device else _choose(artifact, options)
        _check_memory(artifact, options, choice, memory_needed(artifact, options.data))
        new_directories = make_directory(options.out)
        with (
            directory_lock.hold(options.out, console.warn) as locked,
            removed_on_failure(new_directories, directory_lock.NAME),
        ):
            records = {name: _open(artifact, name, options, console) for name in artifact.manifest.loaders_used()}
            _check_memory(artifact, options, choice)  # once more: the data is in memory now
            if choice and choice.description:
                console.line(
                    f"device {choice.description}", {"device": choice.target.device, "words": choice.description}
                )
            device = _device(artifact, options, choice, make_device)
            if choice and choice.target.device == "cpu":
                console.detail(cores.description(options.threads))
            training = Training(artifact.manifest, records)
            loop = Loop(artifact.manifest, device, training, records, stop.look)
            session = Session(
                artifact.manifest,
                options,
                console,
                stop,
                loop,
                _stamp(artifact, records),
                forms.of_artifact(artifact),
                records,
                store.Store(f"{options.out}/{store.FOLDER}", options.keep, console.warn),
            )
            try:
                return session.run(locked)
            finally:
                training.close()


def _choose(artifact: tarball.Artifact, options: Options) -> Choice:
    choice = choose(artifact.manifest, artifact.path, options.target, options.device)
    return choice if options.graphs else evolve(choice, target=evolve(choice.target, graphs=False))


def _device(
    artifact: tarball.Artifact, options: Options, choice: Choice | None, make_device: MakeDevice | None
) -> Device:
    if choice is not None:
        return choice.row.open(artifact, choice, options.threads)
    assert make_device is not None
    return make_device(artifact, options.threads)


def _check_memory(artifact: tarball.Artifact, options: Options, choice: Choice | None, data: int = 0) -> None:
    if choice is None:
        memory_check.check(artifact.manifest, options.threads, artifact.path, data=data)
    else:
        choice.row.check_memory(artifact.manifest, options.threads, choice, artifact.path, data)


def check_artifact(artifact: tarball.Artifact, options: Options) -> None:
    """The digest asked for, every member's digest, and that the diagnostics asked for are kept."""
    if options.digest not in (None, artifact.hash):
        raise RunError(
            ART_REQUIRED, f"its digest is sha256:{artifact.hash}, required is sha256:{options.digest}", artifact.path
        )
    artifact.verify()
    available = artifact.manifest.step.diagnostics
    for name in options.diagnostics:
        if name not in available:
            raise RunError(
                CLI_DIAGNOSTIC,
                f"there is no diagnostic {name} in the artifact",
                artifact.path,
                f"it keeps {', '.join(available) or 'none'}; build it with: sexpgpu build --diagnostic {name}",
            )


def _open(artifact: tarball.Artifact, name: str, options: Options, console: reporting.Console) -> Records:
    with reporting.reading(console, name) as tick:
        return open_records(artifact.manifest.loader(name), options.data, artifact, tick)


def _stamp(artifact: tarball.Artifact, records: dict[str, Records]) -> Stamp:
    data = fingerprint([records[name] for name in artifact.manifest.training_loaders()])
    return Stamp(artifact.hash, identity.components(artifact.manifest, data), data)
