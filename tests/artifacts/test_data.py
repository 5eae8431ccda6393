"""Loaders: four kinds of files give the same batches; what is wrong with one is said by file, record and byte."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import attrs
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifacts.base import canonical_json, safetensors_io
from artifacts.base.errors import RunError
from artifacts.data import file_formats as sources
from artifacts.data.loaders import Feed, Records, batches_in_order, fingerprint, open_records
from artifacts.data.shuffle import Order
from artifacts.format import manifest as m
from artifacts.format import tar_writer, tarball
from tests.artifacts import toy
from tests.artifacts.support import one_error, run_toy

RECORDS = toy.records(11, 3)


def save(folder: Path, kind: str, records: dict[str, np.ndarray] = RECORDS) -> str:
    """The records as ``rows.KIND`` in ``folder``; the source's name."""
    name = "rows" if kind == "npy" else f"rows.{kind}"
    path = folder / name
    if kind == "npz":
        np.savez(path, **records)  # type: ignore[arg-type]
    elif kind == "npy":
        path.mkdir(exist_ok=True)
        for field, array in records.items():
            np.save(path / f"{field}.npy", array)
    elif kind == "safetensors":
        path.write_bytes(safetensors_io.dump(records))
    else:
        count = len(next(iter(records.values())))
        lines = [json.dumps({f: a[i].tolist() for f, a in records.items()}) for i in range(count)]
        path.write_text("\n".join(lines) + "\n")
    return name


KINDS = ("npz", "npy", "safetensors", "jsonl")


def load(folder: Path, *sources: str, **changes: object) -> Records:
    return open_records(toy.loader("rows", sources[0], sources=sources, **changes), str(folder), None)


def refuse(code: str, folder: Path, *sources: str, **changes: object) -> str:
    with pytest.raises(RunError) as caught:
        load(folder, *sources, **changes)
    assert caught.value.code.name == code, caught.value
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_same_records(tmp_path: Path, kind: str) -> None:
    found = load(tmp_path, save(tmp_path, kind))
    numbers = np.array([10, 0, 5, 5], np.int64)
    batch = found.batch(numbers)
    for field in ("x", "y"):
        assert np.array_equal(batch[field], RECORDS[field][numbers]) and batch[field].dtype == RECORDS[field].dtype
        assert batch[field].ctypes.data % 64 == 0


@pytest.mark.parametrize("kind", KINDS)
def test_shards_stand_end_to_end(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    other = toy.records(5, 4)
    one, two = save(tmp_path / "a", kind), save(tmp_path / "b", kind, other)
    found = load(tmp_path, f"a/{one}", f"b/{two}")
    both = np.concatenate([RECORDS["x"], other["x"]])
    assert found.count == 16 and np.array_equal(found.batch(np.arange(16))["x"], both)
    assert len(found.digests) == (4 if kind == "npy" else 2)


@pytest.mark.parametrize("kind", KINDS)
def test_embedded_data_is_the_same_data(tmp_path: Path, kind: str) -> None:
    save(tmp_path, kind)
    names = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file())
    members = {f"data/rows/{name}": (tmp_path / name).read_bytes() for name in names}
    loader = toy.loader("rows", "elsewhere", embedded=tuple(members))
    made = attrs.evolve(toy.manifest(), loaders=(loader, toy.manifest().loaders[1]))
    tar_writer.write(str(tmp_path / "a.tar"), made, {**toy.MEMBERS, **members})
    with tarball.open(str(tmp_path / "a.tar")) as artifact:
        found = open_records(loader, "/nowhere", artifact)
    assert np.array_equal(found.batch(np.arange(11))["x"], RECORDS["x"])
    on_disk = load(tmp_path, "rows" if kind == "npy" else f"rows.{kind}")
    assert fingerprint([found]) == fingerprint([on_disk])


def test_indices_are_their_own_data() -> None:
    loader = m.Loader("rows", "indices", (), (), 10, 4, False, None, (m.Field("index", (), "i32", None, None),))
    batch = open_records(loader, ".", None).batch(np.array([3, 9]))
    assert batch["index"].tolist() == [3, 9] and batch["index"].dtype == np.int32


