"""The artifact's file: bytes that depend on nothing else, and a reader that takes no other form of them."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import random
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artifacts import describe, run
from artifacts.base import canonical_json
from artifacts.base.errors import RunError
from artifacts.format import manifest, tar_writer, tarball
from sexpgpu.build.archive_members import source_members
from sexpgpu.phases.identity import document
from tests.artifacts import toy
from tests.artifacts.support import members_of, one_error, packed, run_toy, sealed
from tests.support import CHARACTERS, plan_of

B = tarball.BLOCK


def refuse(path: str | Path, code: str) -> RunError:
    with pytest.raises(RunError) as caught:
        tarball.verify(str(path))
    assert caught.value.code.name == code and caught.value.code.exit == 4, caught.value
    assert "\n" not in str(caught.value)
    return caught.value


def put(path: str, data: bytes) -> str:
    Path(path).write_bytes(data)
    return path


def test_round_trip_and_every_standard_tar_reads_it(artifact: str) -> None:
    found = tarball.verify(artifact)
    assert attrs.evolve(found, files=()) == toy.manifest()
    members = members_of(artifact)
    assert [name for name, _ in members] == ["manifest.json", "manifest.sha256", *sorted(toy.MEMBERS)]
    with tarball.open(artifact) as opened:
        assert opened.hash == hashlib.sha256(members[0][1]).hexdigest()
        assert {name: opened.read(name) for name in toy.MEMBERS} == toy.MEMBERS


def test_same_members_same_bytes_whatever_surrounds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = put(toy.write(tmp_path), Path(toy.write(tmp_path)).read_bytes())
    before = Path(one).read_bytes()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "abc")  # row 73: no time is in the bytes, so none is read
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    old = os.umask(0o077)
    try:
        (tmp_path / "a b").mkdir()
        again = toy.write(tmp_path / "a b", name="other.tar")
    finally:
        os.umask(old)
    assert Path(again).read_bytes() == before
    reordered = dict(reversed(toy.MEMBERS.items()))
    tar_writer.write(str(tmp_path / "third.tar"), toy.manifest(), reordered)
    assert (tmp_path / "third.tar").read_bytes() == before


def test_umask_decides_the_mode(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        path = toy.write(tmp_path)
    finally:
        os.umask(old)
    assert os.stat(path).st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    "data", [b"", b"<html>not found</html>", b"\0" * 10240, b"PK\3\4" + bytes(600), bytes(range(256)) * 4]
)
def test_row_40_not_an_artifact(tmp_path: Path, data: bytes) -> None:
    refuse(put(str(tmp_path / "a.tar"), data), "E-ART-001")


def test_row_40_gzip_of_an_artifact(artifact: str) -> None:
    error = refuse(put(artifact, gzip.compress(Path(artifact).read_bytes())), "E-ART-001")
    assert "gzip" in str(error)


def test_row_40_missing_directory_and_fifo(tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
        tarball.open(str(tmp_path / "none.tar"))
    assert caught.value.code.name == "E-IO-012"
    refuse(tmp_path, "E-ART-001")
    os.mkfifo(tmp_path / "fifo")
    refuse(tmp_path / "fifo", "E-ART-001")


def test_row_41_truncated_anywhere(artifact: str) -> None:
    data = Path(artifact).read_bytes()
    for size in [1, 100, 511, *range(B, len(data), 257), len(data) - 1]:
        put(artifact, data[:size])
        with pytest.raises(RunError) as caught:
            tarball.verify(artifact)
        assert caught.value.code.name in ("E-ART-001", "E-ART-002"), (size, caught.value)
        assert caught.value.code.name == "E-ART-002" or size < B


@pytest.mark.parametrize("tail", [b"x", bytes(1), bytes(B), b"junk" * 1000])
def test_row_41_trailing_bytes(artifact: str, tail: bytes) -> None:
    refuse(put(artifact, Path(artifact).read_bytes() + tail), "E-ART-002")


def test_row_41_no_end_blocks(artifact: str) -> None:
    refuse(put(artifact, Path(artifact).read_bytes()[: -len(tarball.END)]), "E-ART-002")


def test_row_41_packed_again_by_tar(artifact: str) -> None:
    """Its bytes, and so its hash, are then others."""
    members = members_of(artifact)
    with tarfile.open(artifact, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    assert "take the file as sexpgpu build wrote it" in str(refuse(artifact, "E-ART-001"))


@pytest.mark.parametrize(
    "name", ["manifest.json", "manifest.sha256", *(name for name, data in toy.MEMBERS.items() if data)]
)
def test_row_42_a_flipped_bit_in_each_member(artifact: str, name: str) -> None:
    data = bytearray(Path(artifact).read_bytes())
    with tarfile.open(artifact) as tar:
        info = tar.getmember(name)
    data[info.offset_data + info.size // 2] ^= 4
    assert name in str(refuse(put(artifact, bytes(data)), "E-ART-003"))


def regions(artifact: str) -> dict[str, range]:
    """What stands where in the file, byte for byte: each header, its member, the padding behind it, and the end."""
    out, at = {}, 0
    for name, data in members_of(artifact):
        for what, size in (("header", B), ("bytes", len(data)), ("padding", -len(data) % B)):
            out[f"{what} of {name}"], at = range(at, at + size), at + size
    out["end"] = range(at, at + len(tarball.END))
    assert out["end"].stop == os.path.getsize(artifact)
    return {what: places for what, places in out.items() if places}


def test_row_42_no_bit_is_free(artifact: str) -> None:
    """Any one bit that is flipped, in whatever part of the file, is told as damage: none makes another artifact, and
    none of the manifest's is taken for what someone wrote."""
    data, rng = Path(artifact).read_bytes(), random.Random(5)
    for what, places in regions(artifact).items():
        in_manifest = what == "bytes of manifest.json"
        for at in rng.sample(places, min(len(places), 600 if in_manifest else 60)):
            flipped = bytearray(data)
            flipped[at] ^= 1 << rng.randrange(8)
            with pytest.raises(RunError) as caught:
                tarball.verify(put(artifact, bytes(flipped)))
            code = caught.value.code
            assert code.exit == 4 and code.name != "E-ART-007", (what, at)
            assert not what.startswith("bytes") or code.name == "E-ART-003", (what, at)


