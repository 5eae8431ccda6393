"""The names under which an artifact carries the user's files."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.tarball import name_allowed
from sexpgpu.members import embedded, safe, source_members
from sexpgpu.settings import Loader
from sexpgpu.source import Source, Span
from tests.support import plan_of


def loader(*sources: str) -> Loader:
    return Loader("rows", sources, None, 4, {}, True, None, True, Span(Source("run.sx", "("), 0, 1))


@given(st.text(min_size=1))
def test_any_name_becomes_one_that_a_member_may_have(name: str) -> None:
    assert set(safe(name)) <= set(string.ascii_letters + string.digits + "_.+-")
    assert name_allowed(f"data/rows/0-{safe(name)}")


def test_sources_keep_their_order_and_files_of_one_name_apart(tmp_path: Path) -> None:
    for folder in ("b", "a"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "döta.npz").write_bytes(folder.encode())
    found = embedded(tmp_path, loader("b/döta.npz", "a/döta.npz"))
    assert found == {"data/rows/0-d_ta.npz": b"b", "data/rows/1-d_ta.npz": b"a"}
    assert all(map(name_allowed, found))


def test_a_folder_of_npy_files_is_one_source(tmp_path: Path) -> None:
    (tmp_path / "shard").mkdir()
    for name in ("y.npy", "x.npy", "notes.txt"):
        (tmp_path / "shard" / name).write_bytes(name.encode())
    assert list(embedded(tmp_path, loader("shard"))) == ["data/rows/0-shard/x.npy", "data/rows/0-shard/y.npy"]


@pytest.mark.parametrize("name", ["../shared/layers.sx", "layers ü.sx", "x" * 200 + ".sx"])
def test_an_include_of_any_name_is_a_member(name: str) -> None:
    from attrs import evolve

    plan = plan_of()
    more = evolve(plan.run, sources=(*plan.run.sources, (name, Source(name, ""))))
    members = source_members(evolve(plan, run=more))
    assert len(members) == 2 and all(map(name_allowed, members))
