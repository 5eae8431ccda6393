"""sexpgpu tune for a GPU, over TVM's RPC: a server whose driver is ours, for which every launch takes a millisecond."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("tvm")
pytest.importorskip("ziglang")

from ..support import run_text
from . import artifact

pytestmark = pytest.mark.build

RUN = run_text(model="(defmodel m (x) (linear (gelu (linear x :hidden 24)) :out 2))")
HOST = "127.0.0.1"


@pytest.fixture
def tracker() -> Iterator[str]:
    """HOST:PORT of a tracker with one server, for the key h100."""
    for package in ("cloudpickle", "psutil", "tornado"):
        pytest.importorskip(package, reason="the extra tune is not installed")
    from tvm import rpc
    from tvm.rpc.tracker import Tracker

    there = Tracker(HOST, port=9190, port_end=9990, silent=True)
    place = f"{HOST}:{there.port}"
    command = [sys.executable, "-m", "tvm.exec.rpc_server", "--host", HOST, "--tracker", place, "--key", "h100"]
    server = subprocess.Popen([*command, "--port-end", "9990"], env=artifact.preloaded(), stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while not rpc.connect_tracker(HOST, there.port).summary()["server_info"] and time.monotonic() < end:
            time.sleep(0.02)
        yield place
    finally:
        server.terminate()
        server.wait()
        there.terminate()


def test_a_server_with_a_gpu_measures_candidates_and_they_have_the_rules_bits(tmp_path: Path, tracker: str) -> None:
    run = tmp_path / "run.sx"
    run.write_text(RUN)
    tune = ["tune", run, "--target", "nvidia-h100", "--tracker", tracker, "--key", "h100", "--trials", "1"]
    command = [sys.executable, "-m", artifact.__name__, *tune, "--out", tmp_path / "records", "--only", "matmul*"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=artifact.REPO)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("1 trials, 1000.1 us by the rules, 1000.1 us tuned: no candidate is faster") == 2
    log = (tmp_path / "records/cuda-sm_80/trials.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in log]
    assert len(rows) == 2 * (1 + 1 + 2 * 3) and not any(row["error"] for row in rows)
    bits = {key: {r["digest"] for r in rows if r["what"].startswith(key)} for key in {r["what"][:64] for r in rows}}
    assert len(bits) == 2 and all(len(digests) == 1 for digests in bits.values())
