"""CPU schedules: rules from the most special to the most general, and the loop nests that they make."""

from .rules import RULES

__all__ = ["RULES"]
