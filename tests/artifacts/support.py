"""Ways to run the toy: in this process, or in one of its own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from artifacts import run
from artifacts.format import tarball
from tests.artifacts import toy

ROOT = Path(__file__).resolve().parents[2]
CHILD = "import sys, toy; from artifacts.run import main; sys.exit(main(sys.argv[1:], device=toy.device))"


def run_toy(artifact: str, out: Path, *more: str) -> int:
    """The exit status of a run in this process; the data lies beside the artifact."""
    return run.main([artifact, "--out", str(out), "--data", str(Path(artifact).parent), *more], device=toy.device)


def arguments(artifact: str, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-c", CHILD, artifact, "--out", str(out), "--data", str(Path(artifact).parent), *more]


def environment(**more: str) -> dict[str, str]:
    here = str(Path(__file__).parent)
    return {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}{os.pathsep}{here}", **more}


def child(
    artifact: str, out: Path, *more: str, env: dict[str, str] | None = None, **how: Any
) -> subprocess.CompletedProcess[str]:
    """A run in its own process, of at most 30 seconds."""
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 30, **how}
    return subprocess.run(arguments(artifact, out, *more), env=environment(**(env or {})), **how)


def forked(artifact: str, out: Path, plan: str) -> int:
    """The exit status of a run in a copy of this process, which spares its start; ``plan`` says when it signals itself
    (toy.device)."""
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            os.environ["TOY_SIGNAL"] = plan
            status = run_toy(artifact, out, "-q")
        finally:
            os._exit(status)  # whatever happens: this copy is not to go on with the tests
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def checkpoint(out: Path, step: int) -> Path:
    return out / "checkpoints" / f"step-{step:09d}"


def steps(out: Path) -> list[int]:
    return sorted(int(p.name[5:]) for p in (out / "checkpoints").glob("step-*") if p.name[5:].isdigit())


def contents(out: Path, step: int) -> dict[str, str]:
    """file name -> sha256 of a checkpoint, without info.json, which is under no promise."""
    folder = checkpoint(out, step)
    return {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir()) if p.name != "info.json"
    }


def metrics(out: Path) -> list[dict[str, Any]]:
    """The log without its first line and without times."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert lines[0] == {"schema": "sexpgpu-metrics", "version": 1}
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines[1:]]


Members = list[tuple[str, bytes]]


def members_of(path: str | Path) -> Members:
    """Every member of an artifact, the manifest and its digest first."""
    with tarfile.open(path) as tar:
        return [(info.name, tar.extractfile(info).read()) for info in tar]  # type: ignore[union-attr]


def packed(members: Members) -> bytes:
    """Members as our writer lays them out, whatever they are."""
    rooms = (tarball.header(name, len(data)) + data + bytes(-len(data) % tarball.BLOCK) for name, data in members)
    return b"".join(rooms) + tarball.END


def sealed(manifest: bytes, members: Members) -> bytes:
    """An artifact of ``manifest``, whatever it says, with its digest, and of the ``members`` that follow these two."""
    return packed([(tarball.MANIFEST, manifest), (tarball.DIGEST, tarball.digest_line(manifest)), *members])


def one_error(text: str, code: str) -> str:
    """``text`` is that one coded line and no more."""
    lines = text.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith(f"error[{code}]: "), text
    return lines[0]


UNDISTURBED: dict[str, str] = {}  # what toy_digest has found, by artifact and data


def toy_digest(tmp_path: Path, artifact: str) -> str:
    """Of the parameters of a run that nothing stopped, which is made once for one artifact and its data."""
    files = [Path(artifact), *sorted(Path(artifact).parent.glob("*.npz"))]
    key = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    if key not in UNDISTURBED:
        assert run_toy(artifact, tmp_path / "reference", "-q") == 0
        UNDISTURBED[key] = contents(tmp_path / "reference", 6)["params.safetensors"]
    return UNDISTURBED[key]
