"""GPU schedules: rules from the most particular to the most general."""

from __future__ import annotations

from ..rule import Rule

RULES: tuple[Rule, ...] = ()

__all__ = ["RULES"]
