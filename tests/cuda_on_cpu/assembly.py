"""Inline assembly of CUDA text, as calls of C++ functions: ``asm volatile("mma.sync.x {%0}, %1;" : "+f"(d) : "r"(a));``
becomes ``ptx_mma_sync_x(d, a);`` (shim/ptx.h). What has no such function fails to compile, by that name."""

from __future__ import annotations

import re

START = re.compile(r"\b(?:asm|__asm__)\s*(?:volatile|__volatile__)?\s*\(")
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
OPERAND = re.compile(r"%(\d+)")
HINT = re.compile(r"\.L2::\w+")  # of what to fetch beside: nothing that shows


def replaced(source: str) -> str:
    """``source`` without assembly. Raises ValueError for what is not one instruction on operands."""
    pieces, at = [], 0
    for start in START.finditer(source):
        end = _closing(source, start.end())
        pieces += [source[at : start.start()], _call(source[start.end() : end])]
        at = end + 1
    return "".join([*pieces, source[at:]])


def _closing(text: str, at: int) -> int:
    """The place of the parenthesis that closes the one before ``at``, not looking into strings."""
    depth = 1
    while True:
        if text[at] == '"':
            at = STRING.match(text, at).end()  # type: ignore[union-attr]
            continue
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if not depth:
            return at
        at += 1


def _call(inside: str) -> str:
    """The call for what stands between the parentheses of ``asm (...)``."""
    template, *sections = _split(inside, ":")
    code = "".join(m[1] for m in STRING.finditer(template)).replace("\\n", " ").replace("\\t", " ")
    operands = [_expression(o) for section in sections[:2] for o in _split(section, ",") if o.strip()]
    instruction, *more = [part.strip() for part in code.split(";") if part.strip()]
    if more or "{" in instruction.split()[0] or "@" in instruction:
        raise ValueError(f"assembly that is not one instruction: {code}")
    name, _, arguments = instruction.partition(" ")
    name = re.sub(r"[.:]+", "_", HINT.sub("", name))
    words = [word.strip() for word in re.sub(r"[\[\]{}]", " ", arguments).split(",") if word.strip()]
    return f"ptx_{name}({', '.join(OPERAND.sub(lambda m: operands[int(m[1])], word) for word in words)})"


def _split(text: str, mark: str) -> list[str]:
    """``text`` cut at every ``mark`` that stands in no string or parenthesis, and is not one of "::" of a name."""
    parts, depth, begin, at = [], 0, 0, 0
    while at < len(text):
        if text[at] == '"':
            at = STRING.match(text, at).end()  # type: ignore[union-attr]
            continue
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(text[at], 0)
        if text[at] == mark and not depth:
            parts.append(text[begin:at])
            begin = at + 1
        at += 1
    return [*parts, text[begin:]]


def _expression(operand: str) -> str:
    """``(x)`` of ``"+f"(x)``."""
    match = STRING.search(operand)
    if match is None:
        raise ValueError(f"an operand without a constraint: {operand}")
    return operand[match.end() :].strip()
