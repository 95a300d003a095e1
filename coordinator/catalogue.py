"""What becomes of each of NumPy's functions on Interlock's arrays, from the tables that decide it.

python -m interlock.coordinator.catalogue > docs/functions.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from ..protocol.operations import BY_NAME
from . import fitting, functions, named, protocols, reshaping

OWN: Final = "asynchronous"
VIEW: Final = "a view, at once"
HERE: Final = "answered at once"
BY_NAME_: Final = "asynchronous, by name"
WAITS: Final = "waits for its shape"
SOMETIMES: Final = "asynchronous, by name; waits for its shape if values decide"
READS: Final = "reads"
REFUSED: Final = "refused"

# When values decide, in the cases that `fitting` tells apart by the arguments.
_CONDITIONS: Final = {
    "delete": "with several indices or a mask",
    "histogram": "with bins by a rule's name",
    "histogram2d": "with bins by a rule's name",
    "histogram_bin_edges": "with bins by a rule's name",
    "histogramdd": "with bins by a rule's name",
    "insert": "with a mask",
    "ix_": "with masks",
    "polyfit": "with `full` or `cov`",
    "repeat": "with an array of counts",
}
_READING: Final = (
    "array2string", "array_repr", "array_str", "asmatrix", "bmat", "min_scalar_type", "require",
)  # fmt: skip


def kind_of(name: str) -> str | None:
    """What becomes of NumPy's function of this name (`linalg.svd`, `roll`); None if it takes no arrays.

    None, too, if this NumPy has none of the name. A ufunc's methods and options are as asynchronous as the ufunc.
    """
    found: Any = np
    for part in name.split("."):
        found = getattr(found, part, None)
    plain = name.rpartition(".")[2]
    if found is None:
        return None
    if plain in _READING and "." not in name:
        return READS
    if isinstance(found, np.ufunc):
        return OWN if found.__name__ in BY_NAME else BY_NAME_ if named.name_of(found) else None
    if found in protocols._FUNCTIONS:
        return OWN
    if found in reshaping.VIEWING:
        return VIEW
    if found in protocols._ON_THE_FRONTEND:
        return HERE
    known = named.name_of(found)
    if known is not None:
        if known in fitting.WAITING:
            return WAITS
        return SOMETIMES if known in _CONDITIONS else BY_NAME_
    return REFUSED if plain in protocols.NEAREST else None


def names() -> Iterator[str]:
    """NumPy's public functions and ufuncs, as `kind_of` takes them."""
    for prefix, module in (("", np), ("linalg.", np.linalg), ("fft.", np.fft)):
        for name in sorted(module.__all__):
            each = getattr(module, name)
            if callable(each) and not isinstance(each, type):
                yield prefix + name


def _row(name: str) -> str:
    kind = kind_of(name)
    if kind == SOMETIMES:
        kind = f"{BY_NAME_}; {WAITS} {_CONDITIONS[name]}"
    elif kind == REFUSED:
        kind = f"{REFUSED}: use {protocols.NEAREST[name.rpartition('.')[2]]}"
    return f"| `{name}` | {kind} |"


def _standard() -> Iterator[str]:
    """The array API standard's names that are not NumPy's, or mean more in `interlock` than in `numpy`."""
    more: dict[str, Callable[[], str]] = {"argsort": lambda: "`descending`", "sort": lambda: "`descending`"}
    for name, said in more.items():
        yield f"| `il.{name}` | {OWN}, with {said()} |"
    yield f"| `il.unique_values` | {WAITS}; in order |"
    for alias, name in sorted(functions.ALIASES.items()):
        yield f"| `il.{alias}` | {OWN}, as `{name}` |"


def _version() -> str:
    return ".".join(np.__version__.split(".")[:2])


def page() -> str:
    """The whole table as Markdown."""
    listed = [name for name in names() if kind_of(name) is not None]
    return "\n".join(
        [
            "# NumPy's functions on Interlock's arrays",
            "",
            f"Made by `python -m interlock.coordinator.catalogue` with NumPy {_version()}; "
            "the tests compare it with what the functions do.",
            "`np.f(x)` and, under the same name, `il.f(x)`, `il.linalg.f(x)`, `il.fft.f(x)`.",
            "",
            f"- **{OWN}**: an operation of its own; shape and dtype are known when the call returns.",
            f"- **{BY_NAME_}**: the worker calls NumPy's function; shape and dtype are known when the call returns.",
            f"- **{WAITS}**: the call returns at once; whatever needs the shape or the dtype waits for the worker.",
            "  So it is, too, if a function by name has a shape that small samples do not tell, such as `np.kron` of"
            " large arrays.",
            f"- **{VIEW}**: nothing is sent. **{HERE}**: no element is looked at.",
            f"- **{READS}**: the result is no array of a device: the call waits for the elements.",
            f"- **{REFUSED}**: with a TypeError that names what to use instead.",
            "",
            "Functions that take no arrays of numbers (`np.load`, `np.seterr`, ...) are not listed.",
            "",
            f"| {len(listed)} functions of `numpy` | on Interlock's arrays |",
            "| --- | --- |",
            *map(_row, listed),
            "",
            "| the array API standard's, in `interlock` | |",
            "| --- | --- |",
            *_standard(),
            "",
        ]
    )


if __name__ == "__main__":
    print(page(), end="")
