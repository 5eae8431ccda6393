"""Source text and places in it."""

from __future__ import annotations

from attrs import field, frozen


@frozen
class Source:
    """One file: ``name`` as the user gave it, and its text."""

    name: str
    text: str = field(repr=False)


@frozen
class Span:
    """Characters ``start`` to ``end`` (exclusive) of a source."""

    source: Source
    start: int
    end: int

    def line_column(self) -> tuple[int, int]:
        """1-based line and 1-based column of the first character."""
        before = self.source.text[: self.start]
        return before.count("\n") + 1, self.start - (before.rfind("\n") + 1) + 1

    def place(self) -> str:
        """``file:line:column``, as every message begins."""
        line, column = self.line_column()
        return f"{self.source.name}:{line}:{column}"

    def excerpt(self) -> str:
        """The first line the span touches, carets under the part inside it."""
        line, column = self.line_column()
        text = self.source.text.split("\n")[line - 1]
        width = max(1, min(self.end - self.start, len(text) - column + 1))
        return f"{text}\n{' ' * (column - 1)}{'^' * width}"
