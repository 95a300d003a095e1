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
JOIN: Final = b"join "  # and a worker as in ROSTER, which another supervisor started; see `joined`


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
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProtocolError(f"not a launcher's answer ({error})") from None


def join(device: str, endpoint: str, identity: tuple[Any, ...]) -> bytes:
    """The question that adds a worker to a launcher's roster, for as long as its process lives."""
    return JOIN + json.dumps([device, endpoint, identity]).encode()


def parse_join(question: bytes) -> tuple[str, str, tuple[Any, ...]]:
    """The worker in a JOIN.

    Raises:
        ProtocolError: it is no such question.
    """
    try:
        device, endpoint, identity = json.loads(question.removeprefix(JOIN))
        return str(device), str(endpoint), tuple(identity)
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"not a worker's greeting ({error})") from None


def joined(launcher: tuple[Any, ...] | None, reason: str = "") -> bytes:
    """The answer to JOIN: who the launcher is, whose end the worker should follow; or why it was refused."""
    return json.dumps({"launcher": launcher, "reason": reason}).encode()


def parse_joined(answer: bytes) -> tuple[tuple[Any, ...] | None, str]:
    """(the launcher's identity or None, the reason) of an answer to JOIN.

    Raises:
        ProtocolError: it is no such answer.
    """
    try:
        told = json.loads(answer)
        return (None if told["launcher"] is None else tuple(told["launcher"])), str(told["reason"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProtocolError(f"not a launcher's answer ({error})") from None
