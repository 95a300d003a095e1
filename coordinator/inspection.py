"""What the array API standard lets a program ask: capabilities, devices, dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from .client import default_session
from .lane import Device

_DTYPES: dict[str, tuple[str, ...]] = {
    "bool": ("bool",),
    "signed integer": ("int8", "int16", "int32", "int64"),
    "unsigned integer": ("uint8", "uint16", "uint32", "uint64"),
    "real floating": ("float32", "float64"),
    "complex floating": ("complex64", "complex128"),
}
_DTYPES["integral"] = _DTYPES["signed integer"] + _DTYPES["unsigned integer"]
_DTYPES["numeric"] = _DTYPES["integral"] + _DTYPES["real floating"] + _DTYPES["complex floating"]


class __array_namespace_info__:  # noqa: N801  # the standard's name
    """The answers for the default session."""

    def capabilities(self) -> dict[str, Any]:
        """Masks select and shapes may depend on values: then whoever needs the shape waits for it."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Device:
        return default_session().devices[0]

    def default_dtypes(self, *, device: Device | str | None = None) -> dict[str, np.dtype[Any]]:
        self._check(device)
        names = {"real floating": "float64", "complex floating": "complex128", "integral": "int64", "indexing": "int64"}
        return {kind: np.dtype(name) for kind, name in names.items()}

    def dtypes(
        self, *, device: Device | str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, np.dtype[Any]]:
        self._check(device)
        kinds = ("bool", "numeric") if kind is None else (kind,) if isinstance(kind, str) else kind
        unknown = [each for each in kinds if each not in _DTYPES]
        if unknown:
            raise ValueError(f"unsupported kind: {unknown[0]!r}")
        return {name: np.dtype(name) for each in kinds for name in _DTYPES[each]}

    def devices(self) -> list[Device]:
        return list(default_session().devices)

    @staticmethod
    def _check(device: Device | str | None) -> None:
        if device is not None and not isinstance(device, Device):
            default_session().device(device)
