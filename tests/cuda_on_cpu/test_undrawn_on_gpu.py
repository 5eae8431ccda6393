"""Draws from no distribution on a GPU, from graphs and call by call: told at the same step as on a CPU."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("tvm")
pytest.importorskip("ziglang")

from tests.system.test_undrawn import COMPILED, compiled_text

from . import artifact as gpu

pytestmark = [
    pytest.mark.build,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the host code of a GPU's library is for x86-64"),
]


@pytest.mark.parametrize(("init", "check"), COMPILED, ids=("in steps", "in init"))
def test_a_draw_from_no_distribution_ends_a_run_on_a_gpu(init: str, check: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "run.sx").write_text(compiled_text(init))
    tar = gpu.build(tmp_path / "run.sx", tmp_path / "run.tar", "--stack", "2")
    for graphs in ("auto", "off"):
        (tmp_path / graphs).mkdir()

        def go(*arguments: object, graphs: str = graphs) -> tuple[int, str]:
            done = gpu.run(*arguments, "-q", "--graphs", graphs)  # type: ignore[arg-type]
            return done.returncode, done.stderr

        check(tmp_path / graphs, tar, go)
