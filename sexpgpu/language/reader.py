"""Text to forms. Iterative, bounded, and never silent: any bytes give forms or faults.

A faulty top-level form is left out of the answer and reading goes on behind it, so that one run reports every one.
Where brackets or quotes do not match, an opening bracket in column 1 is taken as the start of the next form.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from attrs import define, field

from . import codes as c
from .atoms import (
    CONSTANTS,
    FLOAT,
    FORBIDDEN,
    INTEGER,
    UNPLAIN,
    AtomFault,
    character_name,
    escape_faults,
    name_fault,
    number,
    unescape,
)
from .diagnostics import MAX_FAULTS, Code, Report, UserError
from .forms import Form, Keyword, Literal, Seq, Symbol
from .source import Source, Span
from .textfile import read_file

__all__ = ["read", "read_file"]

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
HEAD = re.compile(r"""\((def[a-z]*|include)(?![^ \t\n()\[\]";])[ \t\n]*+([^ \t\n()\[\]";]++)?""")


def read(source: Source, report: Report, spoilt: bool = False) -> list[Form]:
    """The sound top-level forms of ``source``, and with ``spoilt`` those too in which an atom alone is wrong, which the
    report then knows; every fault is added to ``report``. Both in the order of the text."""
    reader = Reader(source)
    with no_collections():
        reader.run()
    for atom in reader.spoilt:
        report.spoil(atom)
    report.lost |= {named for start, end in reader.lost for named in named_in(source.text, start, end)}
    for error in sorted(reader.faults, key=lambda e: e.span.start if e.span else 0):
        report.add(error)
    return reader.forms if spoilt else reader.sound


def named_in(text: str, start: int, end: int) -> list[tuple[str, str]]:
    """Heads and names of the top-level forms that begin in that part of the text; of an include, what it holds is not
    known."""
    heads = [(match[1], match[2] or "") for match in HEAD.finditer(text, start, end)]
    return [("", "") if head == "include" else (head, name) for head, name in heads]


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
    bad:     the top-level form being read has a fault, and is left out
    astray:  a bracket closed another kind, so what follows is left out, up to what begins in column 1
    recover: "" until a form does not end; then what did not, "bracket" or "string": from there on an opening bracket in
             column 1 starts a new form, and after "string" it also ends a string
    mark:    (len(faults), data, len(lost), len(spoilt)) when the top-level form being read began
    spoilt:  atoms with a fault, which the forms around them keep
    lost:    (start, end) of what is left out
    """

    source: Source
    pos: int = 0
    data: int = 0
    bad: bool = False
    astray: bool = False
    recover: str = ""
    mark: tuple[int, int, int, int] = (0, 0, 0, 0)
    stack: list[tuple[str, int, list[Form]]] = field(factory=list)
    forms: list[Form] = field(factory=list)
    sound: list[Form] = field(factory=list)
    faults: list[UserError] = field(factory=list)
    spoilt: list[Form] = field(factory=list)
    lost: list[tuple[int, int]] = field(factory=list)

    def run(self) -> None:
        """Read the whole text."""
        text, match = self.source.text, TOKEN.match
        for bad in islice(FORBIDDEN.finditer(text), MAX_FAULTS):
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
        if self.pos < len(text):
            self.leave_out(self.pos, len(text))

    def fault(
        self,
        code: Code,
        start: int,
        end: int,
        message: str,
        *notes: tuple[Span, str],
        hint: str = "",
        keeps: bool = False,
    ) -> None:
        """``keeps``: the form around it is as it was meant, but for this atom."""
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(UserError(code, Span(self.source, start, end), message, *notes, hint=hint))
        self.bad |= not keeps or not self.stack

    def atom_fault(self, fault: AtomFault, start: int, end: int) -> None:
        self.fault(fault.code, start, end, fault.message, hint=fault.hint, keeps=fault.keeps)

    def leave_out(self, start: int, end: int) -> None:
        """The open form, or what begins at ``start`` where none is open, is no part of the answer, up to ``end``."""
        self.lost.append((self.stack[0][1] if self.stack else start, end))
        self.stack = []

    def character(self, at: int) -> None:
        """E-READ-010: the character at offset ``at`` may not stand there."""
        name = character_name(self.source.text[at])
        self.fault(c.READ_CHARACTER, at, at + 1, f"the character {name} is not allowed here", keeps=True)

    def add(self, form: Form) -> None:
        self.data += 1
        if self.data > MAX_DATA:
            self.fault(
                c.READ_LIMIT, form.span.start, form.span.end, f"a file may hold {MAX_DATA} data, and this is one more"
            )
            self.pos = len(self.source.text)
            self.leave_out(form.span.start, self.pos)
        elif self.stack:
            self.stack[-1][2].append(form)
        elif self.bad:
            self.leave_out(form.span.start, form.span.end)
        else:
            self.forms.append(form)
            if len(self.spoilt) == self.mark[3]:
                self.sound.append(form)

    def add_read(self, form: Form, faults: int) -> None:
        """Add an atom or a string, which is spoilt if there were only ``faults`` before it was read."""
        if len(self.faults) > faults:
            self.spoilt.append(form)
        self.add(form)

    # ---- tokens, by the names of TOKEN's groups

    def open(self, bracket: str, start: int) -> None:
        if not self.stack:
            prefixed = self.bad and self.source.text[start - 1 : start] in PREFIXES
            self.begin(start)
            self.bad |= prefixed
        elif self.recover and starts_line(self.source.text, start):
            self.unclosed(start)
            self.begin(start)
        self.stack.append((bracket, start, []))
        if len(self.stack) > MAX_DEPTH:
            message = f"forms nest deeper than {MAX_DEPTH} brackets"
            self.fault(c.READ_DEPTH, start, start + 1, message, hint="name inner parts with let* or defun")
            self.go_on(self.pos)

    def close(self, bracket: str, start: int) -> None:
        if self.stack:
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
        faults, length = len(self.faults), len(text) - 2
        if length > MAX_STRING:
            message = f"a string has {length} characters; the limit is {MAX_STRING}"
            self.fault(c.READ_LIMIT, start, start + 1, message, keeps=True)
        for offset, fault in escape_faults(text):
            self.atom_fault(fault, start + offset, start + offset + 2)
        self.add_read(Literal(unescape(text[1:-1]), span=Span(self.source, start, self.pos)), faults)

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
        span, faults = Span(self.source, start, self.pos), len(self.faults)
        if INTEGER.fullmatch(text) or FLOAT.fullmatch(text):
            value = number(text)
            if isinstance(value, AtomFault):
                self.atom_fault(value, start, self.pos)
                self.add_read(Symbol(text, span=span), faults)
            else:
                self.add(Literal(value, span=span))
        elif text in CONSTANTS:
            self.add(Literal(CONSTANTS[text], span=span))
        elif not text.isprintable():
            hidden = (offset for offset, char in enumerate(text) if not char.isprintable())
            for offset in islice(hidden, MAX_FAULTS):
                self.character(start + offset)
            self.bad |= text[0] == ":"
            self.add_read(self.named(text, span), faults)
        else:
            fault = name_fault(text, MAX_NAME)
            if fault:
                self.atom_fault(fault, start, self.pos)
            if not fault or fault.keeps:
                self.add_read(self.named(text, span), faults)

    def named(self, text: str, span: Span) -> Form:
        return Keyword(text[1:], span=span) if text[0] == ":" else Symbol(text, span=span)

    # ---- recovery

    def begin(self, start: int) -> None:
        """A top-level form begins."""
        self.astray = self.astray and not starts_line(self.source.text, start)
        self.bad, self.mark = self.astray, (len(self.faults), self.data, len(self.lost), len(self.spoilt))

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
        where = "before the next form" if end < len(self.source.text) else "before the end of the file"
        self.fault(c.READ_UNCLOSED, start, start + 1, f"{bracket} is not closed {where}", *inner)
        self.leave_out(start, end)

    def unterminated(self, what: str, start: int, after: int) -> None:
        """A string or comment begun at ``start`` does not end."""
        self.fault(c.READ_UNTERMINATED, start, min(after, start + 2), f"this {what} does not end")
        self.go_on(after)

    def go_on(self, after: int) -> None:
        """Give the open form up, and go on at the first column-1 bracket from ``after``."""
        following = COLUMN_1.search(self.source.text, after)
        self.leave_out(self.pos, following.start() if following else len(self.source.text))
        self.pos = self.lost[-1][1]

    def restart(self, reason: str) -> None:
        """Read the top-level form once more, now taking a bracket in column 1 for the start of the next one."""
        self.recover, self.pos = reason, self.stack[0][1]
        faults, self.data, lost, spoilt = self.mark
        del self.faults[faults:], self.lost[lost:], self.spoilt[spoilt:]
        self.stack = []


def starts_line(text: str, at: int) -> bool:
    return at == 0 or text[at - 1] == "\n"
