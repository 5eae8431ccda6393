"""GPU schedules: rules from the most particular to the most general. They read programs as the CPU rules do."""

from .rules import RULES

__all__ = ["RULES"]
