"""How large what crosses the wire may be. Pure.

A message over the limit is refused by its receiver, and costs its sender the connection; so nothing of ours sends one:
an array that would need one is refused where it is to be sent, with what to do.
"""

from __future__ import annotations

from typing import Final

LARGEST_MESSAGE: Final = 1 << 30  # bytes; larger arrays lie in shared memory
CARRIED: Final = LARGEST_MESSAGE - (1 << 16)  # bytes of an array that travels inside a message, which says more
LARGEST_NOTE: Final = 64 << 20  # bytes of a message that carries neither instructions nor arrays
LARGEST_QUESTION: Final = 1 << 16  # bytes of what a launcher is asked


def too_large(nbytes: int, what: str) -> str:
    """The words for an array that no message can carry; `what` it cannot do so."""
    return (
        f"an array of {nbytes} bytes cannot {what}: to another machine it travels inside one message, which carries at "
        f"most {CARRIED} bytes; send it in parts, such as x[:n] and x[n:]"
    )
