"""The names under which an artifact carries the user's files."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from artifacts.format.tarball import name_allowed
from sexpgpu.build.archive_members import data_members, embedded, safe, source_members
from sexpgpu.language.diagnostics import UserError
from sexpgpu.language.source import Source, Span
from sexpgpu.ops.types import TensorType
from sexpgpu.phases.run_settings import Loader
from tests.support import CHARACTERS, plan_of


def loader(*sources: str, fields: tuple[str, ...] = ("x", "y")) -> Loader:
    types = dict.fromkeys(fields, TensorType((), "f32"))
    return Loader("rows", sources, None, 4, types, True, None, True, Span(Source("run.sx", "("), 0, 1))


@given(st.text(CHARACTERS, min_size=1))
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


def test_a_folder_of_npy_files_is_one_source_and_nothing_else_in_it_is_embedded(tmp_path: Path) -> None:
    (tmp_path / "shard").mkdir()
    for name in ("y.npy", "x.npy", "notes.txt", "z.npy", "._x.npy", ".DS_Store"):
        (tmp_path / "shard" / name).write_bytes(name.encode())
    assert list(embedded(tmp_path, loader("shard"))) == ["data/rows/0-shard/x.npy", "data/rows/0-shard/y.npy"]


@pytest.mark.parametrize("name", ["../shared/layers.sx", "layers ü.sx", "x" * 200 + ".sx"])
def test_an_include_of_any_name_is_a_member(name: str) -> None:
    plan = plan_of()
    more = evolve(plan.run, sources=(*plan.run.sources, (name, Source(name, ""))))
    members = source_members(evolve(plan, run=more))
    assert len(members) == 2 and all(map(name_allowed, members))


def test_the_members_of_includes_keep_their_place_and_apart() -> None:
    plan = plan_of()
    more = ("../shared/a.sx", "ä.sx", "ö.sx", "x/" * 60 + "deep.sx")
    made = evolve(plan.run, sources=tuple((name, Source(name, name)) for name in ("run.sx", *more)))
    assert source_members(evolve(plan, run=made)) == {
        "source/run.sx": b"run.sx",
        "source/up/shared/a.sx": b"../shared/a.sx",
        "source/_.sx": "ä.sx".encode(),
        "source/3-_.sx": "ö.sx".encode(),
        "source/4-deep.sx": more[3].encode(),
    }


def test_only_loaders_that_say_so_are_embedded(tmp_path: Path) -> None:
    (tmp_path / "d.npz").write_bytes(b"data")
    text = '(defloader {} :source "d.npz" :batch 4 {} :fields (list :x [3] :f32 :y [] :i32))'
    plan = plan_of(loader=text.format("d", ":embed true"), passes=text.format("e", ""))
    here = evolve(plan, run=evolve(plan.run, path=str(tmp_path / "run.sx")))
    assert data_members(here) == {"d": {"data/d/0-d.npz": b"data"}}


@pytest.mark.parametrize("source", ["nowhere.npz", "empty", "one"])
def test_data_that_cannot_be_read_is_a_diagnostic(tmp_path: Path, source: str) -> None:
    for name in ("empty", "one"):
        (tmp_path / name).mkdir()
    (tmp_path / "one/x.npy").touch()
    with pytest.raises(UserError) as caught:
        embedded(tmp_path, loader(source))
    assert caught.value.code.name == "E-DATA-001" and source in caught.value.message


@pytest.mark.parametrize("name", ["ö.npy", "a?.npy", "x" * 60 + ".npy"])
def test_a_field_whose_file_name_no_member_can_have_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(UserError) as caught:
        embedded(tmp_path.parent, loader(tmp_path.name, fields=(name.removesuffix(".npy"),)))
    assert caught.value.code.name == "E-DATA-001"