def test_the_digest_beside_the_manifest_is_one_that_sha256sum_checks(artifact: str, tmp_path: Path) -> None:
    folder = tmp_path / "unpacked"
    with tarfile.open(artifact) as tar:
        tar.extractall(folder, filter="data")
    done = subprocess.run(["sha256sum", "--check", "manifest.sha256"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "manifest.json: OK\n"
    with tarball.open(artifact) as opened:
        assert (folder / "manifest.sha256").read_text().startswith(f"{opened.hash}  ")


def test_an_artifact_from_before_the_digest(artifact: str) -> None:
    members = members_of(artifact)
    assert "build it again" in str(refuse(put(artifact, packed([members[0], *members[2:]])), "E-ART-006"))


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/x",
        "a/../b",
        "a//b",
        "./a",
        "a/",
        "a\nb",
        "\x1b[2J",
        "x" * 101,
        "na\u00efve",
        "CON",
        "code/nul.txt",
        ".hidden",
        "-rf",
        "a b",
        "",
    ],
)
def test_row_43_bad_member_names(artifact: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
        tar_writer.write(str(tmp_path / "b.tar"), toy.manifest(), {**toy.MEMBERS, name: b"x"})
    assert caught.value.code.name == "E-ART-004" and not (tmp_path / "b.tar").exists()
    raw = name.encode("utf-8")[:100]
    block = bytearray(tarball.header("x", 1))
    block[:100] = raw.ljust(100, b"\0")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    data = Path(artifact).read_bytes()
    at = data.index(b"code/phases.so\0")
    if len(name) != 101:  # the 101st character has no place in the header
        refuse(put(artifact, data[:at] + bytes(block) + data[at + B :]), "E-ART-004")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["held.npz", "rows.npz", "toy.tar"]


def _entry(change: Callable[[tarfile.TarInfo], None]) -> bytes:
    info = tarfile.TarInfo("code/phases.so")
    info.size, info.mode = len(toy.MEMBERS[toy.LIBRARY]), 0o644
    change(info)
    return info.tobuf(tarfile.USTAR_FORMAT)


KINDS = {
    "symlink": {"type": tarfile.SYMTYPE, "linkname": "../../etc/passwd"},
    "hardlink": {"type": tarfile.LNKTYPE, "linkname": "manifest.json"},
    "fifo": {"type": tarfile.FIFOTYPE},
    "device": {"type": tarfile.CHRTYPE},
    "directory": {"type": tarfile.DIRTYPE},
    "sparse": {"type": tarfile.GNUTYPE_SPARSE},
    "old": {"type": tarfile.AREGTYPE},
    "pax": {"type": tarfile.XHDTYPE},
    "setuid": {"mode": 0o4755},
    "executable": {"mode": 0o755},
}


@pytest.mark.parametrize("kind", KINDS)
def test_row_44_only_plain_files(artifact: str, kind: str) -> None:
    data = Path(artifact).read_bytes()
    at = data.index(b"code/phases.so\0")
    block = _entry(lambda info: [setattr(info, key, value) for key, value in KINDS[kind].items()])  # type: ignore[arg-type]
    refuse(put(artifact, data[:at] + block + data[at + B :]), "E-ART-005")


@pytest.mark.parametrize("key, value", [("uid", 1000), ("mtime", 1), ("uname", "root"), ("gname", "x")])
def test_row_44_no_other_header_field_is_free(artifact: str, key: str, value: object) -> None:
    data = Path(artifact).read_bytes()
    at = data.index(b"code/phases.so\0")
    block = _entry(lambda info: setattr(info, key, value))
    assert block != data[at : at + B]
    refuse(put(artifact, data[:at] + block + data[at + B :]), "E-ART-001")


def test_row_45_duplicate_unlisted_missing_and_late_manifest(artifact: str) -> None:
    members = members_of(artifact)
    for i in range(1, len(members)):
        refuse(put(artifact, packed(members[: i + 1] + members[i:])), "E-ART-006")
        refuse(put(artifact, packed(members[:i] + members[i + 1 :])), "E-ART-006")
    refuse(put(artifact, packed([*members, ("zzz", b"unlisted")])), "E-ART-006")
    refuse(put(artifact, packed([members[0], members[2], members[1], *members[3:]])), "E-ART-006")
    refuse(put(artifact, packed([*members[1:], members[0]])), "E-ART-006")


def test_row_45_a_list_that_is_not_sorted_or_names_one_twice(artifact: str) -> None:
    """Even when the members stand as listed."""
    found, members = tarball.verify(artifact), members_of(artifact)
    for order in ((1, 0, 2, 3), (0, 1, 1, 2, 3)):
        text = attrs.evolve(found, files=tuple(found.files[i] for i in order)).to_bytes()
        refuse(put(artifact, sealed(text, [members[i + 2] for i in order])), "E-ART-006")


def with_manifest(artifact: str, text: bytes) -> str:
    return put(artifact, sealed(text, members_of(artifact)[2:]))


@pytest.mark.parametrize(
    "old, new",
    [
        (b'"steps":6', b'"steps":6,"steps":7'),
        (b'"steps":6', b'"steps":6.0'),
        (b'"steps":6', b'"steps":NaN'),
        (b'"steps":6', b'"steps":true'),
        (b'"steps":6', b'"steps":"6"'),
        (b'"steps":6', b'"steps":0'),
        (b'"steps":6', b'"steps":9223372036854775808'),
        (b'"steps":6', b'"steps":null'),
        (b'"steps":6', b'"steps": 6'),
        (b',"steps":6', b""),
        (b'"steps":6', b'"steps":6,"surprise":1'),
        (b'"shape":[3]', b'"shape":[-3]'),
        (b'"shape":[3]', b'"shape":[1099511627776]'),
        (b'"dtype":"f32"', b'"dtype":"f33"'),
        (b'"in_place":[[3,5]]', b'"in_place":[[3,99]]'),
        (b'"in_place":[[3,5]]', b'"in_place":[[3,0]]'),
        (b'"loader":"held"', b'"loader":"nobody"'),
        (b'"trips":3', b'"trips":0'),
        (b'"format":"sexpgpu-artifact"', b'"format":"other"'),
        (b'"version":1', b'"version":0'),
        (b'"library":"code/phases.so"', b'"library":"code/absent.so"'),
        (b'"stack":1', b'"stack":2'),
        (b'"device":"cpu"', b'"device":"tpu"'),
        (b'"device":"cpu"', b'"device":"cuda"'),
        (b'"archs":[]', b'"archs":["sm_90"]'),
        (b'"archs":[],"cpu_flags":[],"device":"cpu"', b'"archs":["sm_90"],"cpu_flags":[],"device":"cuda"'),
        (b'"graphs":false', b'"graphs":true'),
        (b'"cuda":null', b'"cuda":"runtime/absent.so"'),
    ],
)
def test_row_46_malformed_manifests(artifact: str, old: bytes, new: bytes) -> None:
    text = members_of(artifact)[0][1]
    assert old in text
    refuse(with_manifest(artifact, text.replace(old, new, 1)), "E-ART-007")


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"null", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"\xef\xbb\xbf{}"]
)
def test_row_46_not_a_manifest_at_all(artifact: str, text: bytes) -> None:
    refuse(with_manifest(artifact, text), "E-ART-007")


