"""A wrong command line as one message: what typer says of it, and what to do."""

from __future__ import annotations

import difflib
import re
from typing import Any

import typer

EXIT_USAGE = 2
# The class of all that typer refuses. Which package it stands in differs between releases of typer.
USAGE_ERROR: Any = typer.BadParameter.__mro__[1]


class Usage(Exception):
    """The command line is wrong: ``what`` of it, in which ``command``, and what to do."""

    def __init__(self, what: str, command: str, hint: str) -> None:
        super().__init__(what)
        self.what, self.command, self.hint = what, command, hint


def usage_of(error: Any, command: str) -> Usage:
    """Usage for a typer error of ``command``, with the nearest option, value or command, or else with where to look; a
    Usage as it is."""
    if isinstance(error, Usage):
        return error
    command = error.ctx.command_path if error.ctx else command
    what = error.format_message().rstrip(".")
    what = what[:1].lower() + what[1:]
    nearest = difflib.get_close_matches(*_wrong_word(error, what), n=1)
    what = what.partition(" (Possible options: ")[0]
    if what.endswith("()"):  # got unexpected extra argument(s)
        what = "an argument too many, which is empty"
    if what == "no such command 'run'":
        return Usage(what, command, "sexpgpu-run trains from an artifact")
    return Usage(what, command, f"did you mean {nearest[0]}?" if nearest else f"see {command} --help")


def _wrong_word(error: Any, what: str) -> tuple[str, list[str]]:
    """The word that is wrong, and those that could stand in its place."""
    context = error.ctx
    if what.startswith("no such option"):
        return error.option_name, [word for parameter in context.command.params for word in parameter.opts]
    quoted = re.findall(r"'([^']*)'", what)
    if quoted and what.startswith("no such command"):
        return quoted[0], context.command.list_commands(context)
    if "is not one of" in what:  # the option, its value, those it may have
        return quoted[1], quoted[2:]
    return "", []
