"""What an atom may be: the patterns of numbers and names, and the syntax of other Lisps, by name."""

from __future__ import annotations

import re
import unicodedata

from .diagnostics import shorten

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
