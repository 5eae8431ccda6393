"""Text to forms. Iterative, bounded, and never silent: any bytes give forms or faults.

A faulty top-level form is left out of the answer and reading goes on behind it, so that one run reports every one.
Where brackets or quotes do not match, an opening bracket in column 1 is taken as the start of the next form.
"""

from __future__ import annotations

import errno
import gc
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from attrs import define, field

from . import codes as c
from .atoms import (
    CONSTANTS,
    ESCAPE,
    ESCAPES,
    FLOAT,
    FORBIDDEN,
    FOREIGN,
    INTEGER,
    NOT_FINITE,
    NUMBER_LIKE,
    UNPLAIN,
    character_name,
    number_hint,
)
from .diagnostics import MAX_FAULTS, Code, Report, UserError, shorten
from .forms import Form, Keyword, Literal, Seq, Symbol
from .source import Source, Span

MAX_BYTES = 16 * 2**20
MAX_DEPTH = 256
MAX_DATA = 1_000_000
MAX_STRING = 2**20
MAX_NAME = 256

PAIR = {"(": ")", "[": "]"}
PREFIXES = ("'", "`", ",", "@", "#", ".")  # of other Lisps: with one, the bracket behind it is no form of its own
# Blanks and comments, then at most one token. A plain name is only a short cut past the questions an atom is asked.
TOKEN = re.compile(
    r"""(?:[ \t\n]++|;[^\n]*+)*+
    (?:(?P<open>[(\[])|(?P<close>[)\]])
    |(?P<name>[a-z][a-z0-9*^-]*+(?=[ \t\n()\[\]]))
    |(?P<string>"[^"\\]*+(?:\\.[^"\\]*+)*+")|(?P<quote>")
    |(?P<block>\#\|)
    |(?P<atom>[^ \t\n()\[\]";]+)|\Z)""",
    re.VERBOSE | re.DOTALL,
)
BLOCK_EDGE = re.compile(r"#\||\|#")
COLUMN_1 = re.compile(r"^[(\[]", re.MULTILINE)


def read_file(path: str, report: Report) -> Source | None:
    """The text of the file at ``path``, line ends as LF and without a byte order mark; None when a fault was added.

    E-READ-001 missing, a directory or not readable; E-READ-009 not UTF-8 or a NUL; E-READ-011 too large, or not a
    regular file (a fifo or device is never waited for).
    """
    data = read_bytes(path, report)
    if data is None:
        return None
    data = data.removeprefix(b"\xef\xbb\xbf")
    shown = Source(path, unix(data.decode("utf-8", "replace")))
    nul = data.find(b"\0")
    try:
        data[: nul if nul >= 0 else None].decode("utf-8")
    except UnicodeDecodeError as fault:
        utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff")
        hint = "the file looks like UTF-16" if utf16 else "save the file as UTF-8"
        bad = f"byte {fault.start} (0x{data[fault.start]:02x}) is not UTF-8"
        report.add(UserError(c.READ_BYTES, at_byte(shown, data, fault.start), bad, hint=hint))
        return None
    if nul >= 0:
        report.add(UserError(c.READ_BYTES, at_byte(shown, data, nul), f"byte {nul} is a NUL"))
        return None
    return shown


def read_bytes(path: str, report: Report) -> bytes | None:
    """At most MAX_BYTES of a regular file, without waiting on any other kind; None when a fault was added."""

    def fault(code: Code, message: str) -> None:
        report.add(UserError(code, None, message, where=path))

    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            mode = os.fstat(handle).st_mode
            data = file.read(MAX_BYTES + 1) if stat.S_ISREG(mode) else b""
    except (OSError, ValueError) as reason:
        return fault(c.READ_FILE, why_unread(reason))
    if stat.S_ISDIR(mode):
        return fault(c.READ_FILE, "is a directory")
    if not stat.S_ISREG(mode):
        return fault(c.READ_SIZE, "is not a regular file")
    if len(data) > MAX_BYTES:
        return fault(c.READ_SIZE, f"is larger than {MAX_BYTES // 2**20} MiB")
    return data


