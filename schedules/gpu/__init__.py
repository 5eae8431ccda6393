"""GPU schedules: rules from the most particular to the most general, over programs read as the CPU rules read them."""

from .rules import RULES

__all__ = ["RULES"]
