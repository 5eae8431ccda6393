"""What the value of an option or an argument may be: functions from its text, for ``parser=``.

None takes an empty text: a variable that is not set stands behind it.
"""

from __future__ import annotations

from collections.abc import Callable

import typer


def text(given: str) -> str:
    """Any text that is not empty."""
    if not given:
        raise typer.BadParameter("it is empty; give it a value, or leave it out")
    return given


def whole(least: int, most: int) -> Callable[[str], int]:
    """A whole number between two others, in plain digits."""

    def read(given: str | int) -> int:
        if isinstance(given, int):  # an option's default
            return given
        digits = text(given).isascii() and given.isdigit() and len(given) <= len(str(most))
        if not digits or not least <= int(given) <= most:
            raise typer.BadParameter(f"{given} is not a whole number from {least} to {most}")
        return int(given)

    return read


count, trials, seed = whole(1, 256), whole(1, 100_000), whole(0, 2**63 - 1)


def degree(given: str) -> int | None:
    """A stacking degree; None for auto."""
    return None if given == "auto" else count(given)


def definition(given: str) -> str:
    """NAME=VALUE, neither of them empty."""
    name, _, value = text(given).partition("=")
    if not name or not value:
        raise typer.BadParameter(f"{given} is not NAME=VALUE")
    return given


def address(given: str) -> str:
    """HOST:PORT."""
    host, _, port = text(given).rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise typer.BadParameter(f"{given} is not HOST:PORT")
    return given


def memory_size(given: str) -> int:
    """The bytes of a size such as 4GiB."""
    from ..planning.memory_plan import parse_size

    try:
        return parse_size(text(given))
    except ValueError:
        raise typer.BadParameter(f"{given} is not a size such as 512MiB or 4GiB") from None
