"""python -m tests.artifacts.open_mutations mutations ARTIFACT FOLDER SEED COUNT, or run FOLDER ARTIFACT...

Runs artifacts for one step, each in a process of its own that may crash, and prints a line of JSON for each: the exit
status (negative: the signal) and the code of its error. Those of ``mutations`` are COUNT false manifests of ARTIFACT
that the manifest's reader accepts, of which it also says what was changed, and whether the library's signature still
fits.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import tvm_ffi  # noqa: F401 (once, and not in each of the processes)

from artifacts import run
from artifacts.base import canonical_json
from artifacts.base.errors import RunError
from artifacts.base.json_classes import plain
from artifacts.format import library_signature, manifest_reader, tarball
from tests.artifacts import manifest_mutations, support


def main(mode: str, *arguments: str) -> None:
    for row in (of_mutations if mode == "mutations" else of_artifacts)(*arguments):
        print(json.dumps(row), flush=True)


def of_artifacts(folder: str, *artifacts: str) -> Any:
    """A row for each of ``artifacts``."""
    for artifact in artifacts:
        yield outcome(folder, artifact)


def of_mutations(artifact: str, folder: str, seed: str, count: str) -> Any:
    """A row for each of ``count`` false manifests that the reader accepts."""
    rng, members = random.Random(seed), support.members_of(artifact)[2:]
    truth = tarball.verify(artifact)
    own = library_signature.of(truth, truth.targets[0])
    path, told = Path(folder, "mutation.tar"), 0
    while told < int(count):
        said, whole = manifest_mutations.mutation(rng, plain(truth))
        text = canonical_json.dumps(whole)
        try:
            made = manifest_reader.read_manifest(text)
        except RunError:
            continue
        told += 1
        path.write_bytes(support.sealed(text, members))
        signed = own in [library_signature.of(made, target) for target in made.targets]
        yield {**outcome(folder, str(path)), "said": said, "signed": signed}


def outcome(folder: str, artifact: str) -> dict[str, Any]:
    """The exit status of a run, and the code of its error; where it has none, all that it said."""
    said, out = Path(folder, "said"), Path(folder, "out")
    pid = os.fork()
    if pid == 0:
        fd = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(fd, stream)
        signal.alarm(60)
        os._exit(run.main([artifact, "--out", str(out), "--steps", "1", "-q"]))
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    shutil.rmtree(out, ignore_errors=True)
    text = said.read_text(errors="replace")
    coded = text.startswith("error[") and text.count("\n") == 1
    return {"status": status, "code": text[len("error[") :].split("]")[0] if coded else text}


if __name__ == "__main__":
    main(*sys.argv[1:])
