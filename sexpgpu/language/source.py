"""Source text and places in it."""

from __future__ import annotations

from attrs import field, frozen

EXCERPT = 120  # characters of a line shown on each side of a place


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

    @property
    def text(self) -> str:
        """What stands there."""
        return self.source.text[self.start : self.end]

    def line_column(self) -> tuple[int, int]:
        """1-based line and 1-based column of the first character."""
        text = self.source.text
        return text.count("\n", 0, self.start) + 1, self.start - text.rfind("\n", 0, self.start)

    def place(self) -> str:
        """``file:line:column``, as every message begins."""
        line, column = self.line_column()
        return f"{self.source.name}:{line}:{column}"

    def excerpt(self) -> str:
        """The first line the span touches, carets under the part inside it; of a long line, the part around it."""
        whole = self.source.text
        begin = whole.rfind("\n", 0, self.start) + 1
        stop = whole.find("\n", self.start)
        stop = len(whole) if stop < 0 else stop
        left, right = max(begin, self.start - EXCERPT), min(stop, self.start + EXCERPT)
        carets = "^" * max(1, min(self.end, right) - self.start)
        before, after = "..." * (left > begin), "..." * (right < stop)
        return f"{before}{whole[left:right]}{after}\n{' ' * (len(before) + self.start - left)}{carets}"


NOWHERE = Span(Source("", ""), 0, 0)  # of a form that is not there
