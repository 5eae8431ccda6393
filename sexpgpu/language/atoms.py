"""What an atom may be: numbers, names and strings, the faults of each, and the syntax of other Lisps, by name."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from attrs import frozen

from . import codes
from .diagnostics import Code, shorten

INTEGER = re.compile(r"[+-]?[0-9]+")
FLOAT = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
NUMBER_LIKE = re.compile(r"[+-]?\.?[0-9]")
NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
CONSTANTS = {"true": True, "false": False, "nil": None}
UNPLAIN = {*CONSTANTS, "nan", "inf", "infinity"}
ESCAPE = re.compile(r"\\(.)", re.DOTALL)
ESCAPES = {'"': '"', "\\": "\\", "n": "\n", "t": "\t"}

# Syntax of other Lisps: (what an atom holds, what it is called, what to write instead). The first match is named.
FOREIGN = [
    (re.compile(r"^'"), "quote (')", "(list ...) makes a list, :name is a keyword"),
    (re.compile(r"^`"), "backquote (`)", "there are no macros; (list ...) makes a list"),
    (re.compile(r"^,"), "comma (,)", "there are no macros; data are separated by spaces"),
    (re.compile(r"^#\."), "read-time evaluation (#.)", "def names a value"),
    (re.compile(r"^#'"), "function quote (#')", "a function is named without it"),
    (re.compile(r"^#$"), "vector syntax (#()", "[ ... ] makes a vector"),
    (re.compile(r"#"), "dispatch syntax (#)", "a name does not hold #"),
    (re.compile(r"\|"), "symbol quotes (|)", "a name does not hold |"),
    (re.compile(r"^\.$"), "a dotted pair (.)", "(list a b) makes a list of two"),
    (re.compile(r"^\.+$"), "a name of dots only", "write out what is left out"),
    (re.compile(r"^:$"), "a colon alone", "a keyword is a colon and a name, :name"),
    (re.compile(r".:"), "a colon inside a name", "names have no package; put a space before a keyword"),
    (re.compile(r"[`',]"), "a quote or comma inside a name", "data are separated by spaces"),
    (re.compile(r"[{}\\]"), "a brace or backslash", "lists are ( ), vectors [ ]"),
    (re.compile(r"^&$"), "an ampersand alone", "&key and &rest stand in lambda lists"),
]

# Characters that make text look other than it reads, refused in strings and comments too: bidirectional controls
# ("Trojan Source", CVE-2021-42574), line ends that only some editors show as such, NUL, lone surrogates.
FORBIDDEN = re.compile("[\0\r\x85\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

# Python's character database has no names for these.
CONTROLS = {
    "\t": "TAB",
    "\n": "LINE FEED",
    "\r": "CARRIAGE RETURN",
    "\f": "FORM FEED",
    "\v": "LINE TABULATION",
    "\0": "NULL",
    "\x1b": "ESCAPE",
}


def character_name(char: str) -> str:
    """``U+00A0 (NO-BREAK SPACE)``."""
    name = unicodedata.name(char, "") or CONTROLS.get(char, unicodedata.category(char))
    return f"U+{ord(char):04X} ({name})"


def number_hint(text: str) -> str:
    """What to write instead of ``text``, which looks like a number and is none."""
    if re.fullmatch(r"[+-]?\.[0-9]+([eE][+-]?[0-9]+)?", text):
        return f"write {shorten(text.replace('.', '0.', 1))}"
    if re.fullmatch(r"[+-]?[0-9]+/[0-9]+", text):
        return f"write (/ {shorten(text.replace('/', ' '))})"
    if re.fullmatch(r"[+-]?[0-9]+\.([eE][+-]?[0-9]+)?", text):
        return f"write {shorten(text.replace('.', '.0', 1))}"
    return "a name does not begin like a number"


@frozen
class AtomFault:
    """``keeps``: the form around the atom is as it was meant, but for the atom."""

    code: Code
    message: str
    hint: str = ""
    keeps: bool = True


def number(text: str) -> int | float | AtomFault:
    """The number that ``text``, an INTEGER or a FLOAT, is."""
    if not INTEGER.fullmatch(text):
        value = float(text)
        if abs(value) < float("inf"):
            return value
        return AtomFault(codes.READ_FLOAT, f"{shorten(text)} is not finite: an f64 ends near 1.8e308")
    value = int(text) if len(text.lstrip("+-0")) < 20 else 2**63
    if -(2**63) <= value < 2**63:
        return value
    hint = "an integer is -9223372036854775808 to 9223372036854775807"
    return AtomFault(codes.READ_INTEGER, f"{shorten(text)} does not fit 64 bits", hint)


def name_fault(text: str, longest: int) -> AtomFault | None:
    """Why an atom that is no number is no name either."""
    named = next(((name, hint) for pattern, name, hint in FOREIGN if pattern.search(text)), None)
    if named:
        return AtomFault(codes.READ_SYNTAX, f"{named[0]} is not part of the language", named[1], keeps=False)
    if NOT_FINITE.fullmatch(text):
        return AtomFault(codes.READ_FLOAT, f"{text} is not a finite number", "mask with a large finite one, -1e9")
    if NUMBER_LIKE.match(text):
        return AtomFault(codes.READ_SYNTAX, f"{shorten(text)} is neither a number nor a name", number_hint(text))
    if len(text) > longest:
        return AtomFault(codes.READ_LIMIT, f"a name has {len(text)} characters; the limit is {longest}")
    return None


def escape_faults(text: str) -> Iterator[tuple[int, AtomFault]]:
    """Offset and fault of each escape of ``text`` that is not known."""
    for match in ESCAPE.finditer(text) if "\\" in text else ():
        if match.group(1) not in ESCAPES:
            hint = 'escapes are \\" \\\\ \\n \\t'
            yield match.start(), AtomFault(codes.READ_SYNTAX, f"the escape {match.group()} is not known", hint)


def unescape(text: str) -> str:
    """The value of a string whose text between the quotes is ``text``."""
    return ESCAPE.sub(lambda match: ESCAPES.get(match.group(1), ""), text) if "\\" in text else text
