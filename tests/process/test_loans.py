"""What a worker lends for a read comes back, wherever Ctrl-C came in between."""

from __future__ import annotations

from typing import Any

import pytest

import interlock as il
from interlock.coordinator import answers, events


@pytest.mark.parametrize("at", ["_ask", "wait", "value"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupted_read_gives_back_what_was_lent_for_it(
    at: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with il.connect("cpu:0") as session:
        x = il.ones(100_000)
        il.synchronize()
        owner: Any = {"_ask": session, "wait": session.receiver, "value": answers}[at]
        sound = getattr(owner, at)

        def interrupted(*arguments: Any) -> Any:
            if when == "before":
                raise KeyboardInterrupt
            sound(*arguments)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(owner, at, interrupted)
            with pytest.raises(KeyboardInterrupt):
                x.numpy()
        for _ in range(3):  # the answer may come only now
            il.synchronize()
        assert session.inspect()["cpu:0"]["lent"] == 0
        assert x.numpy().sum() == 100_000


def test_an_answer_that_is_handled_once_more_is_not_given_back_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C comes while one thread takes in the answer that another one waits for."""
    with il.connect("cpu:0") as session:
        x = il.ones(100_000)
        il.synchronize()
        pending = session.ask(x._lane, x._ref, None)
        sound, interrupts = events.Pending.happened, [KeyboardInterrupt]

        def happened(self: events.Pending, fact: Any) -> None:
            if interrupts:
                raise interrupts.pop()
            sound(self, fact)

        with monkeypatch.context() as patched:
            patched.setattr(session.receiver, "_take_in", lambda: None)  # the background thread is not interrupted
            patched.setattr(events.Pending, "happened", happened)
            with pytest.raises(KeyboardInterrupt):
                session.receiver.wait(pending)
            assert session.receiver.wait(pending, 30)
        assert not x._lane.loans_over
        assert session.inspect()["cpu:0"]["lent"] == 1
        assert answers.value(session, pending, x._spec).sum() == 100_000
