"""The exception of a failed array: its class, its words, its lines."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from interlock import InterlockError, OutOfDeviceMemory, WorkerLost
from interlock.coordinator import failures
from interlock.coordinator.failures import Cause, Ledger, again, exception, unread, worker_lost
from interlock.coordinator.sites import describe, place


def here() -> tuple[object, int]:
    frame = sys._getframe(1)
    return frame.f_code, frame.f_lasti


def cause(kind: str, text: str = "words") -> Cause:
    return Cause(kind, text, "Traceback: there\n", "add(float64 (2,), float64 (2,))")


@pytest.mark.parametrize(
    ("kind", "cls"),
    [
        ("IndexError", IndexError),
        ("ValueError", ValueError),
        ("AxisError", np.exceptions.AxisError),
        ("LinAlgError", np.linalg.LinAlgError),
        ("OutOfDeviceMemory", OutOfDeviceMemory),
        ("WorkerLost", WorkerLost),
    ],
)
def test_the_class_and_the_words_are_the_originals(kind: str, cls: type[Exception]) -> None:
    made = exception(cause(kind), "cpu:1", None, [])
    assert type(made) is cls
    assert "words" in str(made)


@pytest.mark.parametrize("kind", ["SomethingElse", "UnicodeDecodeError", "SystemExit", "KeyboardInterrupt"])
def test_a_class_that_cannot_be_had_becomes_an_interlock_error_with_its_name(kind: str) -> None:
    made = exception(cause(kind), "cpu:1", None, [])
    assert type(made) is InterlockError
    assert str(made) == f"{kind}: words"


def test_the_notes_tell_where_what_and_how_it_came() -> None:
    site = here()  # this very line
    made = exception(cause("IndexError"), "cpu:1", site, [("sim:0", site)])  # type: ignore[arg-type, list-item]
    story = "\n".join(made.__notes__)
    assert "add(float64 (2,), float64 (2,)) failed on cpu:1" in story
    assert "site = here()  # this very line" in story
    assert "reached through sim:0" in story
    assert "on the worker of cpu:1:\nTraceback: there" in story


def test_a_site_is_resolved_to_its_line() -> None:
    site = here()
    file, line, function = place(site)  # type: ignore[arg-type]
    assert (file, function) == (__file__, "test_a_site_is_resolved_to_its_line")
    assert "site = here()" in describe(site)  # type: ignore[arg-type]
    assert str(line) in describe(site)  # type: ignore[arg-type]
    assert place(None) == ("<unknown>", 0, "<unknown>")


def test_raising_again_keeps_the_story_and_drops_the_traceback() -> None:
    error = worker_lost("cpu:2", "was ended by SIGKILL", "", here())  # type: ignore[arg-type]
    try:
        raise error
    except WorkerLost as raised:
        copy = again(raised)
    assert copy is not error
    assert copy.__traceback__ is None
    assert str(copy) == str(error)
    assert copy.__notes__ == error.__notes__
    assert "cpu:2 was ended by SIGKILL" in str(copy)


def test_unread_failures_are_counted_and_the_first_told() -> None:
    made = exception(cause("IndexError"), "cpu:1", None, [])
    assert unread(3, [made]).startswith("3 failed operations whose error nobody read:\nIndexError: words")
    assert unread(1, [made]).startswith("1 failed operation whose")


def test_unread_failures_come_in_the_order_of_issue_and_once() -> None:
    ledger = Ledger()
    ledger.failed((1, 5), cause("IndexError", "later"), None, 20)
    ledger.failed((0, 9), cause("IndexError", "earlier"), None, 10)
    assert [c.text for _, c, _ in ledger.take_unread()] == ["earlier", "later"]
    assert ledger.take_unread() == []
    assert ledger.raised((0, 9)) == (cause("IndexError", "earlier"), None)  # still known


def test_what_a_read_raised_before_its_report_came_is_not_unread() -> None:
    ledger = Ledger()
    assert ledger.raised((1, 5)) is None
    ledger.failed((1, 5), cause("IndexError"), None, 1)
    assert ledger.take_unread() == []


def test_a_program_that_fails_for_ever_is_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "KEPT", 10)
    ledger = Ledger()
    for n in range(1, 1000):
        ledger.failed((0, n), cause("IndexError", str(n)), None, n)
        ledger.inherited((0, n), None, (0, 1))
        ledger.raised((1, n))
    assert [c.text for _, c, _ in ledger.take_unread()] == [str(n) for n in range(990, 1000)]
    assert max(map(len, (ledger._causes, ledger._inherited, ledger._unread, ledger._raised))) <= 10