def test_row_46_a_huge_manifest_is_refused_by_its_declared_size(artifact: str) -> None:
    block = tarball.header("manifest.json", 2**30)
    refuse(put(artifact, block + bytes(B)), "E-ART-008")


def test_row_47_declared_sizes_are_bounded_before_anything_is_read(artifact: str) -> None:
    data = Path(artifact).read_bytes()
    at = data.index(b"code/phases.so\0")
    block = bytearray(data[at : at + B])
    block[124:136] = b"\x80\0\0\0\x80" + bytes(7)  # 8 EiB in the base-256 form
    refuse(put(artifact, data[:at] + bytes(block) + data[at + B :]), "E-ART-008")
    huge = tarball.header("code/phases.so", 2**32)
    error = refuse(put(artifact, data[:at] + huge + data[at + B :]), "E-ART-003")
    assert str(2**32) in str(error)


def test_row_47_a_member_that_declares_more_than_the_file_holds(artifact: str) -> None:
    found = tarball.verify(artifact)
    files = tuple(attrs.evolve(f, size=2**33 - 1) if f.path == toy.LIBRARY else f for f in found.files)
    text = attrs.evolve(found, files=files).to_bytes()
    data = sealed(text, [])[: -len(tarball.END)] + tarball.header(toy.LIBRARY, 2**33 - 1)
    refuse(put(artifact, data + bytes(4096)), "E-ART-002")


