"""Whose line made the arrays that take up a worker's memory, in words: the frontend's part of an OutOfDeviceMemory.

The worker names buffers and recordings; the lanes remember the lines of the large ones that live.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..protocol.errors import OutOfDeviceMemory
from ..protocol.messages import TICKET_BITS
from ..protocol.shortage import OWN, PLANNED, READ, Owner, Shortage, largest, tell
from .sites import Site, describe

if TYPE_CHECKING:
    from ..protocol.specs import Spec
    from .lane import Lane


class Owners:
    """The words for the owners that workers name."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        self._last: tuple[int, tuple[Any, ...], tuple[str, ...]] | None = None  # one shortage fails many operations

    def lines(self, lane: int, shortage: tuple[Any, ...]) -> tuple[str, ...]:
        """What is known here of each of the largest owners, in their order: words to put behind what it is."""
        if self._last is None or self._last[:2] != (lane, shortage):
            words = tuple([owner_line(self._lanes, lane, Owner(*fields)) for fields in Shortage(*shortage).largest])
            self._last = lane, shortage, words
        return self._last[2]

    def of_uploads(
        self, error: OutOfDeviceMemory, uploads: Iterable[tuple[int, Any, int]], spec: Spec, site: Site | None
    ) -> OutOfDeviceMemory:
        """The error for an upload: what workers hold on to of earlier ones, as (lane, block, buffer) each."""
        found = error.shortage
        if found is None:
            return error
        held = [(Owner(buffer, OWN, block.nbytes, "data on"), lane) for lane, block, buffer in uploads]
        lane_of = dict(held)
        chosen, others = largest([owner for owner, _ in held])
        text = f"{spec.dtype}[{','.join(map(str, spec.shape))}]"
        shortage = found._replace(place="the memory for uploads", array=text, largest=chosen, others=others)
        lanes = self._lanes

        def line(owner: Owner) -> str:
            lane = lanes[lane_of[owner]]
            return f" {lane.device}" + owner_line(lanes, lane.index, owner)

        return OutOfDeviceMemory(tell(shortage, describe(site), line))


def owner_line(lanes: Sequence[Lane], lane: int, owner: Owner) -> str:
    """The words for one."""
    if owner.holder == PLANNED:
        part = lanes[lane].recordings.get(owner.buffer)
        return f" of the captured function at {describe(part.sites[0])}" if part is not None and part.sites else ""
    if owner.holder == READ:
        return ", being read by this program"
    if owner.holder == OWN:
        return _made(lanes[lane], owner.buffer, " made at ")
    borrower = lanes[owner.holder]
    # A ticket names the lane that sends, and the buffer that is received.
    return f", dropped here and read in place by {borrower.device}" + _made(
        borrower, owner.buffer & ((1 << TICKET_BITS) - 1), " as the array made at "
    )


def _made(lane: Lane, buffer: int, words: str) -> str:
    return f"{words}{describe(lane.owners[buffer])}" if buffer in lane.owners else ""
