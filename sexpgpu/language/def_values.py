"""``-D NAME=VALUE``: the value of a ``def`` from the command line, put into the text of the file that has it.

    (def steps 600)  and  -D steps=1200  ->  (def steps 1200)

So all that follows, artifact and messages, is as of a file that was edited.
"""

from __future__ import annotations

from collections.abc import Mapping

from . import codes as c
from .atoms import FLOAT, INTEGER, AtomFault, number
from .diagnostics import Report, UserError
from .forms import Form, Literal, Seq, Symbol
from .reader import read
from .source import Source
from .syntax import closest, head_of


class DefValues:
    """``given``: values as text, by name. The files of a run are read one after the other."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = given
        self.names: set[str] = set()  # of every def so far
        self.put: set[str] = set()

    def into(self, source: Source, report: Report) -> Source:
        """``source`` with the values of its defs; E-DEF-001 for a def that is neither a number nor a string, or a value
        that is no number in the place of one."""
        if not self.given:
            return source
        text = source.text
        for form in reversed(read(source, Report())):  # its faults are told by who reads it next
            name = _defined(form)
            self.names.add(name)
            if name in self.given and isinstance(form, Seq) and len(form.items) == 3:
                old = form.items[2]
                new = _literal(old, self.given[name])
                if new is None:
                    report.add(_refused(name, self.given[name], old))
                else:
                    text = text[: old.span.start] + new + text[old.span.end :]
                self.put.add(name)
        return Source(source.name, text)

    def unknown(self) -> list[UserError]:
        """E-DEF-001 for each value that no file had a def for."""
        wrong = sorted(self.given.keys() - self.put)
        return [
            UserError(
                c.DEF_VALUE,
                None,
                f"there is no (def {name} ...) in the run file",
                hint=closest(name, self.names - {""}),
                where=f"-D {name}",
            )
            for name in wrong
        ]


def _defined(form: Form) -> str:
    """The name of a ``def``; "" of anything else."""
    if not isinstance(form, Seq) or head_of(form) != "def" or len(form.items) < 2:
        return ""
    name = form.items[1]
    return name.name if isinstance(name, Symbol) else ""


def _is_number(form: Form) -> bool:
    return isinstance(form, Literal) and isinstance(form.value, int | float) and not isinstance(form.value, bool)


def _literal(old: Form, given: str) -> str | None:
    """``given`` as the text of a literal of the kind of ``old``, a number or a string; None where it is none."""
    if isinstance(old, Literal) and isinstance(old.value, str):
        return '"' + given.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if not _is_number(old) or not (INTEGER.fullmatch(given) or FLOAT.fullmatch(given)):
        return None
    return None if isinstance(number(given), AtomFault) else given


def _refused(name: str, given: str, old: Form) -> UserError:
    kind = "is neither a number nor a string"
    what = f"{given} is not a number, as {old.span.text} is" if _is_number(old) else f"{name} {kind}"
    return UserError(c.DEF_VALUE, old.span, f"-D {name}: {what}")
