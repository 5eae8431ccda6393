"""CPU schedules: rules from the most particular to the most general."""

from .rules import RULES

__all__ = ["RULES"]
