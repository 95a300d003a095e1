"""Messages to bytes and back. The one file that knows msgpack.

A message is the msgpack array [tag, field, field, ...]. What comes in is checked: known tag, number and
types of the fields, and bounds on every size, so that a few bytes cannot claim gigabytes.
Nothing here can run code that the bytes name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]

from .errors import ProtocolError
from .limits import LARGEST_MESSAGE as LARGEST_MESSAGE
from .limits import LARGEST_NOTE
from .messages import TAGS, Batch, Message, Shape, Ticket, Traced, Value

# Those that carry instructions, arrays or records, and so may be large. Every length inside a message is bounded by
# the message's own size besides, which is what msgpack takes for its limits by default.
_LARGE: Final = frozenset({TAGS[cls] for cls in (Batch, Ticket, Value, Traced)})


def packer() -> Callable[[Any], bytes]:
    """A function from plain values to bytes, quicker than making a packer each time. One thread at a time."""
    pack: Callable[[Any], bytes] = msgpack.Packer(autoreset=True, use_bin_type=True).pack
    return pack


def encode(message: Message) -> bytes:
    """The bytes of a message."""
    packed: bytes = msgpack.packb((TAGS[type(message)], *message), use_bin_type=True)
    return packed


def _refuse(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} is no plain value")


def decode(data: bytes | memoryview) -> Message:
    """The message in `data`.

    Raises:
        ProtocolError: for anything that is not exactly one well-formed message.
    """
    if len(data) > LARGEST_MESSAGE:
        raise ProtocolError(f"a message of {len(data)} bytes is over the limit of {LARGEST_MESSAGE}")
    if len(data) > LARGEST_NOTE and data[1] not in _LARGE:  # its tag, which takes one byte; before all is unpacked
        raise ProtocolError(f"a message of this kind may have {LARGEST_NOTE} bytes, not {len(data)}")
    try:
        tag, *fields = msgpack.unpackb(data, use_list=False, raw=False, strict_map_key=True, ext_hook=_refuse)
        cls, allowed = Shape.of[tag]
    except Exception as error:
        raise ProtocolError(f"not a message of this protocol ({type(error).__name__}: {error})") from None
    if len(fields) != len(allowed):
        raise ProtocolError(f"{cls.__name__} has {len(allowed)} fields, the message has {len(fields)}")
    for place, types in enumerate(allowed):
        if types is not None and type(fields[place]) not in types:
            raise ProtocolError(f"{cls.__name__}.{cls._fields[place]} cannot be a {type(fields[place]).__name__}")
    return cls._make(fields)
