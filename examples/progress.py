"""Shows how far something has come: a bar in a terminal, else a line now and then."""

from __future__ import annotations

import sys
from typing import Any


class Progress:
    """`with Progress("epoch", 10) as progress:`, and `progress.step()` ten times. Without tqdm there are only lines."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, total, 0
        self._bar: Any = None
        if sys.stderr.isatty():
            try:
                from tqdm import tqdm  # type: ignore[import-untyped]
            except ImportError:
                return
            self._bar = tqdm(total=total, desc=what, dynamic_ncols=True)

    def step(self, told: str = "") -> None:
        """One more is done; `told` is how it went."""
        self._done += 1
        if self._bar is not None:
            self._bar.set_postfix_str(told, refresh=False)
            self._bar.update()
        elif self._done * 10 // self._total > (self._done - 1) * 10 // self._total:
            print(f"{self._what} {self._done}/{self._total}{': ' if told else ''}{told}", flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
