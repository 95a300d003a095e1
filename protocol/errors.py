"""The errors that Interlock itself raises, for user code and for both sides of the wire.

What NumPy would refuse is raised with NumPy's own exception types, not with these.
"""

from __future__ import annotations

from .shortage import Shortage


class InterlockError(Exception):
    """Anything that goes wrong in Interlock and is not NumPy's to refuse."""


class WorkerLost(InterlockError):
    """The worker that held an array, or that had to make it, is gone."""


class OutOfDeviceMemory(InterlockError, MemoryError):
    """An operation needed more memory than its device has left. The worker goes on."""

    shortage: Shortage | None = None  # what is known of it, where it was found


class Cancelled(InterlockError):
    """The array was never made: its operation was dropped before it started."""


class ProtocolError(InterlockError):
    """A peer spoke another protocol version, another operation table, or nonsense."""


class Unreachable(InterlockError):
    """Nobody answers at an address, or whoever does will not let this program in."""


class DeviceLost(InterlockError):
    """The device is broken for good (a sticky fault): its worker must end and be replaced."""


class ImportFailed(InterlockError):
    """Memory of another process could not be opened here: use the path over the host."""


class PeerGone(InterlockError):
    """The process that owned the memory has gone."""


class Stale(InterlockError):
    """A ticket of an earlier incarnation or generation: what it names is not there any more."""
