"""Applying schedule rules: tried in order, the first schedule wins; a crash counts as None and is reported.

A program that no rule takes is an error of the caller's to report; rules never change what a program computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from tvm import tirx

if TYPE_CHECKING:
    from .target import Target


@attrs.frozen
class Scheduled:
    """``func`` as ``rule`` made it (None and "" if no rule took it); ``failures``: "rule: why it crashed"."""

    func: tirx.PrimFunc | None
    rule: str
    failures: tuple[str, ...]


def _reason(name: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{name}: {type(error).__name__}: {text[:200]}"


def first(func: tirx.PrimFunc, target: Target) -> Scheduled:
    """``func`` by the first rule of ``target`` that takes it."""
    failures: list[str] = []
    for rule in target.rules:
        try:
            scheduled = rule.apply(func, target)
        except Exception as error:  # a rule is tried on kernels nobody foresaw; the next rule may fit
            failures.append(_reason(rule.name, error))
            continue
        if scheduled is not None:
            return Scheduled(scheduled, rule.name, tuple(failures))
    return Scheduled(None, "", tuple(failures))
