"""A worker whose process ends in the middle of some operations: arctan, arcsinh and arccosh on arrays of any size."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from interlock.protocol.errors import DeviceLost
from interlock.worker import executor, replay


def leave(*_: Any) -> None:
    os._exit(7)


def crash(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def lose_device(*_: Any) -> None:
    raise DeviceLost("a sticky fault")


ENDS: dict[str, Callable[..., None]] = {"arctan": leave, "arcsinh": crash, "arccosh": lose_device}


def plant(module: Any) -> None:
    sound = module.kernel
    module.kernel = lambda operation, xp: ENDS.get(operation.name) or sound(operation, xp)


if __name__ == "__main__":
    plant(executor)
    plant(replay)
    from interlock.worker.__main__ import main

    sys.exit(main())