def test_row_49_newer_and_older_formats(artifact: str) -> None:
    text = members_of(artifact)[0][1]
    error = refuse(with_manifest(artifact, text.replace(b'"version":1', b'"version":2')), "E-ART-009")
    assert "2" in str(error) and "newer" in str(error)


def test_row_49_a_newer_format_may_have_keys_that_we_do_not_know(artifact: str) -> None:
    refuse(
        with_manifest(artifact, canonical_json.dumps({"format": manifest.FORMAT, "version": 7, "news": [1]})),
        "E-ART-009",
    )


def test_row_50_the_digest_asked_for(artifact: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tarball.open(artifact) as opened:
        digest = opened.hash
    assert run_toy(artifact, out, "--require-digest", f"sha256:{'0' * 64}") == 4
    assert digest in one_error(capsys.readouterr().err, "E-ART-010") and not out.exists()
    assert run_toy(artifact, out, "--require-digest", f"sha256:{digest}", "--steps", "1") == 0


def test_row_51_replaced_or_deleted_while_open(artifact: str, tmp_path: Path) -> None:
    with tarball.open(artifact) as opened:
        changed = {**toy.MEMBERS, toy.LIBRARY: b"another"}
        tar_writer.write(artifact, toy.manifest(), changed, force=True)
        assert opened.read(toy.LIBRARY) == toy.MEMBERS[toy.LIBRARY]
        os.unlink(artifact)
        opened.verify()


def test_row_52_a_library_that_does_not_load(artifact: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The real device on bytes that are no library: after the hashes agree, before any step."""
    assert run.main([artifact, "--out", str(out), "--data", str(out.parent)]) == 3
    said = one_error(capsys.readouterr().err, "E-ENV-011")
    assert "ELF" in said or "too short" in said  # the C library's words, which of them depends on its state
    assert not any((out / "checkpoints").glob("*"))


def test_row_66_an_existing_output(artifact: str, tmp_path: Path) -> None:
    before = Path(artifact).read_bytes()

    def fails(path: str, **how: object) -> None:
        with pytest.raises(RunError) as caught:
            tar_writer.write(path, toy.manifest(name="two"), toy.MEMBERS, **how)  # type: ignore[arg-type]
        assert caught.value.code.name == "E-CLI-005" and caught.value.code.exit == 2
        assert ("--force" in caught.value.hint) != ("force" in how)  # who has given it is not told to

    fails(artifact)
    fails(artifact, force=True, inputs=[artifact])
    assert Path(artifact).read_bytes() == before
    source = tmp_path / "run.sx"
    source.write_text("(defrun x)")
    fails(str(source), force=True)
    assert source.read_text() == "(defrun x)"
    tar_writer.write(artifact, toy.manifest(name="two"), toy.MEMBERS, force=True)
    assert tarball.verify(artifact).run.name == "two"


def test_row_74_a_failed_write_leaves_the_old_file_and_no_other(
    artifact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, names = Path(artifact).read_bytes(), sorted(os.listdir(tmp_path))
    for name in ("write", "fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, _full)
            with pytest.raises(RunError) as caught:
                tar_writer.write(artifact, toy.manifest(name="two"), toy.MEMBERS, force=True)
            assert caught.value.code.name == "E-IO-011"
        assert Path(artifact).read_bytes() == before and sorted(os.listdir(tmp_path)) == names


def _full(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def test_describe_and_diff_load_no_code(artifact: str, tmp_path: Path) -> None:
    with tarball.open(artifact) as one:
        text = describe.describe(one)
        assert f"sha256:{one.hash}" in text and "generate.step" in text and "rows.npz" in text
        assert "rows.npz (batch 4, shuffled)" in text and "held.npz (batch 4, in order)" in text
        loaders = tuple(attrs.evolve(each, shuffle=True) for each in one.manifest.loaders)
        read = attrs.evolve(one, manifest=attrs.evolve(one.manifest, loaders=loaders))
        assert "held.npz (batch 4, in order)" in describe.describe(read)  # as passes read
        assert describe.to_json(one)["manifest"]["run"]["steps"] == 6
        assert describe.diff(one, one) is None
        for change, expected in (
            ({"manifest": toy.manifest(steps=9), "members": toy.MEMBERS}, "manifest.run.steps: 6 and 9"),
            (
                {"manifest": toy.manifest(), "members": {**toy.MEMBERS, "report.txt": b"x"}},
                "member report.txt: 0 and 1 bytes",
            ),
            (
                {"manifest": toy.manifest(), "members": {**toy.MEMBERS, "source/a.sx": b"x"}},
                "member source/a.sx: only in the second",
            ),
            (
                {"manifest": toy.manifest(), "members": {n: c + b" " for n, c in toy.MEMBERS.items()}},
                "member source/",  # before the code: a source says why the others differ
            ),
        ):
            path = str(tmp_path / "b.tar")
            tar_writer.write(path, change["manifest"], change["members"], force=True)
            with tarball.open(path) as two:
                assert (describe.diff(one, two) or "").startswith(expected)


def of_run(folder: Path, name: str, **parts: str) -> tarball.Artifact:
    """An artifact of tests.support's run file with some parts replaced: its sources and forms, the toy's code."""
    plan = plan_of(**parts)
    members = {**toy.MEMBERS, **source_members(plan), "identity.json": document(plan.run)}
    tar_writer.write(str(folder / name), toy.manifest(), members)
    return tarball.open(str(folder / name))


def test_diff_shows_the_forms_that_differ_with_both_places(tmp_path: Path) -> None:
    changed = {
        "model": "(defun half (x) (* x 0.5))\n(defmodel m (x) (half (linear x :out 3)))",
        "optimizer": "(defoptimizer (sgd :lr 0.2))",
        "run": "(defrun r :model m :loader d :seed 2 :steps 2 :microbatches 3)",
    }
    with of_run(tmp_path, "a.tar") as one, of_run(tmp_path, "b.tar", **changed) as two:
        assert (describe.diff(one, two) or "").splitlines() == [
            "model differs: the first has no defun half (run.sx:1:1)",
            "model differs in defmodel m: the first has (defmodel m (x) (linear x :out 2)) (run.sx:1:1), "
            "the second has (defmodel m (x) (half (linear x :out 3))) (run.sx:2:1)",
            "optimizer differs in defoptimizer: the first has (sgd :lr 0.1) (run.sx:5:15), "
            "the second has (sgd :lr 0.2) (run.sx:6:15)",
            "run differs in defrun r: the first has :seed 1 (run.sx:6:36), the second has :seed 2 (run.sx:7:36)",
            "run differs in defrun r: the first has :microbatches 1 (run.sx:6:1), "
            "the second has :microbatches 3 (run.sx:7:61)",
        ]
        assert "the first has (sgd :lr 0.2) (run.sx:6:15), the second" in (describe.diff(two, one) or "")


def test_diff_of_what_decides_no_bit_shows_the_line(tmp_path: Path) -> None:
    """The number of steps is no part of a run's identity; a form that has only moved is no difference."""
    longer = "\n(defrun r :model m :loader d :seed 1 :steps 9)"
    with of_run(tmp_path, "a.tar") as one, of_run(tmp_path, "b.tar", run=longer[1:]) as two:
        said = describe.diff(one, two) or ""
        assert said.startswith("member source/run.sx: line 6 is '") and ":steps 2" in said and ":steps 9" in said
        with of_run(tmp_path, "c.tar", run=longer) as three:
            said = describe.diff(one, three) or ""
            assert said.startswith("member source/run.sx: line 6 is '") and "'' in the second" in said


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_fuzz_only_run_errors_escape(tmp_path: Path, data: st.DataObject) -> None:
    """Cut, overwrite and splice a good artifact at random."""
    path = tmp_path / "fuzz.tar"
    if not (tmp_path / "good.tar").exists():
        toy.write(tmp_path, name="good.tar")
    bytes_ = bytearray((tmp_path / "good.tar").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(bytes_) - 1))
        bytes_[at : at + data.draw(st.sampled_from([0, 1, 8, 512]))] = data.draw(st.binary(max_size=12))
    path.write_bytes(bytes(bytes_))
    try:
        tarball.verify(str(path))
    except RunError as error:
        assert error.code.exit == 4


@settings(max_examples=100, deadline=None)  # each is a tree of up to 20 leaves
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.text(CHARACTERS),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(CHARACTERS), inner),
        max_leaves=20,
    )
)
def test_canonical_json_round_trips(value: object) -> None:
    try:
        data = canonical_json.dumps(value)
    except UnicodeEncodeError:
        return
    assert canonical_json.loads_canonical(data) == value and data.isascii()


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60) | st.text(alphabet='{}[]",:0123456789.eE+-ntfalsru\\u" ', max_size=60).map(str.encode))
def test_fuzz_json_only_malformed_escapes(data: bytes) -> None:
    with contextlib.suppress(canonical_json.Malformed):
        canonical_json.loads(data)


