"""Times until everything is done everywhere, and measurements that leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from measuring import seconds

import interlock as il


def done(work: Callable[[], Any]) -> float:
    """Seconds until `work` is done everywhere; what was dropped before it has been freed."""
    il.synchronize()

    def whole() -> Any:
        held = work()
        il.synchronize()
        return held

    return seconds(whole)


def settled(figure: float) -> float:
    """The figure, when what it measured has been done, so that the next side finds idle workers."""
    il.synchronize()
    return figure
