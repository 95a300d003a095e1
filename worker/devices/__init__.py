"""Which device file a device kind means. Imports that one only, so that a CPU worker never loads a GPU's library."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final

from ...protocol.errors import InterlockError
from ...protocol.identity import Identity
from .base import Device

KINDS: Final = {"cpu": "host", "sim": "sim", "cuda": "cuda"}


def open_device(
    kind: str, index: int, *, limit_bytes: int, identity: Identity, options: Mapping[str, Any] | None = None
) -> Device:
    """Opens a device, from the thread that will make all its calls.

    Args:
        kind: 'cpu', 'sim' or 'cuda'.
        index: which of that kind.
        limit_bytes: how much memory it may take up.
        identity: of this process.
        options: what that kind of device understands; its file says.
    """
    if kind not in KINDS:
        raise InterlockError(f"no device kind {kind!r}: there are {', '.join(KINDS)}")
    try:
        module = importlib.import_module(f".{KINDS[kind]}", __name__)
    except ModuleNotFoundError as error:
        raise InterlockError(
            f"{kind}:{index} cannot be opened: {error.name} is missing in this installation; install interlock[{kind}]"
        ) from error
    device: Device = module.open_device(index, limit_bytes, identity, options or {})
    return device