@pytest.mark.parametrize("name", [*safetensors_io.DTYPES])
def test_every_dtype_travels(tmp_path: Path, name: str) -> None:
    values = (np.arange(12).reshape(4, 3) % 2).astype(safetensors_io.dtype(name))
    for kind in KINDS:
        if name == "bf16" and kind in ("npz", "npy"):
            continue  # NumPy's own file format has no bf16: it writes two raw bytes
        fields = (m.Field("v", (3,), name, None, None),)
        found = load(tmp_path, save(tmp_path, kind, {"v": values}), fields=fields)
        assert np.array_equal(found.batch(np.arange(4))["v"], values)


def test_column_major_arrays_read_right(tmp_path: Path) -> None:
    turned = {**RECORDS, "x": np.asfortranarray(RECORDS["x"])}
    for kind in ("npz", "npy"):
        found = load(tmp_path, save(tmp_path, kind, turned))
        assert np.array_equal(found.batch(np.arange(11))["x"], RECORDS["x"])


# Row 23: missing, empty, cut short


def test_row_23_missing(tmp_path: Path) -> None:
    text = refuse("E-DATA-010", tmp_path, "rows.npz")
    assert "rows.npz" in text and "--data" in text
    (tmp_path / "empty").mkdir()
    assert "no .npy" in refuse("E-DATA-010", tmp_path, "empty")
    os.mkfifo(tmp_path / "pipe.npz")
    assert "regular" in refuse("E-DATA-010", tmp_path, "pipe.npz")


