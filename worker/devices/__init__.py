"""Which device file a device kind means. Imports that one only, so that a CPU worker never loads a GPU's library."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final

from ...protocol.errors import InterlockError
from ...protocol.identity import Identity
from .base import Device

KINDS: Final = {"cpu": "host", "sim": "sim", "cuda": "cuda"}
PLAIN: Final = ("cpu", "sim")  # kinds that load no library but NumPy


def open_device(
    kind: str, index: int, *, limit_bytes: int, identity: Identity, options: Mapping[str, Any] | None = None
) -> Device:
    """Opens a device, from the thread that will make all its calls.

    Args:
        kind: 'cpu', 'sim' or 'cuda'.
        index: which of that kind.
        limit_bytes: how much memory it may take up.
        identity: of this process.
        options: what that kind of device understands; its file says. What only others understand is for them.
    """
    if kind not in KINDS:
        raise InterlockError(f"no device kind {kind!r}: there are {', '.join(KINDS)}")
    module_name = f"{__name__}.{KINDS[kind]}"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name == module_name:
            raise InterlockError(
                f"{kind}:{index} cannot be opened: this version of interlock has no {kind} device"
            ) from error
        raise InterlockError(
            f"{kind}:{index} cannot be opened: {error.name} is missing in this installation; install interlock[{kind}]"
        ) from error
    chosen = _without_others(kind, options) if options else {}
    device: Device = module.open_device(index, limit_bytes, identity, chosen)
    return device


def _without_others(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, but for those that this kind does not have and another one has."""
    named = {each: set(importlib.import_module(f".{KINDS[each]}", __name__).OPTIONS) for each in {kind, *PLAIN}}
    others = set().union(*named.values()) - named[kind]
    return {name: value for name, value in options.items() if name not in others}