def test_the_writer_accepts_only_what_the_reader_takes(tmp_path: Path) -> None:
    bad = attrs.evolve(toy.manifest(), step=attrs.evolve(toy.manifest().step, stages=()))
    with pytest.raises(RunError) as caught:
        tar_writer.write(str(tmp_path / "a.tar"), bad, toy.MEMBERS)
    assert caught.value.code.name == "E-ART-007" and not (tmp_path / "a.tar").exists()


def test_bounded_memory_while_verifying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No read of a member asks for more than a chunk."""
    path = str(tmp_path / "big.tar")
    tar_writer.write(path, toy.manifest(), {**toy.MEMBERS, "data/rows/big.npz": bytes(3 * tarball.CHUNK)})
    asked, real = [], os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: asked.append(size) or real(fd, size, at))
    tarball.verify(path)
    assert max(asked) == tarball.CHUNK


def test_the_hostile_samples_differ_from_a_good_file_in_one_thing(artifact: str) -> None:
    assert packed(members_of(artifact)) == Path(artifact).read_bytes()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("generate.init", "field"),
        ("generate.step", "state"),
        ("generate.finish", "state"),
        ("train", "field"),
        ("train", "generated"),
        ("train", "gradient"),
        ("update", "gradient"),
        ("eval.held", "field"),
        ("eval.held", "generated"),
    ],
)
@pytest.mark.parametrize("change", [{"dtype": "f64"}, {"shape": (5, 5)}])
def test_a_phase_takes_what_was_made_for_it(tmp_path: Path, name: str, kind: str, change: dict[str, Any]) -> None:
    """Phases do not look at what they are given, so the manifest has to agree with itself."""
    made = toy.manifest()
    phase = made.phase(name)
    at = next(i for i, port in enumerate(phase.inputs) if port.kind == kind)
    inputs = [attrs.evolve(port, **change) if i == at else port for i, port in enumerate(phase.inputs)]
    other = attrs.evolve(phase, inputs=tuple(inputs), in_place=())
    phases = tuple(other if p.name == name else p for p in made.phases)
    with pytest.raises(RunError) as caught:
        tar_writer.write(str(tmp_path / "a.tar"), attrs.evolve(made, phases=phases), toy.MEMBERS)
    assert f"phase {name}: {kind} {phase.inputs[at].name} is not made so" in str(caught.value)