@pytest.mark.parametrize("kind", ["npz", "safetensors", "jsonl"])
def test_row_23_empty(tmp_path: Path, kind: str) -> None:
    (tmp_path / f"rows.{kind}").touch()
    assert "empty" in refuse("E-DATA-010", tmp_path, f"rows.{kind}")


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_row_23_cut_anywhere(tmp_path: Path, kind: str) -> None:
    path = tmp_path / save(tmp_path, kind)
    data = path.read_bytes()
    for size in range(1, len(data), max(1, len(data) // 60)):
        path.write_bytes(data[:size])
        refuse("E-DATA-010", tmp_path, path.name)


def test_row_23_a_cut_npy_names_the_record_and_the_byte(tmp_path: Path) -> None:
    save(tmp_path, "npy")
    path = tmp_path / "rows" / "x.npy"
    data = path.read_bytes()
    path.write_bytes(
        data[: len(data) - 5 * 12 - 4]
    )  # records of 12 bytes: 5 whole ones and a third of another are gone
    assert "record 5" in refuse("E-DATA-010", tmp_path, "rows") and "x.npy" in refuse("E-DATA-010", tmp_path, "rows")
    path.write_bytes(data + b"more")
    assert "after" in refuse("E-DATA-010", tmp_path, "rows")


def test_row_23_a_member_cut_within_an_archive(tmp_path: Path) -> None:
    save(tmp_path, "npy")
    with zipfile.ZipFile(tmp_path / "rows.npz", "w") as archive:
        archive.writestr("x.npy", (tmp_path / "rows" / "x.npy").read_bytes()[:-40])
        archive.write(tmp_path / "rows" / "y.npy", "y.npy")
    text = refuse("E-DATA-010", tmp_path, "rows.npz")
    assert "record 7" in text and "byte 92" in text


def test_row_23_a_flipped_byte_in_an_archive(tmp_path: Path) -> None:
    path = tmp_path / save(tmp_path, "npz")
    data = bytearray(path.read_bytes())
    data[data.index(b"\x93NUMPY") + 140] ^= 1
    path.write_bytes(bytes(data))
    refuse("E-DATA-010", tmp_path, "rows.npz")


def test_row_23_a_duplicate_member(tmp_path: Path) -> None:
    save(tmp_path, "npy")
    with zipfile.ZipFile(tmp_path / "rows.npz", "w") as archive, pytest.warns(UserWarning):
        for name in ("x.npy", "y.npy", "x.npy"):
            archive.write(tmp_path / "rows" / name, name)
    assert "twice" in refuse("E-DATA-010", tmp_path, "rows.npz")


def test_row_23_declared_sizes_are_not_believed(tmp_path: Path) -> None:
    """A header that promises 10**12 records takes no memory for them."""
    save(tmp_path, "npy")
    header = b"{'descr': '<i4', 'fortran_order': False, 'shape': (1000000000000, 3), }".ljust(117) + b"\n"
    with zipfile.ZipFile(tmp_path / "rows.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(24))
        archive.write(tmp_path / "rows" / "y.npy", "y.npy")
    assert "record 2" in refuse("E-DATA-010", tmp_path, "rows.npz")


def test_row_23_at_run_time_the_exit_is_5(artifact: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path(artifact).with_name("rows.npz").unlink()
    assert run_toy(artifact, out) == 5
    assert "rows.npz" in one_error(capsys.readouterr().err, "E-DATA-010")


# Rows 24 and 25: values


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [100, -1])
def test_row_24_an_integer_out_of_bounds(tmp_path: Path, kind: str, value: int) -> None:
    x = RECORDS["x"].copy()
    x[7, 2] = value
    text = refuse("E-DATA-013", tmp_path, save(tmp_path, kind, {**RECORDS, "x": x}))
    assert "record 7" in text and "field x" in text and str(value) in text and "0..99" in text


def test_the_range_of_a_part_of_each_record(tmp_path: Path) -> None:
    """What lies outside it may be anything: a row that is padded with -1, whose first places are looked up."""
    x = RECORDS["x"].copy()
    x[:, 2:] = -1
    fields = (m.Field("x", x.shape[1:], "i32", None, None, (m.Part(0, 100, (0,), (2,)),)),)
    found = load(tmp_path, save(tmp_path, "npz", {"x": x}), fields=fields)
    assert np.array_equal(found.batch(np.arange(4))["x"], x[:4])
    x[3, 1] = 100
    text = refuse("E-DATA-013", tmp_path, save(tmp_path, "npz", {"x": x}), fields=fields)
    assert "record 3" in text and "field x holds 100" in text and "0..99" in text
    with pytest.raises(canonical_json.Malformed, match="rank"):
        m.Field("x", (3, 4), "i32", None, None, (m.Part(0, 100, (0,), (2,)),))


def test_row_24_the_record_is_counted_within_its_file(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    x = RECORDS["x"].copy()
    x[2, 0] = 500
    text = refuse(
        "E-DATA-013", tmp_path, save(tmp_path, "npz"), "b/" + save(tmp_path / "b", "npz", {**RECORDS, "x": x})
    )
    assert "b/rows.npz: record 2" in text


def test_row_24_a_record_that_changes_under_the_run(tmp_path: Path) -> None:
    """A mapped file is looked at again in every batch: before any kernel sees it."""
    found = load(tmp_path, save(tmp_path, "npy"))
    path = tmp_path / "rows" / "x.npy"
    with open(path, "r+b") as file:
        file.seek(-4, 2)
        file.write((10**6).to_bytes(4, "little"))
    with pytest.raises(RunError) as caught:
        found.batch(np.array([3, 10], np.int64))
    assert caught.value.code.name == "E-DATA-013" and "record 10" in str(caught.value)


@pytest.mark.parametrize("kind", ["npz", "npy", "safetensors"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_row_25_not_finite(tmp_path: Path, kind: str, value: float) -> None:
    y = RECORDS["y"].copy()
    y[4] = value
    assert "record 4" in refuse("E-DATA-014", tmp_path, save(tmp_path, kind, {**RECORDS, "y": y}))


def test_row_25_not_finite_in_bf16(tmp_path: Path) -> None:
    values = np.ones((4, 3), ml_dtypes.bfloat16)
    values[1, 1] = np.nan
    fields = (m.Field("v", (3,), "bf16", None, None),)
    assert "record 1" in refuse("E-DATA-014", tmp_path, save(tmp_path, "safetensors", {"v": values}), fields=fields)


# Row 27 and the fields


def test_row_27_fewer_records_than_a_batch(tmp_path: Path) -> None:
    text = refuse("E-DATA-015", tmp_path, save(tmp_path, "npz"), batch=12)
    assert "12" in text and "11" in text


@pytest.mark.parametrize("kind", KINDS)
def test_no_records_at_all(tmp_path: Path, kind: str) -> None:
    source = save(tmp_path, kind, {field: array[:0] for field, array in RECORDS.items()})
    refuse("E-DATA-015", tmp_path, source)


@pytest.mark.parametrize("kind", KINDS)
def test_fields_must_be_there_with_their_dtype_and_shape(tmp_path: Path, kind: str) -> None:
    text = refuse("E-DATA-012", tmp_path, save(tmp_path, kind), fields=(m.Field("z", (), "f32", None, None),))
    assert "no field z" in text and "x, y" in text
    wide = (m.Field("x", (4,), "i32", None, None),)
    text = refuse("E-DATA-012", tmp_path, "rows" if kind == "npy" else f"rows.{kind}", fields=wide)
    assert "4]" in text and "x" in text
    if kind != "jsonl":
        text = refuse("E-DATA-012", tmp_path, save(tmp_path, kind, {**RECORDS, "x": RECORDS["x"].astype(np.int64)}))
        assert "i64" in text and "i32" in text and "astype" in text


@pytest.mark.parametrize("kind", ["npz", "npy"])
def test_bf16_in_a_file_of_numpys_names_a_kind_that_holds_it(tmp_path: Path, kind: str) -> None:
    name = save(tmp_path, kind, {"x": np.zeros((4, 2), ml_dtypes.bfloat16)})
    assert ".safetensors" in refuse("E-DATA-012", tmp_path, name, fields=(m.Field("x", (2,), "bf16", None, None),))


@pytest.mark.parametrize("kind", ["npz", "npy", "safetensors"])
def test_fields_of_different_length(tmp_path: Path, kind: str) -> None:
    text = refuse("E-DATA-012", tmp_path, save(tmp_path, kind, {**RECORDS, "y": RECORDS["y"][:9]}))
    assert "11" in text and "9" in text


def test_a_byte_swapped_array_is_another_dtype(tmp_path: Path) -> None:
    text = refuse("E-DATA-012", tmp_path, save(tmp_path, "npz", {**RECORDS, "x": RECORDS["x"].astype(">i4")}))
    assert ">i4" in text


# Row 28 and 30


@pytest.mark.parametrize(
    "line, code",
    [
        ('{"x":[1,2,3],"y":1,"y":2}', "E-DATA-016"),
        ('{"x":[1,2,3],"y":NaN}', "E-DATA-016"),
        ('{"x":[1,2,3],"y":1e999}', "E-DATA-016"),
        ('{"x":[1,2,3],"y":Infinity}', "E-DATA-016"),
        ("[" * 100 + "]" * 100, "E-DATA-016"),
        ("[" * 200_000, "E-DATA-016"),
        ('{"x":[1,2,3],"y":0.5', "E-DATA-016"),
        ("[1,2]", "E-DATA-016"),
        ('"text"', "E-DATA-016"),
        ('{"x":[1,2,3],"y":99999999999999999999999}', "E-DATA-016"),
        ('{"x":[1,2,3]}', "E-DATA-012"),
        ('{"x":[1,2],"y":0.5}', "E-DATA-012"),
        ('{"x":[1,2,[3]],"y":0.5}', "E-DATA-012"),
        ('{"x":[1,2,3.5],"y":0.5}', "E-DATA-012"),
        ('{"x":[1,2,true],"y":0.5}', "E-DATA-012"),
        ('{"x":[1,2,"3"],"y":0.5}', "E-DATA-012"),
        ('{"x":[1,2,null],"y":0.5}', "E-DATA-012"),
        ('{"x":[1,2,2147483648],"y":0.5}', "E-DATA-013"),
        ('{"x":[1,2,3],"y":1e39}', "E-DATA-013"),
        ('{"x":[1,2,100],"y":0.5}', "E-DATA-013"),
    ],
)
def test_row_28_a_bad_line_by_its_number(tmp_path: Path, line: str, code: str) -> None:
    good = '{"x":[1,2,3],"y":0.5,"note":"[[["}\n'
    (tmp_path / "rows.jsonl").write_text(good * 4 + line + "\n" + good)
    text = refuse(code, tmp_path, "rows.jsonl")
    assert "rows.jsonl:5" in text or "record 4" in text
    assert len(text) < 400


def test_row_28_a_line_of_100_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with open(path, "wb") as file:
        file.truncate(100 * 2**20)
    assert "rows.jsonl:1: the line is longer than" in refuse("E-DATA-016", tmp_path, "rows.jsonl")


def test_row_28_bad_utf8(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"x":[1,2,3],"\xff":1}\n')
    assert "rows.jsonl:1" in refuse("E-DATA-016", tmp_path, "rows.jsonl")


@pytest.mark.parametrize("name", ["w.pt", "w.pth", "w.pkl", "w.ckpt"])
def test_row_30_pickle_is_never_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(pickle.dumps([1]))
    text = refuse("E-DATA-011", tmp_path, name)
    assert "pickle" in text and "safetensors" in text


@pytest.mark.parametrize("kind", ["npz", "npy"])
def test_row_30_nor_inside_numpy_files(tmp_path: Path, kind: str) -> None:
    objects = np.array([Bomb() for _ in range(11)], dtype=object)
    source = save(tmp_path, kind, {**RECORDS, "y": objects})
    assert "pickle" in refuse("E-DATA-011", tmp_path, source)


class Bomb:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return pytest.fail, ("a pickle was loaded",)


def test_other_kinds_are_named(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("1,2\n")
    assert ".csv" in refuse("E-DATA-011", tmp_path, "rows.csv") and ".jsonl" in refuse(
        "E-DATA-011", tmp_path, "rows.csv"
    )


def corrupted(rng: random.Random, good: bytes) -> bytes:
    """``good`` with a few bits, bytes or words changed, put in or taken out."""
    data = bytearray(good)
    words = (b"\xff" * 8, b"\0" * 8, b"9" * 30, b"(", b"'", b"{", b"[", b"-1", b"1e999", b"None", b"|O", b"L", b"\n")
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data) + 1)
        word = rng.choice((rng.randbytes(rng.randint(1, 8)), rng.choice(words)))
        gone = rng.choice((0, len(word), rng.randint(1, 8), rng.choice((0, len(data)))))
        data[at : at + gone] = rng.choice((word, b""))
    return bytes(data)


@pytest.mark.parametrize("kind", ["npz", "packed", "npy", "safetensors", "jsonl"])
def test_what_a_reader_raises_over_bad_bytes_is_the_data_s_fault(tmp_path: Path, kind: str) -> None:
    """In one short line, whatever a library makes of them: some 20 kinds of exceptions came of NumPy and zipfile."""
    rng = random.Random(kind)
    if kind == "packed":
        np.savez_compressed(tmp_path / "rows.npz", **RECORDS)  # type: ignore[arg-type]
    source = "rows.npz" if kind == "packed" else save(tmp_path, kind)
    path = tmp_path / source / "x.npy" if kind == "npy" else tmp_path / source
    good, fields = path.read_bytes(), toy.loader("rows", source).fields
    with warnings.catch_warnings(action="error"):
        for _ in range(300):
            path.write_bytes(corrupted(rng, good))
            try:
                assert sources.memory_needed(sources.blobs(str(tmp_path), source, fields), fields) < 2**27
                load(tmp_path, source)
            except RunError as error:
                assert error.code.name.startswith("E-DATA") and len(str(error)) <= 300 and "\n" not in str(error)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<i4', 'fortran_order': False, 'shape': (-11, 3), }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (99999999999999999999999, 3), }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (9223372036854775807, 3), }",
        f"{{'descr': '<i4', 'fortran_order': False, 'shape': {(1,) * 2000}, }}",
        f"{{'descr': {[(f'field{n}', '<i4') for n in range(300)]}, 'fortran_order': False, 'shape': (11, 3), }}",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (11, 3), {}: 1 }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': ((11, 3), }",
        "{'descr': '\\0', 'fortran_order': False, 'shape': (11, 3), }",
        "{'descr': ('<i4', 3.5), 'fortran_order': False, 'shape': (11, 3), }",
        "{'descr': '<i4', 'fortran_order': 'x', 'shape': (11, 3), }",
        "(" * 3000,
        "11L " * 1000,
    ],
)
@pytest.mark.parametrize("kind", ["npz", "npy"])
def test_headers_of_all_kinds(tmp_path: Path, kind: str, header: str) -> None:
    save(tmp_path, "npy")
    text = header.encode() + b"\n"
    bad = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(132)
    (tmp_path / "rows/x.npy").write_bytes(bad)
    if kind == "npz":
        with zipfile.ZipFile(tmp_path / "rows.npz", "w") as archive:
            archive.write(tmp_path / "rows/x.npy", "x.npy")
            archive.write(tmp_path / "rows/y.npy", "y.npy")
    with pytest.raises(RunError) as caught:
        load(tmp_path, "rows" if kind == "npy" else "rows.npz")
    assert caught.value.code.name in ("E-DATA-010", "E-DATA-012") and len(str(caught.value)) <= 300


@pytest.mark.parametrize("how", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_archives_packed_otherwise_are_read_and_their_faults_told(tmp_path: Path, how: int) -> None:
    save(tmp_path, "npy")
    path = tmp_path / "rows.npz"
    with zipfile.ZipFile(path, "w", how) as archive:
        archive.write(tmp_path / "rows/x.npy", "x.npy")
        archive.write(tmp_path / "rows/y.npy", "y.npy")
    assert load(tmp_path, "rows.npz").count == 11
    good = path.read_bytes()
    for at in range(30, 120, 3):
        path.write_bytes(good[:at] + b"\xff\xff" + good[at + 2 :])
        with contextlib.suppress(RunError):
            load(tmp_path, "rows.npz")


def test_arrays_that_python_2_wrote_are_read_without_a_word(tmp_path: Path) -> None:
    save(tmp_path, "npy")
    path = tmp_path / "rows/x.npy"
    path.write_bytes(path.read_bytes().replace(b"(11, 3), } ", b"(11L, 3L),}"))
    with warnings.catch_warnings(action="error"):
        assert load(tmp_path, "rows").count == 11


# What lies beside the fields


@pytest.mark.parametrize("name", ["._x.npy", "z.npy", ".DS_Store", "x.npy~", "Thumbs.db"])
def test_what_lies_beside_the_files_of_the_fields_is_not_looked_at(tmp_path: Path, name: str) -> None:
    before = fingerprint([load(tmp_path, save(tmp_path, "npy"))])
    (tmp_path / "rows" / name).write_bytes(b"")
    assert fingerprint([load(tmp_path, "rows")]) == before
    (tmp_path / "rows/x.npy").unlink()
    text = refuse("E-DATA-012", tmp_path, "rows")
    assert "there is no field x" in text and "._x" not in text


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_what_a_file_holds_beside_the_fields_is_not_judged(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"rows.{kind}"
    if kind == "npz":
        np.savez(path, **RECORDS, other=np.array([Bomb()], object), id=np.array([2**64 - 1], np.uint64))  # type: ignore[arg-type]
    else:
        names = {**RECORDS, "a b": np.zeros(2, np.uint64), "id": np.zeros(3, np.uint16)}
        path.write_bytes(official(names))
    assert np.array_equal(load(tmp_path, path.name).batch(np.arange(11))["x"], RECORDS["x"])


def official(arrays: dict[str, np.ndarray]) -> bytes:
    from safetensors.numpy import save

    return save(arrays)


@settings(max_examples=200, deadline=None)
@given(kind=st.sampled_from(["npz", "safetensors", "jsonl"]), data=st.data())
def test_fuzz_only_run_errors_escape(tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject) -> None:
    folder = tmp_path_factory.getbasetemp()
    path = folder / save(folder, kind)
    bytes_ = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(bytes_) - 1))
        bytes_[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    path.write_bytes(bytes(bytes_))
    try:
        load(folder, path.name)
    except RunError as error:
        assert error.code.name.startswith("E-DATA")


# Batches


def test_a_pass_reads_in_order_and_drops_the_rest(tmp_path: Path) -> None:
    found = load(tmp_path, save(tmp_path, "npz"))
    batches = list(batches_in_order(found, None))
    assert [b["x"].shape[0] for b in batches] == [4, 4]
    assert np.array_equal(np.concatenate([b["x"] for b in batches]), RECORDS["x"][:8])
    assert len(list(batches_in_order(found, 1))) == 1 and len(list(batches_in_order(found, 9))) == 2


def test_the_feed_follows_the_order_from_any_position(tmp_path: Path) -> None:
    found = load(tmp_path, save(tmp_path, "npz"))
    order = Order(7, "rows", found.count, True)
    for position in (0, 8, 100):
        feed = Feed(found, order, position)
        for i in range(7):
            numbers = order.records(position + 4 * i, 4)
            assert np.array_equal(feed.next(lambda: None)["x"], RECORDS["x"][numbers])
        feed.close()


def test_an_error_in_the_feed_surfaces_in_the_caller(tmp_path: Path) -> None:
    found = load(tmp_path, save(tmp_path, "npz"))
    found.shards[0].columns["y"].setflags(write=True)
    found.shards[0].columns["y"][:] = np.nan
    feed = Feed(found, Order(7, "rows", found.count, True), 0)
    with pytest.raises(RunError) as caught:
        feed.next(lambda: None)
    assert caught.value.code.name == "E-DATA-014"
    feed.close()


def test_waiting_for_data_looks_for_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = load(tmp_path, save(tmp_path, "npz"))
    monkeypatch.setattr(Feed, "_work", lambda self: [self._requests.get(), self._requests.get()])
    feed = Feed(found, Order(7, "rows", found.count, True), 0)
    with pytest.raises(InterruptedError):
        feed.next(_stop)
    feed.close()


def _stop() -> None:
    raise InterruptedError


# Rows 35 to 38: safetensors


def raw(header: object, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def entry(start: int, stop: int, shape: list[int], dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1234567",
        (2**40).to_bytes(8, "little") + b"{}",
        (100).to_bytes(8, "little") + b"{}",
        raw(b"not json"),
        raw(b"\xff\xfe"),
        raw(b"[" * 100_000),
        raw([1]),
        raw({"a": entry(0, 8, [2]), "b": entry(4, 12, [2])}, bytes(12)),
        raw({"a": entry(4, 12, [2])}, bytes(12)),
        raw({"a": entry(0, 8, [2])}, bytes(12)),
        raw({"a": entry(0, 8, [2])}, bytes(4)),
        raw({"a": entry(0, 8, [3])}, bytes(8)),
        raw({"a": entry(-8, 0, [2])}),
        raw({"a": entry(0, 8, [-2])}, bytes(8)),
        raw({"a": entry(0, 8, [2**62, 2**62])}, bytes(8)),
        raw({"a": entry(0, 8, [2], "F128")}, bytes(8)),
        raw({"a": entry(0, 8, [2.0])}, bytes(8)),  # type: ignore[list-item]
        raw({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)),
        raw(b'{"a":%s,"a":%s}' % ((json.dumps(entry(0, 8, [2])).encode(),) * 2), bytes(8)),
        raw({"../../etc/passwd": entry(0, 8, [2])}, bytes(8)),
        raw({"a\0b": entry(0, 8, [2])}, bytes(8)),
        raw({"": entry(0, 8, [2])}, bytes(8)),
    ],
)
def test_rows_35_to_37_malformed_safetensors(data: bytes) -> None:
    """By our own checks, before the official library sees the bytes."""
    with pytest.raises(safetensors_io.BadTensors):
        safetensors_io.check(data)


def test_row_38_a_million_tensors_are_refused_fast() -> None:
    data = raw(b"{" + b",".join(b'"%d":0' % i for i in range(100_001)) + b"}")
    with pytest.raises(safetensors_io.BadTensors, match="100001 tensors"):
        safetensors_io.load(data)


def test_every_dtype_is_written_as_the_official_library_writes_it_and_nothing_is_copied() -> None:
    from safetensors import TensorSpec, serialize

    arrays = {
        f"{name}{n}": np.full((n, 3), 1, safetensors_io.dtype(name)) for name in safetensors_io.DTYPES for n in (2, 1)
    }
    arrays |= {"a.b/c-d": np.full((), 3, "float32"), "none": np.zeros((0, 3), "float32")}
    specs = {
        name: TensorSpec(dtype=a.dtype.name, shape=a.shape, data_ptr=a.ctypes.data, data_len=a.nbytes)
        for name, a in arrays.items()
    }
    assert safetensors_io.dump(arrays) == bytes(serialize(specs))
    turned = np.arange(6, dtype="int32").reshape(2, 3).T
    np.testing.assert_array_equal(safetensors_io.load(safetensors_io.dump({"t": turned}))["t"], turned)
    weight = np.ones((5, 7), "float32")
    assert np.shares_memory(np.asarray(safetensors_io.parts({"w": weight})[1]), weight)


def test_safetensors_are_those_of_the_official_library(tmp_path: Path) -> None:
    from safetensors.numpy import load as official_load
    from safetensors.numpy import save as official_save

    assert safetensors_io.dump(RECORDS) == official_save(RECORDS)
    found = official_load(safetensors_io.dump(RECORDS))
    assert all(np.array_equal(found[name], RECORDS[name]) for name in RECORDS)
    assert all(
        np.array_equal(a, RECORDS[name]) for name, a in safetensors_io.load(official_save(RECORDS, {"k": "v"})).items()
    )
