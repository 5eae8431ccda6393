"""The error that carries a code to the user, and the report that gathers every fault of a file."""

from __future__ import annotations

from typing import Any

from attrs import define, field, frozen

from .source import Span

MAX_FAULTS = 100  # a reader or checker stops at so many in one file: nobody reads more, and time stays bounded


@frozen
class Code:
    """``summary`` is the docs heading; ``fix`` says what to do about it; ``exit`` is the process's exit status."""

    name: str
    summary: str
    fix: str
    exit: int = 1


class UserError(Exception):
    """The user's input is wrong, at ``span`` or, where there is no text to point at, at the file ``where``.

    ``notes`` are other places of the same fault: (span, message) pairs. ``hint`` is what to do; where there is no text
    to point at, by default the code's ``fix``. Everything else that is raised is our bug.
    """

    def __init__(
        self,
        code: Code,
        span: Span | None,
        message: str,
        *notes: tuple[Span, str],
        hint: str = "",
        where: str = "",
    ) -> None:
        super().__init__(message)
        self.code, self.span, self.message, self.notes = code, span, message, notes
        self.hint = hint or ("" if span else clause(code.fix))
        self._where = where

    @property
    def where(self) -> str:
        """The file, or ``file:line:column``: looked for in the text only when it is asked for."""
        if not self._where and self.span:
            self._where = self.span.place()
        return self._where

    @property
    def is_warning(self) -> bool:
        """Does it end no command?"""
        return self.code.exit == 0

    def line(self) -> str:
        """``error[CODE]: file:line:column: what (hint)``, always one line; of a warning ``warning[CODE]``."""
        where = f"{self.where}: " if self.where else ""
        hint = f" ({self.hint})" if self.hint else ""
        word = "warning" if self.is_warning else "error"
        return printable(f"{word}[{self.code.name}]: {where}{self.message}{hint}")

    def __str__(self) -> str:
        """The line, then the source line with a caret, then every note in the same way."""
        parts = [self.line()]
        if self.span:
            parts.append(indent(self.span.excerpt()))
        for span, message in self.notes:
            parts += [f"  note: {span.place()}: {message}", indent(span.excerpt())]
        return "\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        """The same as data: places are 1-based line and column."""
        out: dict[str, Any] = {"code": self.code.name, "message": self.message, "hint": self.hint, "where": self.where}
        if self.is_warning:
            out["severity"] = "warning"
        out["notes"] = [{"where": span.place(), "message": message} for span, message in self.notes]
        return out


def clause(sentence: str) -> str:
    """A sentence as a part of another one."""
    return sentence[:1].lower() + sentence[1:].removesuffix(".")


def printable(text: str) -> str:
    """``text`` on one line: control and format characters as escapes, so that no input can forge a line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shorten(text: str, limit: int = 40) -> str:
    """``text``, its middle left out when it is longer than ``limit`` characters."""
    return text if len(text) <= limit else f"{text[: limit // 2]}...{text[-limit // 4 :]}"


def indent(text: str) -> str:
    """``text`` set in; what a terminal would act on becomes one space or dot, so that carets stay in place."""
    text = text.replace("\t", " ")
    return "\n".join("    " + "".join(c if c.isprintable() else "\u00b7" for c in line) for line in text.split("\n"))


@define
class Report:
    """Every fault found so far, at most MAX_FAULTS, and what they leave without a meaning. Code that finds a fault adds
    it and goes on with all that does not depend on it; what does is left out without a word.

    spoilt: forms that are written wrongly, by id
    lost:   (head, name) of top-level forms that are left out; "" where the name, or both, cannot be told
    warnings: what is no fault, and hardly meant
    """

    errors: list[UserError] = field(factory=list)
    warnings: list[UserError] = field(factory=list)
    spoilt: dict[int, object] = field(factory=dict)
    lost: set[tuple[str, str]] = field(factory=set)

    def add(self, error: UserError) -> None:
        """Keep ``error`` unless the same fault at the same place is there already."""
        same = (error.code.name, error.where, error.message)
        if not self.full and all((e.code.name, e.where, e.message) != same for e in self.errors):
            self.errors.append(error)

    def warn(self, warning: UserError) -> None:
        """Keep ``warning`` unless there is one of its code at its place, or there are as many as one run reports."""
        known = {(w.code.name, w.where) for w in self.warnings}
        if len(known) < MAX_FAULTS and (warning.code.name, warning.where) not in known:
            self.warnings.append(warning)

    @property
    def full(self) -> bool:
        """Are there as many faults as one run reports?"""
        return len(self.errors) >= MAX_FAULTS

    def spoil(self, form: object) -> None:
        """``form`` has a fault of its own, and no value."""
        self.spoilt[id(form)] = form

    def is_spoilt(self, form: object) -> bool:
        return id(form) in self.spoilt

    def may_be_lost(self, name: str, *heads: str) -> bool:
        """May a form of one of ``heads`` with that name, "" for any, be among those that are left out?"""
        return ("", "") in self.lost or any(
            head in heads and (not lost or not name or lost == name) for head, lost in self.lost
        )

    def sort(self) -> None:
        """In the order of the text, a file after the other; what has no place in a text comes first."""
        for found in (self.errors, self.warnings):
            found.sort(key=lambda e: (e.span.source.name, e.span.start) if e.span else ("", 0))

    def __bool__(self) -> bool:
        return bool(self.errors)
