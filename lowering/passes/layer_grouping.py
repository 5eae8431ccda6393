"""An optimizer's members, one a parameter, as calls of equal programs: a call for some layers of the model.

One program of all members would grow with the layers, and so would the time to compile it. Members that compute the
same are a group; every call takes as many of each group as the others, and what is left over is one more program.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

M = TypeVar("M")
CALL = 3  # members: what a call more is worth, in code that need not be compiled


def dealt(members: Sequence[tuple[Hashable, M]]) -> tuple[list[list[M]], list[M]]:
    """What each call takes of ``members``, given with the group of each, and what is left over.

    Calls list the groups in the same order, so that their programs are equal.
    """
    groups: dict[Hashable, list[M]] = {}
    for group, member in members:
        groups.setdefault(group, []).append(member)
    calls = how_many({group: len(held) for group, held in groups.items()})
    if calls == 1:
        return [], [member for _, member in members]
    each = {group: len(held) // calls for group, held in groups.items()}
    taken = [[m for g, held in groups.items() for m in held[n * each[g] : (n + 1) * each[g]]] for n in range(calls)]
    return taken, [m for g, held in groups.items() for m in held[calls * each[g] :]]


def how_many(sizes: Mapping[Hashable, int]) -> int:
    """Calls: those with the least code, CALL members to each call. With L layers, some sqrt(L) of them."""

    def cost(calls: int) -> int:
        return sum(n // calls + n % calls for n in sizes.values()) + CALL * calls

    return min(range(1, max(sizes.values(), default=1) + 1), key=cost)
