"""What a launcher is asked and answers: JSON, one question and one answer.

A launcher is spoken to by programs that look for workers, and by the `interlock` command.
"""

from __future__ import annotations

import json
from typing import Any, Final

from .errors import ProtocolError

ROSTER: Final = b"roster"  # answered by the workers that run: (device, endpoint, identity) each
STATUS: Final = b"status"  # answered by a mapping for people
DOWN: Final = b"down"  # answered by "ok", and the launcher ends


def roster(workers: list[tuple[str, str, tuple[Any, ...]]]) -> bytes:
    """The answer to ROSTER."""
    return json.dumps({"workers": workers}).encode()


def parse_roster(answer: bytes) -> list[tuple[str, str, tuple[Any, ...]]]:
    """The workers in an answer to ROSTER.

    Raises:
        ProtocolError: it is no such answer.
    """
    try:
        return [
            (str(device), str(endpoint), tuple(identity))
            for device, endpoint, identity in json.loads(answer)["workers"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"not a launcher's answer ({error})") from None
