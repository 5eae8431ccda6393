"""What scripts/device_check says of what it finds. All of it is run by hand: scripts/device_check --dry-run DIR."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

DEVICE = Path(__file__).parents[2] / "scripts/device"


@pytest.fixture()
def modules(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(DEVICE))
    import check
    import record

    yield check, record
    for name in ("check", "record"):
        del sys.modules[name]


def test_one_bit_of_a_tensor_is_told_and_how_far_the_worst_is(modules) -> None:
    _, record = modules
    want = {
        "step 0 loss": np.float64(2.0),
        "gradient a": np.array([1e-9, 2e-9], "f4"),
        "gradient b": np.array([4.0, 1.0], "f4"),
        "state row": np.array([1, 2, 3, 4]),
        "state more": np.zeros(2, "f4"),
    }
    same = record.compare(dict(want), want)
    assert same["unequal"] == [] and same["compared"] == 5 and not any(same["worst"].values())
    got = want | {"gradient a": np.array([1e-9, 3e-9], "f4"), "state row": np.array([1, 2, 3, 5])}
    del got["state more"]
    told = record.compare(got, want)
    assert told["unequal"] == ["gradient a", "state row"] and told["compared"] == 4
    assert told["worst"] == pytest.approx({"gradient": 1e-9 / 4, "loss": 0, "state": 1 / 4}, rel=1e-3)
    zero = record.compare({"gradient a": np.array([-0.0], "f4")}, {"gradient a": np.array([0.0], "f4")})
    assert zero["unequal"] == ["gradient a"]  # bits, not values
    bad = record.compare({"param a": np.array([np.nan], "f4")}, {"param a": np.array([1.0], "f4")})
    assert bad["worst"]["param"] == float("inf")


def test_the_table_has_every_check_every_time_and_every_product(modules) -> None:
    check, _ = modules
    rows = [
        {"what": "run to run", "name": "characters", "ok": True, "tensors": 3},
        {"what": "stacked 4", "name": "characters", "ok": False, "tensors": 3, "unequal": 1, "names": ["x"]},
        {
            "what": "bf16 product",
            "name": "4096",
            "ok": None,
            "ms": 0.25,
            "tflops": 549,
            "torch_ms": 0.2,
            "ratio": 0.8,
        },
        {"what": "bf16 product", "name": "8192", "ok": None, "ms": 2.5, "tflops": 440, "torch": "none"},
        {"what": "ms", "name": "characters stacked 4", "ok": None, "step": 3.5, "plain": 4.5, "train*4": 2.0},
    ]
    text = check.table(rows)
    assert "| run to run | characters | ok |" in text and "| stacked 4 | characters | FAILED |" in text
    assert "| 4096 | 0.25 | 549 | 0.2 | 0.8 |" in text and "| 8192 | 2.5 | 440 | none | none |" in text
    assert "| characters stacked 4 | 3.5 | 4.5 | train*4: 2 |" in text


def folder(modules, path: Path, **changes: object) -> object:
    """A check of a prepared folder with nothing in it."""
    check, _ = modules
    plan = {
        "target": "nvidia-h200",
        "dry": False,
        "python": "3.12",
        "stacks": [1, 4],
        "runs": [],
        "gemms": [],
        **changes,
    }
    (path / "plan.json").write_text(json.dumps(plan))
    check.HERE = path
    return argparse.Namespace(json=None, device="cuda", minutes=1, torch=sys.executable)


def test_a_machine_without_pytorch_is_told_once(modules, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check, _ = modules
    (tmp_path / "work.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    one = check.Check(folder(modules, tmp_path), tmp_path)
    assert one.torch({"n": 8, "trips": 1}) is None
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and said.endswith("ModuleNotFoundError: No module named 'torch'\n")
    (tmp_path / "work.py").unlink()
    assert one.torch({"n": 8, "trips": 1}) is None and not capsys.readouterr().out


def test_another_python_than_that_of_the_wheels_is_refused_in_words(modules, tmp_path: Path) -> None:
    folder(modules, tmp_path, python="3.1")
    copied = shutil.copy(DEVICE / "check.py", tmp_path)
    done = subprocess.run([sys.executable, copied], capture_output=True, text=True)
    assert done.returncode == 2 and "error: the wheels here are for Python 3.1, and this is 3." in done.stderr
