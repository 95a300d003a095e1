"""What a worker lends for a read comes back, wherever Ctrl-C came in between."""

from __future__ import annotations

from typing import Any

import pytest

import interlock as il


@pytest.mark.parametrize("at", ["_ask", "wait", "value"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupted_read_gives_back_what_was_lent_for_it(
    at: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with il.connect("cpu:0") as session:
        x = il.ones(100_000)
        il.synchronize()
        owner: Any = session.receiver if at == "wait" else session
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
