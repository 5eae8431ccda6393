"""The reader: rows 1 to 12 of the table of bad inputs, its limits, its recovery, and that it never raises."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sexpgpu.language import reader
from sexpgpu.language.codes import READ_FILE, READ_SIZE
from sexpgpu.language.diagnostics import MAX_FAULTS, Report, clause
from sexpgpu.language.forms import Form, Keyword, Literal, Seq, Symbol
from sexpgpu.language.reader import read, read_file
from sexpgpu.language.source import Source
from sexpgpu.phases.identity import canonical
from tests.support import CHARACTERS

FUZZ = settings(max_examples=1000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
GOOD = '(def a "x\\"y")\n(defun f (x &key (k 1.5e-3)) [x :k -7 nil true] #| c #| d |# |# ; e\n  (-> x (g)))\n'


def forms(text: str) -> list[Form]:
    report = Report()
    out = read(Source("run.sx", text), report)
    assert not report, "\n".join(map(str, report.errors))
    return out


def faults(text: str) -> list[str]:
    """``CODE line:column`` of every fault."""
    report = Report()
    read(Source("run.sx", text), report)
    return places(report)


def places(report: Report) -> list[str]:
    return [f"{e.code.name} {':'.join(map(str, e.span.line_column())) if e.span else '-'}" for e in report.errors]


def texts(text: str) -> tuple[list[str], list[str]]:
    """(the sound forms as text, the faults)."""
    report = Report()
    out = read(Source("run.sx", text), report)
    return [canonical(form) for form in out], places(report)


def rendered(text: str) -> str:
    report = Report()
    read(Source("run.sx", text), report)
    return "\n".join(map(str, report.errors))


def file_faults(path: Path | str) -> list[str]:
    report = Report()
    source = read_file(str(path), report)
    assert (source is None) == bool(report)
    return [e.line() for e in report.errors]


# ---- data


def test_every_kind_of_datum() -> None:
    [form] = forms('(a* :k 1 -2 +3 1.5 1e-3 -2.5E+2 "s" true false nil [x [y]] m^ -> <= &key ())')
    assert isinstance(form, Seq)
    values = [i.value for i in form.items if isinstance(i, Literal)]
    assert [(type(v), v) for v in values] == [
        (int, 1), (int, -2), (int, 3), (float, 1.5), (float, 0.001), (float, -250.0), (str, "s"),
        (bool, True), (bool, False), (type(None), None),
    ]  # fmt: skip
    assert [i.name for i in form.items if isinstance(i, Symbol)] == ["a*", "m^", "->", "<=", "&key"]
    assert [i.name for i in form.items if isinstance(i, Keyword)] == ["k"]
    assert [(i.bracket, len(i.items)) for i in form.items if isinstance(i, Seq)] == [("[", 2), ("(", 0)]


def test_the_ends_of_i64_and_f64_are_read() -> None:
    text = "[9223372036854775807 -9223372036854775808 1.7976931348623157e308 5e-324 -0.0 0000000000000000000000001]"
    read_back = "[9223372036854775807 -9223372036854775808 1.7976931348623157e+308 5e-324 -0.0 1]"
    assert canonical(forms(text)[0]) == read_back


def test_escapes() -> None:
    [form] = forms(r'("a\"b\\c\nd\te")')
    assert isinstance(form, Seq) and form.items[0] == Literal('a"b\\c\nd\te', span=form.span)


def test_every_datum_has_its_span() -> None:
    text = '(def a\n  [1 "two" :three])'
    [form] = forms(text)
    assert isinstance(form, Seq) and isinstance(form.items[2], Seq)
    spans = [f.span for f in (form, *form.items, *form.items[2].items)]
    cut = [text[s.start : s.end] for s in spans]
    assert cut == [text, "def", "a", '[1 "two" :three]', "1", '"two"', ":three"]
    assert spans[4].line_column() == (2, 4) and spans[4].place() == "run.sx:2:4"


def test_comments_stand_anywhere_and_nest() -> None:
    assert texts("(a;b)\n c #|x #| ; |# \" |# d) #||# e") == (["(a c d)", "e"], [])


def test_text_beyond_ascii_may_stand_in_names_strings_and_comments() -> None:
    assert texts('(größe "日本" :π) ; ☃ \u200d') == (['(größe "\\u65e5\\u672c" :π)'], [])


# ---- the table of bad inputs, by row


CHECK, SMALL = clause(READ_FILE.fix), clause(READ_SIZE.fix)


def test_row_1_missing_directory_unreadable(tmp_path: Path) -> None:
    assert file_faults(tmp_path / "no.sx") == [f"error[E-READ-001]: {tmp_path}/no.sx: no such file ({CHECK})"]
    assert file_faults(tmp_path) == [f"error[E-READ-001]: {tmp_path}: is a directory ({CHECK})"]
    assert file_faults("a\0b") == [f"error[E-READ-001]: a\\x00b: is not a path: it holds a NUL ({CHECK})"]
    assert file_faults("x" * 5000) == [f"error[E-READ-001]: {'x' * 5000}: cannot be read: File name too long ({CHECK})"]


def test_row_1_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.sx"
    path.write_text("(def a 1)")
    path.chmod(0)
    if os.access(path, os.R_OK):  # root reads everything, so the system's refusal is played
        monkeypatch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "no")))
    assert file_faults(path) == [f"error[E-READ-001]: {path}: cannot be read: Permission denied ({CHECK})"]


@pytest.mark.parametrize("text", ["", "\n\t ", "; only\n#| comments |#"])
def test_row_2_no_forms(text: str) -> None:
    assert texts(text) == ([], [])  # the run file's loader adds E-READ-002: an include may be empty


def test_row_3_unclosed_points_at_the_opening_bracket() -> None:
    assert faults("(a)\n  (b\n (c)") == ["E-READ-003 2:3"]
    assert faults("[a (b)") == ["E-READ-003 1:1"]


def test_row_4_a_bracket_that_closes_nothing() -> None:
    assert texts("(a))\n(b) ]") == (["(a)", "(b)"], ["E-READ-004 1:4", "E-READ-004 2:5"])


def test_row_4_a_bracket_that_closes_another_kind() -> None:
    assert texts("(a [1 2) b)\n(c)") == (["(c)"], ["E-READ-004 1:8"])
    assert texts("(a (b c])\n(d)") == (["(d)"], ["E-READ-004 1:8"])
    assert texts("(a [1 2)\n(c)") == (["(c)"], ["E-READ-004 1:8"])


def test_row_5_an_unterminated_string_or_comment() -> None:
    assert faults('(a\n "b c)') == ["E-READ-005 2:2"]
    assert faults("(a) #| b #| c |#") == ["E-READ-005 1:5"]


def test_row_6_a_hundred_thousand_brackets() -> None:
    for text in ("(" * 100_000, "(" * 100_000 + ")" * 100_000, "[(" * 50_000):
        begin = time.process_time()
        assert faults(text) == ["E-READ-006 1:257"]
        assert time.process_time() - begin < 1  # the row's own bound; about 0.1 s here
    assert len(forms("(" * 256 + ")" * 256)) == 1


def test_row_7_integers_beyond_i64() -> None:
    text = f"[{'1' * 5000} {2**63} {-(2**63) - 1}]"
    assert faults(text) == ["E-READ-007 1:2", "E-READ-007 1:5003", "E-READ-007 1:5023"]
    assert len(rendered("1" * 5000)) < 400


def test_row_8_numbers_that_are_not_finite() -> None:
    assert faults("(a 1e400 -1e309 nan inf -Infinity NaN)") == [
        f"E-READ-008 1:{column}" for column in (4, 10, 17, 21, 25, 35)
    ]


def test_row_9_bytes_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "run.sx"

    def of(data: bytes) -> list[str]:
        path.write_bytes(data)
        return [line.removeprefix("error").replace(str(path), "F") for line in file_faults(path)]

    assert of(b"(a)\r\n(\xc3\xa9 \xff)") == ["[E-READ-009]: F:2:4: byte 9 (0xff) is not UTF-8 (save the file as UTF-8)"]
    assert of(b"(a\0b) \xff") == ["[E-READ-009]: F:1:3: byte 2 is a NUL"]
    assert of(b"(\xed\xa0\x80)") == ["[E-READ-009]: F:1:2: byte 1 (0xed) is not UTF-8 (save the file as UTF-8)"]
    utf16 = "[E-READ-009]: F:1:1: byte 0 (0xff) is not UTF-8 (the file looks like UTF-16)"
    assert of(b"\xff\xfe" + "(a)".encode("utf-16-le")) == [utf16]


def test_row_9_one_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "run.sx"
    path.write_bytes(b"\xef\xbb\xbf(a)")
    source = read_file(str(path), Report())
    assert source and source.text == "(a)"
    path.write_bytes(b"\xef\xbb\xbf\xef\xbb\xbf(a)")
    source = read_file(str(path), Report())
    assert source and faults(source.text) == ["E-READ-010 1:1"]


def test_row_10_crlf_gives_the_same_forms_at_the_same_places(tmp_path: Path) -> None:
    made = []
    for name, text in (("lf.sx", GOOD), ("crlf.sx", GOOD.replace("\n", "\r\n"))):
        (tmp_path / name).write_bytes(text.encode())
        source = read_file(str(tmp_path / name), Report())
        assert source
        made.append([(canonical(f), f.span.line_column(), f.span.end) for f in read(source, Report())])
    assert made[0] == made[1] and len(made[0]) == 2


@pytest.mark.parametrize(
    "char, name",
    [
        ("\f", "U+000C (FORM FEED)"),
        ("\v", "U+000B (LINE TABULATION)"),
        ("\x1b", "U+001B (ESCAPE)"),
        ("\u00a0", "U+00A0 (NO-BREAK SPACE)"),
        ("\u00ad", "U+00AD (SOFT HYPHEN)"),
        ("\u200b", "U+200B (ZERO WIDTH SPACE)"),
        ("\u202e", "U+202E (RIGHT-TO-LEFT OVERRIDE)"),
        ("\u3000", "U+3000 (IDEOGRAPHIC SPACE)"),
        ("\ufeff", "U+FEFF (ZERO WIDTH NO-BREAK SPACE)"),
        ("\r", "U+000D (CARRIAGE RETURN)"),
        ("\ue000", "U+E000 (Co)"),
    ],
)
def test_row_10_a_character_that_is_not_allowed(char: str, name: str) -> None:
    report = Report()
    assert [canonical(f) for f in read(Source("run.sx", f"(ok)\n(a{char}b)"), report)] == ["(ok)"]
    assert [(e.code.name, e.span and e.span.line_column(), e.message) for e in report.errors] == [
        ("E-READ-010", (2, 3), f"the character {name} is not allowed here")
    ]


@pytest.mark.parametrize("char", ["\u202a", "\u202e", "\u2066", "\u2069", "\u200f", "\u2028", "\x85", "\r", "\ud800"])
def test_row_10_text_that_reads_other_than_it_looks_is_refused_everywhere(char: str) -> None:
    assert faults(f'; {char}\n(a "{char}") #|{char}|#') == ["E-READ-010 1:3", "E-READ-010 2:5", "E-READ-010 2:11"]


def test_row_10_other_control_characters_may_stand_in_strings_and_comments() -> None:
    assert texts('(a "\f\u200b") ; \x07') == (['(a "\\f\\u200b")'], [])


def test_row_11_a_source_too_large(tmp_path: Path) -> None:
    path = tmp_path / "run.sx"
    with open(path, "wb") as file:
        file.truncate(2**30)  # sparse
    begin = time.process_time()
    assert file_faults(path) == [f"error[E-READ-011]: {path}: is larger than 16 MiB ({SMALL})"]
    assert time.process_time() - begin < 2  # the table's bound on any bad input
    path.write_bytes(b" " * (16 * 2**20))
    assert file_faults(path) == []


def test_row_11_what_is_not_a_regular_file_is_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", "/dev/zero", "/dev/null"):
        assert file_faults(path) == [f"error[E-READ-011]: {path}: is not a regular file ({SMALL})"]


@pytest.mark.parametrize(
    "text, column, words",
    [
        ("(a #.(b))", 4, "read-time evaluation (#.)"),
        ("(a `(b))", 4, "backquote (`)"),
        ("(a '(b))", 4, "quote (')"),
        ("(a 'b)", 4, "quote (')"),
        ("(a ,b)", 4, "comma (,)"),
        ("(a #(1 2))", 4, "vector syntax (#()"),
        ("(a #'f)", 4, "function quote (#')"),
        ("(a |x|)", 4, "symbol quotes (|)"),
        ("(a . b)", 4, "a dotted pair (.)"),
        ("(a ...)", 4, "a name of dots only"),
        ("(a #+x)", 4, "dispatch syntax (#)"),
        ("(a {b})", 4, "a brace or backslash"),
        ("(a x:y)", 4, "a colon inside a name"),
        ("(a : b)", 4, "a colon alone"),
        ('(a "b\\qc")', 6, "the escape \\q is not known"),
    ],
)
def test_row_12_syntax_of_other_lisps_is_named(text: str, column: int, words: str) -> None:
    report = Report()
    assert read(Source("run.sx", text), report) == []
    assert places(report) == [f"E-READ-012 1:{column}"]
    assert words in report.errors[0].message


def test_row_12_what_a_quote_stands_before_is_no_form() -> None:
    assert texts("'(a b)\n`(c)\n#(d) (e)") == (["(e)"], ["E-READ-012 1:1", "E-READ-012 2:1", "E-READ-012 3:1"])


@pytest.mark.parametrize(
    "text, hint",
    [
        (".5", "write 0.5"),
        ("-.5e3", "write -0.5e3"),
        ("1.", "write 1.0"),
        ("1.e5", "write 1.0e5"),
        ("1/2", "write (/ 1 2)"),
        ("0x10", "a name does not begin like a number"),
        ("1_000", "a name does not begin like a number"),
    ],
)
def test_row_12_what_is_nearly_a_number_says_what_to_write(text: str, hint: str) -> None:
    report = Report()
    read(Source("run.sx", f"(a {text})"), report)
    assert [(e.code.name, e.hint) for e in report.errors] == [("E-READ-012", hint)]


def test_digits_of_other_scripts_are_not_numbers() -> None:
    assert texts("(a ٣)") == (["(a ٣)"], [])  # a name like any other; nothing binds it


# ---- limits


def test_limits_of_strings_names_and_data(monkeypatch: pytest.MonkeyPatch) -> None:
    assert faults(f'("{"s" * 2**20}" {"n" * 256} :{"k" * 255})') == []
    assert faults(f'("{"s" * (2**20 + 1)}")') == ["E-READ-014 1:2"]
    assert faults(f"({'n' * 257})") == ["E-READ-014 1:2"]
    monkeypatch.setattr(reader, "MAX_DATA", 3)
    assert texts("(a b)") == (["(a b)"], [])
    assert texts("(a b) (c)") == (["(a b)"], ["E-READ-014 1:8"])


def test_faults_end_at_a_hundred() -> None:
    begin = time.process_time()
    for text in (")" * 200_000, "(\n" * 200_000, "\u202e" * 200_000, '"\n(' * 50_001, "' " * 100_000):
        assert 0 < len(faults(text)) <= MAX_FAULTS
    assert time.process_time() - begin < 10  # two passes at most over each; about 1 s here


def test_half_a_megabyte_is_read_in_under_a_second_of_processor_time() -> None:
    text = '(defun f (x y) (let* ((a (+ x 1)) (b (* y 2.5))) (linear a :name "string" b)))\n' * 6400
    begin = time.process_time()
    assert len(forms(text)) == 6400
    assert time.process_time() - begin < 2  # about 0.5 s on an idle machine; four times that on a shared one


# ---- recovery


def test_every_faulty_form_is_reported_and_the_others_are_kept() -> None:
    text = "(a 1)\n(b .5)\n(c 'x)\n(d\n  (e 1)\n(f 2)\n(g 1e999)\n(h [k)\n(i)\n(j \"k)"
    sound, found = texts(text)
    assert sound == ["(a 1)", "(f 2)", "(i)"]
    places = ("012 2:4", "012 3:4", "003 4:1", "008 7:4", "004 8:6", "005 10:4")
    assert found == [f"E-READ-{place}" for place in places]


def test_brackets_in_column_1_are_trusted_only_when_a_form_does_not_end() -> None:
    assert texts("(list\n(a)\n(b))\n(c)") == (["(list (a) (b))", "(c)"], [])


def test_an_unterminated_string_ends_at_the_next_form() -> None:
    text = '(def a "x)\n(def b "y")\n(def c "z\n(not a form)")'
    assert texts(text)[1][0] == "E-READ-005 1:8"
    assert texts(text)[0][0] == '(def b "y")'
    assert faults('(def a "x)\n(def b "it\'s .5")') == ["E-READ-005 1:8"]  # what a string holds is not read as code
    assert texts('(def a "two\n(lines)")') == (['(def a "two\\n(lines)")'], [])


def test_an_unclosed_form_with_others_open_inside_shows_both() -> None:
    assert rendered("(def f\n  (g (h)\n\n(def k 1)") == (
        "error[E-READ-003]: run.sx:1:1: ( is not closed before the next form\n"
        "    (def f\n"
        "    ^\n"
        "  note: run.sx:2:3: this one inside it is open too\n"
        "      (g (h)\n"
        "      ^"
    )


# ---- the shown text


def test_a_fault_is_shown_with_its_line_and_a_caret() -> None:
    assert rendered("(def a\n  [1 2)\n)") == (
        "error[E-READ-004]: run.sx:2:7: ) does not close [ (write ])\n"
        "      [1 2)\n"
        "          ^\n"
        "  note: run.sx:2:3: this [ is open\n"
        "      [1 2)\n"
        "      ^"
    )


def test_nothing_in_the_text_can_forge_a_line_or_drive_a_terminal() -> None:
    shown = rendered('(a "\x1b[31m" b\u00a0c) ; \x07')
    assert shown.isascii() is False and "\x1b" not in shown and "\x07" not in shown
    assert shown.split("\n")[1:] == ['    (a "·[31m" b·c) ; ·', "                ^"]


def test_of_a_long_line_the_part_around_the_fault_is_shown() -> None:
    shown = rendered(f"({'a ' * 5000}.5 {'b ' * 5000})").split("\n")
    assert max(map(len, shown)) < 300
    line, caret = shown[1:]
    assert line[caret.index("^") : caret.rindex("^") + 1] == ".5"


# ---- it never raises


def check_reads(text: str) -> None:
    report = Report()
    out = read(Source("run.sx", text), report)
    for error in report.errors:
        assert error.line() and str(error)
    for form in out:
        assert text[form.span.start : form.span.end]
    again = " ".join(map(canonical, out))
    if "\\" not in again:  # canonical text escapes more than the reader knows
        assert " ".join(map(canonical, forms(again))) == again


PIECES = st.sampled_from(
    [*"()[]\"\\;\n '`,:.1-a{#é\r\u202e\u00a0", "#|", "|#", "e9", "nil", "def", "&key", "\n(", "9" * 20]
)


@FUZZ
@given(st.lists(PIECES, max_size=40).map("".join) | st.text(CHARACTERS, max_size=40))
def test_any_text_gives_forms_or_faults(text: str) -> None:
    check_reads(text)


@settings(FUZZ, max_examples=400)  # the text is short: more changes of it reach no other line of the reader
@given(st.integers(0, len(GOOD)), st.integers(0, 8), st.lists(PIECES, max_size=3).map("".join))
def test_any_change_of_a_good_text_gives_forms_or_faults(at: int, gone: int, new: str) -> None:
    check_reads(GOOD[:at] + new + GOOD[at + gone :])


@settings(FUZZ, max_examples=300)
@given(data=st.binary(max_size=60))
def test_any_bytes_give_a_text_or_a_fault(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.sx"
    path.write_bytes(data)
    report = Report()
    source = read_file(str(path), report)
    assert (source is None) == (len(report.errors) == 1)
    if source:
        check_reads(source.text)
