"""Groups an optimizer's updates, one a parameter, into calls of equal programs: each call updates some layers.

One program for all members would grow with the number of layers, and so would the time to compile it. Members that
compute the same form a group. Every call takes the same number from each group; the remainder is one more program.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

M = TypeVar("M")
# In members: one more call is worth it if the program gets this many members shorter. No measurement on record; it
# moves only the balance of compile time and calls a step.
CALL_COST = 3


def split_into_calls(members: Sequence[tuple[Hashable, M]]) -> tuple[list[list[M]], list[M]]:
    """The members of each call, and the remainder; ``members``: (group, member).

    Calls list the groups in the same order, so that their programs are equal.
    """
    groups: dict[Hashable, list[M]] = {}
    for group, member in members:
        groups.setdefault(group, []).append(member)
    calls = best_call_count({group: len(in_group) for group, in_group in groups.items()})
    if calls == 1:
        return [], [member for _, member in members]
    shares = [(in_group, len(in_group) // calls) for in_group in groups.values()]
    by_call = [[m for in_group, n in shares for m in in_group[call * n : (call + 1) * n]] for call in range(calls)]
    return by_call, [m for in_group, n in shares for m in in_group[calls * n :]]


def best_call_count(sizes: Mapping[Hashable, int]) -> int:
    """The number of calls with the least cost: members to compile, and CALL_COST for each call. With L layers it is
    about sqrt(L)."""

    def cost(calls: int) -> int:
        return sum(n // calls + n % calls for n in sizes.values()) + CALL_COST * calls

    return min(range(1, max(sizes.values(), default=1) + 1), key=cost)