def why_unread(reason: OSError | ValueError) -> str:
    """What to say of a file that cannot be opened, after its path."""
    if isinstance(reason, ValueError):
        return "is not a path: it holds a NUL"
    if reason.errno == errno.EISDIR:
        return "is a directory"
    return "no such file" if reason.errno == errno.ENOENT else f"cannot be read: {os.strerror(reason.errno or 0)}"


def unix(text: str) -> str:
    """``text`` with CRLF line ends as LF."""
    return text.replace("\r\n", "\n")


def at_byte(shown: Source, data: bytes, offset: int) -> Span:
    """The place in ``shown``, which was decoded from ``data``, of the byte at ``offset``."""
    start = len(unix(data[:offset].decode("utf-8", "replace")))
    return Span(shown, start, start + 1)


def read(source: Source, report: Report) -> list[Form]:
    """The sound top-level forms of ``source``; every fault is added to ``report``. Both in the order of the text."""
    reader = Reader(source)
    with no_collections():
        reader.run()
    for error in sorted(reader.faults, key=lambda e: e.span.start if e.span else 0):
        report.add(error)
    return reader.forms


@contextmanager
def no_collections() -> Iterator[None]:
    """Pauses the cycle collector: forms hold no cycles, and walking them again and again is two fifths of a read."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@define
class Reader:
    """The state of reading one source.

    stack:   the open brackets: (bracket, offset, items so far)
    deep:    brackets open beyond MAX_DEPTH, counted only
    bad:     the top-level form being read has a fault, and is left out
    astray:  a bracket closed another kind, so what follows is left out, up to what begins in column 1
    recover: "" until a form does not end; then what did not, "bracket" or "string": from there on an opening bracket in
             column 1 starts a new form, and after "string" it also ends a string
    mark:    (len(faults), data) when the top-level form being read began
    """

    source: Source
    pos: int = 0
    data: int = 0
    deep: int = 0
    bad: bool = False
    astray: bool = False
    recover: str = ""
    mark: tuple[int, int] = (0, 0)
    stack: list[tuple[str, int, list[Form]]] = field(factory=list)
    forms: list[Form] = field(factory=list)
    faults: list[UserError] = field(factory=list)

    def run(self) -> None:
        """Read the whole text."""
        text, match = self.source.text, TOKEN.match
        for bad in FORBIDDEN.finditer(text):
            self.character(bad.start())
        tokens = {kind: getattr(self, kind) for kind in TOKEN.groupindex}
        while self.pos < len(text) and len(self.faults) < MAX_FAULTS:
            token = match(text, self.pos)
            assert token is not None  # the alternatives cover every character
            self.pos = token.end()
            if kind := token.lastgroup:
                tokens[kind](token[kind], token.start(kind))
            if self.pos == len(text) and self.stack:
                self.unclosed(self.pos)

    def fault(self, code: Code, start: int, end: int, message: str, *notes: tuple[Span, str], hint: str = "") -> None:
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(UserError(code, Span(self.source, start, end), message, *notes, hint=hint))
        self.bad = True

    def character(self, at: int) -> None:
        """E-READ-010: the character at offset ``at`` may not stand there."""
        name = character_name(self.source.text[at])
        self.fault(c.READ_CHARACTER, at, at + 1, f"the character {name} is not allowed here")

    def add(self, form: Form) -> None:
        self.data += 1
        if self.data > MAX_DATA:
            self.fault(
                c.READ_LIMIT, form.span.start, form.span.end, f"a file may hold {MAX_DATA} data, and this is one more"
            )
            self.stack, self.pos = [], len(self.source.text)
        elif self.deep:
            return
        elif self.stack:
            self.stack[-1][2].append(form)
        elif not self.bad:
            self.forms.append(form)

    # ---- tokens, by the names of TOKEN's groups

    def open(self, bracket: str, start: int) -> None:
        if not self.stack:
            prefixed = self.bad and self.source.text[start - 1 : start] in PREFIXES
            self.begin(start)
            self.bad |= prefixed
        elif self.recover and starts_line(self.source.text, start):
            self.unclosed(start)
            self.begin(start)
        if len(self.stack) < MAX_DEPTH:
            self.stack.append((bracket, start, []))
            return
        if not self.deep:
            message = f"forms nest deeper than {MAX_DEPTH} brackets"
            self.fault(c.READ_DEPTH, start, start + 1, message, hint="name inner parts with let* or defun")
        self.deep += 1

    def close(self, bracket: str, start: int) -> None:
        if self.deep:
            self.deep -= 1
        elif self.stack:
            if PAIR[self.stack[-1][0]] != bracket:
                self.mismatch(bracket, start)
            opening, begun, items = self.stack.pop()
            self.add(Seq(tuple(items), opening, span=Span(self.source, begun, start + 1)))
        elif not self.astray:
            self.fault(c.READ_CLOSE, start, start + 1, f"{bracket} closes nothing")

    def string(self, text: str, start: int) -> None:
        if self.recover == "string" and (line := COLUMN_1.search(self.source.text, start, self.pos)):
            return self.unterminated("string", start, line.start())
        self.alone(start)
        if len(text) - 2 > MAX_STRING:
            self.fault(
                c.READ_LIMIT, start, start + 1, f"a string has {len(text) - 2} characters; the limit is {MAX_STRING}"
            )
        self.add(Literal(self.unescape(text[1:-1], start + 1), span=Span(self.source, start, self.pos)))

    def quote(self, _: str, start: int) -> None:
        if self.stack and not self.recover:
            return self.restart("string")
        self.unterminated("string", start, start + 1)

    def block(self, _: str, start: int) -> None:
        depth = 1
        while depth:
            edge = BLOCK_EDGE.search(self.source.text, self.pos)
            if not edge:
                return self.unterminated("block comment", start, start + 2)
            depth += 1 if edge.group() == "#|" else -1
            self.pos = edge.end()

    def name(self, text: str, start: int) -> None:
        if self.stack and text not in UNPLAIN and len(text) <= MAX_NAME:
            self.add(Symbol(text, span=Span(self.source, start, self.pos)))
        else:
            self.atom(text, start)

    def atom(self, text: str, start: int) -> None:
        self.alone(start)
        span = Span(self.source, start, self.pos)
        if INTEGER.fullmatch(text) or FLOAT.fullmatch(text):
            self.add(Literal(self.number(text, start), span=span))
        elif text in CONSTANTS:
            self.add(Literal(CONSTANTS[text], span=span))
        elif not text.isprintable():
            for offset, char in enumerate(text):
                if not char.isprintable():
                    self.character(start + offset)
        elif not self.foreign(text, start):
            self.add(Keyword(text[1:], span=span) if text[0] == ":" else Symbol(text, span=span))

    # ---- parts of atoms and strings

    def number(self, text: str, start: int) -> int | float:
        if not INTEGER.fullmatch(text):
            value = float(text)
            if value in (float("inf"), float("-inf")):
                self.fault(c.READ_FLOAT, start, self.pos, f"{shorten(text)} is not finite: an f64 ends near 1.8e308")
            return value
        value = int(text) if len(text.lstrip("+-0")) < 20 else 2**63
        if not -(2**63) <= value < 2**63:
            hint = "an integer is -9223372036854775808 to 9223372036854775807"
            self.fault(c.READ_INTEGER, start, self.pos, f"{shorten(text)} does not fit 64 bits", hint=hint)
        return value

    def foreign(self, text: str, start: int) -> bool:
        """Add the fault of an atom that is no name, and say whether there was one."""
        named = next(((name, hint) for pattern, name, hint in FOREIGN if pattern.search(text)), None)
        if named:
            self.fault(c.READ_SYNTAX, start, self.pos, f"{named[0]} is not part of the language", hint=named[1])
        elif NOT_FINITE.fullmatch(text):
            self.fault(
                c.READ_FLOAT,
                start,
                self.pos,
                f"{text} is not a finite number",
                hint="mask with a large finite one, -1e9",
            )
        elif NUMBER_LIKE.match(text):
            self.fault(
                c.READ_SYNTAX,
                start,
                self.pos,
                f"{shorten(text)} is neither a number nor a name",
                hint=number_hint(text),
            )
        elif len(text) > MAX_NAME:
            self.fault(c.READ_LIMIT, start, self.pos, f"a name has {len(text)} characters; the limit is {MAX_NAME}")
        else:
            return False
        return True

    def unescape(self, text: str, start: int) -> str:
        """The value of a string whose text between the quotes, ``text``, begins at offset ``start``."""
        if "\\" not in text:
            return text
        for match in ESCAPE.finditer(text):
            if match.group(1) not in ESCAPES:
                at = start + match.start()
                self.fault(
                    c.READ_SYNTAX,
                    at,
                    at + 2,
                    f"the escape {match.group()} is not known",
                    hint='escapes are \\" \\\\ \\n \\t',
                )
        return ESCAPE.sub(lambda match: ESCAPES.get(match.group(1), ""), text)

    # ---- recovery

    def begin(self, start: int) -> None:
        """A top-level form begins."""
        self.astray = self.astray and not starts_line(self.source.text, start)
        self.bad, self.mark, self.deep = self.astray, (len(self.faults), self.data), 0

    def alone(self, start: int) -> None:
        """An atom or string begins: at top level it is a form of its own."""
        if not self.stack:
            self.begin(start)

    def mismatch(self, bracket: str, start: int) -> None:
        """``bracket`` closes another kind. It closes the nearest of its own kind that is open, else the innermost."""
        opening, begun, _ = self.stack[-1]
        note = (Span(self.source, begun, begun + 1), f"this {opening} is open")
        self.fault(
            c.READ_CLOSE, start, start + 1, f"{bracket} does not close {opening}", note, hint=f"write {PAIR[opening]}"
        )
        self.astray = True
        kinds = [PAIR[entry[0]] for entry in self.stack]
        if bracket in kinds:
            del self.stack[len(kinds) - kinds[::-1].index(bracket) :]

    def unclosed(self, end: int) -> None:
        """The form on the stack is not closed at ``end``, where the text ends or, recovering, the next form begins."""
        if not self.recover and COLUMN_1.search(self.source.text, self.stack[0][1] + 1):
            return self.restart("bracket")
        bracket, start, _ = self.stack[0]
        inner = [
            (Span(self.source, at, at + 1), "this one inside it is open too")
            for _, at, _ in self.stack[-1:]
            if at != start
        ]
        if not self.deep:
            where = "before the next form" if end < len(self.source.text) else "before the end of the file"
            self.fault(c.READ_UNCLOSED, start, start + 1, f"{bracket} is not closed {where}", *inner)
        self.stack, self.deep = [], 0

    def unterminated(self, what: str, start: int, after: int) -> None:
        """A string or comment begun at ``start`` does not end: go on at the first column-1 bracket from ``after``."""
        self.fault(c.READ_UNTERMINATED, start, min(after, start + 2), f"this {what} does not end")
        following = COLUMN_1.search(self.source.text, after)
        self.pos = following.start() if following else len(self.source.text)
        self.stack, self.deep = [], 0

    def restart(self, reason: str) -> None:
        """Read the top-level form once more, now taking a bracket in column 1 for the start of the next one."""
        self.recover, self.pos = reason, self.stack[0][1]
        del self.faults[self.mark[0] :]
        self.data = self.mark[1]
        self.stack, self.deep = [], 0


def starts_line(text: str, at: int) -> bool:
    return at == 0 or text[at - 1] == "\n"
