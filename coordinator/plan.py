"""Where temporaries of a recording lie: one block of memory, whose stretches are used again as soon as they can.

Pure: sizes and lifetimes in, offsets out. `tests/pure/test_plan.py` holds the plan to what it means: two that live at
the same moment never overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

ALIGNMENT: Final = 64


class Temporary(NamedTuple):
    """An array of `nbytes` that is made by instruction `first` and used for the last time by `last`.

    `instead`: the slot of a temporary whose last use is the instruction that makes this one, and whose very place it
    may take: the operation reads and writes element by element, in the same layout.
    """

    slot: int
    nbytes: int
    first: int
    last: int
    instead: int = 0


def plan(temporaries: Sequence[Temporary]) -> tuple[dict[int, int], int]:
    """The offset of each slot, and the bytes of the whole block.

    Args:
        temporaries: in the order in which they are made.
    """
    offsets: dict[int, int] = {}
    sizes: dict[int, int] = {}
    free: list[tuple[int, int]] = []  # (offset, size), by offset
    living: list[Temporary] = []
    end = 0
    for each in temporaries:
        size = max(-(-each.nbytes // ALIGNMENT) * ALIGNMENT, ALIGNMENT)
        over = [other for other in living if other.last < each.first or other.slot == each.instead]
        living = [other for other in living if other not in over]
        taken = None
        for other in over:
            if other.slot == each.instead and sizes[other.slot] == size:
                taken = offsets[other.slot]
            elif other.last < each.first:
                free.append((offsets[other.slot], sizes[other.slot]))
            else:
                living.append(other)
        free = _joined(free)
        if taken is None:
            fitting = [place for place in free if place[1] >= size]
            if fitting:
                best = min(fitting, key=lambda place: (place[1], place[0]))
                free.remove(best)
                taken = best[0]
                if best[1] > size:
                    free.append((best[0] + size, best[1] - size))
            else:
                taken = end
                if free and free[-1][0] + free[-1][1] == end:  # the last stretch is free: let it grow
                    taken = free.pop()[0]
                end = taken + size
        offsets[each.slot], sizes[each.slot] = taken, size
        living.append(each)
    return offsets, end


def _joined(free: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for offset, size in sorted(free):
        if joined and joined[-1][0] + joined[-1][1] == offset:
            joined[-1] = (joined[-1][0], joined[-1][1] + size)
        else:
            joined.append((offset, size))
    return joined
