"""Lines of JSON: what is judged of them, and that good lines are not looked at one by one."""

from __future__ import annotations

import json
import os
import pty
import random
import select
from pathlib import Path

import numpy as np
import pytest

from artifacts import reporting
from artifacts.data import jsonl
from artifacts.data.jsonl import max_records
from artifacts.format import manifest as m
from tests.artifacts.test_data import load, refuse

GOOD = '{"x":[1,2,3],"y":0.5%s}\n'
X = m.Field("x", (3,), "i32", 0, 100)
Y = m.Field("y", (), "f32", None, None)


def write(folder: Path, *lines: str, mark: bytes = b"") -> None:
    (folder / "rows.jsonl").write_bytes(mark + "".join(lines).encode("utf-8", "surrogatepass"))


UNREAD = {
    "an id of 64 bits without a sign": '"id":18446744073709551615',
    "an integer of 5,000 digits": '"id":' + "9" * 5000,
    "a number beyond f64": '"id":1e999',
    "text": '"id":"some text, with \\"quotes\\", a \\\\ and \\u00e4"',
    "half of a pair": '"id":"\\ud800"',
    "a colon": '"id":"\\"x\\": 1"',
    "nothing": '"id":null',
    "an object": '"id":{"a":[{}],"b":{"c":null}}',
    "a field of the same name within": '"id":{"x":[1],"y":{}}',
    "lists": '"id":[[],[[1,"a"]],true]',
    "a deep one": '"id":' + "[" * 100 + "]" * 100,
    "NaN, which Python writes": '"id":NaN,"other":-Infinity',
    "a key given twice": '"id":1,"id":2',
    "a long key": f'"{"k" * 5000}":1',
}


@pytest.mark.parametrize("what", UNREAD)
def test_what_no_field_reads_is_not_judged(tmp_path: Path, what: str) -> None:
    write(tmp_path, GOOD % "", GOOD % f",{UNREAD[what]}", *[GOOD % ""] * 6)
    found = load(tmp_path, "rows.jsonl")
    assert found.count == 8 and found.batch(np.arange(8))["x"].tolist() == [[1, 2, 3]] * 8


