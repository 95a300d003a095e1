"""A worker whose messages are late: it sleeps, by chance and by its seed, before it tells or takes in something."""

from __future__ import annotations

import random
import sys
import time
from typing import Any, Final

from interlock.worker import loop
from interlock.worker.__main__ import main

SHARE: Final = 0.05
LATEST_S: Final = 0.004


def late(cls: type[Any], name: str, chance: random.Random) -> None:
    """Have a method sleep now and then before it does what it does."""
    sound = getattr(cls, name)

    def slowly(*arguments: Any) -> Any:
        if chance.random() < SHARE:
            time.sleep(chance.uniform(0, LATEST_S))
        return sound(*arguments)

    setattr(cls, name, slowly)


if __name__ == "__main__":
    chance = random.Random(f"{sys.argv[1]} {sys.argv[2:6]}")
    for method in ("report", "tell"):
        late(loop.Session, method, chance)
    for method in ("_handle", "_handle_in_batch"):
        late(loop.Worker, method, chance)
    sys.exit(main(sys.argv[2:]))