REFUSED = {
    '{"x":[1,2,3],"y":18446744073709551615}': ("E-DATA-016", "y holds 18446744073709551615, which does not fit 64"),
    '{"x":[1,2,18446744073709551615],"y":1}': ("E-DATA-016", "x holds 18446744073709551615, which does not fit 64"),
    '{"x":[1,2,3],"y":' + "9" * 5000 + "}": ("E-DATA-016", "y holds 999"),
    '{"x":[1,2,3],"y":-Infinity}': ("E-DATA-016", "y holds -Infinity, which is not finite"),
    '{"x":[1,2,3],"y":1e999}': ("E-DATA-016", "y holds inf, which is not finite"),
    '{"x":[1,2,3],"y":"' + "a" * 5000 + '"}': ("E-DATA-012", "y is not a number"),
    '{"x":[1,2,3],"y":null}': ("E-DATA-012", "y is not a number"),
    '{"x":[1,2,3],"y":true}': ("E-DATA-012", "y holds True, which is not f32"),
    '{"x":[1,2,3],"y":1,"\\u0079":2}': ("E-DATA-016", "the key y is given twice"),
    '{"y":1,"x":[1,2,3],"y" : 2}': ("E-DATA-016", "the key y is given twice"),
    '{"x":[1,2,3],"z":{"y":1}}': ("E-DATA-012", "there is no field y"),
    '{"x":[1,2,3],"y":1}{}': ("E-DATA-016", "not JSON: there is more after the value, at character 19"),
    '{"x":[1,2,3],"y":1},': ("E-DATA-016", "not JSON: there is more after the value, at character 19"),
    '{"x":[1,2,3],"y":1,"' + "k" * 5000 + '"': ("E-DATA-016", "not JSON: "),
    '{"x":[1,2,3.0],"y":1}': ("E-DATA-012", "x holds 3.0, which is not i32"),
    '{"x":[true,2,3],"y":1}': ("E-DATA-012", "x holds True, which is not i32"),
    '{"x":[1,2,-2147483649],"y":1}': ("E-DATA-013", "x holds -2147483649, which does not fit i32"),
    '{"x":[1,2,3],"y":[1]}': ("E-DATA-012", "y is not a number"),
    '{"x":7,"y":1}': ("E-DATA-012", "x does not have the shape [3] of numbers"),
    '\ufeff{"x":[1,2,3],"y":1}': ("E-DATA-016", "a byte order mark (U+FEFF) stands before the line"),
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_refused_is_named_with_its_key_and_line(tmp_path: Path, line: str) -> None:
    """The first of two faulty lines, whatever is wrong with the other one; blank lines are counted."""
    code, words = REFUSED[line]
    write(tmp_path, GOOD % "", "\n", GOOD % "", line + "\n", GOOD % "", "{\n")
    text = refuse(code, tmp_path, "rows.jsonl")
    assert f"rows.jsonl:4: {words}" in text and len(text) < 300


def test_a_line_far_down_is_named_by_its_number(tmp_path: Path) -> None:
    count = 3 * jsonl.CHUNK // len(GOOD)
    write(tmp_path, *[GOOD % ""] * count, "\r\n", GOOD % "", "{]\n", GOOD % "")
    assert f"rows.jsonl:{count + 3}: not JSON" in refuse("E-DATA-016", tmp_path, "rows.jsonl")
    write(tmp_path, *[GOOD % ""] * count, " " * (jsonl.MAX_LINE + 1))
    assert f"rows.jsonl:{count + 1}: the line is longer" in refuse("E-DATA-016", tmp_path, "rows.jsonl")


def test_two_faulty_lines_do_not_make_a_good_one(tmp_path: Path) -> None:
    """As many values as lines, if the lines were joined with commas."""
    write(tmp_path, GOOD % "", '{"x":[1,2,3],"y":1,"z":[{}\n', "{}]}\n", (GOOD % "").strip() + "," + GOOD % "")
    assert "rows.jsonl:2: not JSON" in refuse("E-DATA-016", tmp_path, "rows.jsonl")


def test_a_byte_order_mark_before_the_first_line_is_skipped(tmp_path: Path) -> None:
    write(tmp_path, *[GOOD % ""] * 8, mark=b"\xef\xbb\xbf")
    assert load(tmp_path, "rows.jsonl").count == 8
    write(tmp_path, "{}\n", mark=b"\xef\xbb\xbf")
    assert "rows.jsonl:1: there is no field x" in refuse("E-DATA-012", tmp_path, "rows.jsonl")
    (tmp_path / "rows.jsonl").write_text(GOOD % "", encoding="utf-16")
    text = refuse("E-DATA-016", tmp_path, "rows.jsonl")
    assert "rows.jsonl:1: the text is UTF-16 (save it as UTF-8)" in text


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n", " \t\n", "\n   \n"])
def test_line_ends_and_blank_lines(tmp_path: Path, end: str) -> None:
    line = (GOOD % "").strip()
    write(tmp_path, end.join([line] * 9))
    assert load(tmp_path, "rows.jsonl").count == 9
    write(tmp_path, "\n" * 500, end.join([line] * 9), "\n" * 500)
    assert load(tmp_path, "rows.jsonl").count == 9


def test_good_lines_are_not_looked_at_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even beside text with escapes: a call of Python's for each object or number takes more than all the rest."""

    def fail(*_: object) -> None:
        pytest.fail("a line was looked at alone")

    for name in ("_strict_decode", "_check", "_parse", "_object", "_integer"):
        monkeypatch.setattr(jsonl, name, fail)
    count = 2 * jsonl.CHUNK // len(GOOD)
    write(tmp_path, *[GOOD % ',"t":"a \\"x\\": [\\n], \\u00e4","n":7,"e":1e5'] * count)
    assert load(tmp_path, "rows.jsonl").count == count


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64", "i8", "u8", "i32", "u32", "i64", "bool"])
def test_numbers_are_those_that_numpy_makes_of_them(tmp_path: Path, dtype: str) -> None:
    from artifacts.base import safetensors_io

    rng, kind = random.Random(1), safetensors_io.dtype(dtype)
    if dtype == "bool":
        values: list[object] = [rng.random() < 0.5 for _ in range(60)]
    elif dtype in safetensors_io.FLOATS:
        values = [rng.choice((rng.gauss(0, 1), rng.randrange(-99, 99), 1e-7 * rng.random(), -0.0)) for _ in range(60)]
    else:
        limits = np.iinfo(kind)
        values = [int(limits.min), int(limits.max), *(rng.randint(limits.min, limits.max) for _ in range(58))]
    write(tmp_path, *(json.dumps({"v": values[i : i + 2]}) + "\n" for i in range(0, 60, 2)))
    found = load(tmp_path, "rows.jsonl", fields=(m.Field("v", (2,), dtype, None, None),))
    made = found.batch(np.arange(30))["v"]
    assert made.dtype == kind and made.tobytes() == np.array(values, kind).tobytes()


def test_a_file_cannot_hold_more_records_than_are_reckoned_with() -> None:
    line = '{"x":[0,0,0],"y":0}'
    for count in (1, 2, 7):
        assert max_records(10**9, len(line) * count, (X, Y)) == count + 1
        assert max_records(count - 1, 10**9, (X, Y)) == count


def test_reading_is_shown_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with open(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr("sys.stderr", terminal)
        patch.setattr(reporting, "PROGRESS_PERIOD", -1.0)
        patch.setenv("TERM", "xterm")
        with reporting.reading(reporting.Console(), "rows") as tick:
            tick(3 * 2**20)
        with reporting.reading(reporting.Console(as_json=True), "rows") as tick:
            tick(7 * 2**20)
        text = ""
        while not text.endswith("\r\x1b[K"):  # a terminal hands over what there is so far
            assert select.select([ours], [], [], 10)[0], text
            text += os.read(ours, 1000).decode()
    os.close(ours)
    assert "loader rows: 3 MiB read" in text and "7 MiB" not in text
