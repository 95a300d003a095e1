"""Calls of NumPy's functions by their names: whatever has no operation of its own.

The arguments become a tree of plain values (`protocol/trees.py`), the arrays among them operands. What the call gives
is found by trying it on small samples (`fitting.py`); where that cannot tell, the worker does (`asked.py`). Either way
the call returns at once.
"""

from __future__ import annotations

import functools
import marshal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..protocol import trees
from ..protocol.functions import FUNCTIONS, UFUNC_METHODS, WRITING
from ..protocol.operations import BY_NAME
from . import asked
from .infer import Inferred, check_dtype
from .issue import Handle, _elsewhere, _issue, refuse_frozen, upload
from .lane import Lane
from .numbers import Number
from .sites import Site, user_site

if TYPE_CHECKING:
    from . import fitting

_KEPT: Final = 20_000
_ROWS: Final = (BY_NAME["named"], BY_NAME["named_write"], BY_NAME["named_write_two"])
_found: dict[Any, fitting.Found] = {}


def name_of(function: Callable[..., Any]) -> str | None:
    """The name under which workers know one of NumPy's functions; None if they do not."""
    return _names().get(function)


@functools.cache
def _names() -> dict[Any, str]:
    known: dict[Any, str] = {}
    for name in (*FUNCTIONS, *WRITING):
        found: Any = np
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is not None:
            known.setdefault(found, name)
    for name, each in vars(np).items():
        if isinstance(each, np.ufunc) and name == each.__name__ and name != "isnat":
            known[each] = name
            for method in UFUNC_METHODS:
                known[getattr(each, method)] = f"{name}.{method}"
    return known


def call(
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    writes: Sequence[Any] = (),
    lane: Lane | None = None,
    cls: type[Any] | None = None,
) -> Any:
    """Issue a call of a function by its name.

    Args:
        name: as in `protocol/functions.py`.
        args, kwargs: as NumPy takes them, with Interlock's arrays among them.
        writes: those of the arrays that it writes to; then nothing else comes of it.
        lane: where, if no array says so.
        cls: the class of the new arrays; None for that of the arrays.

    Returns:
        What NumPy returns, with an array in place of each array and number; None where it writes.

    Raises:
        TypeError: an argument can be given to no worker.
        Exception: what NumPy raises for arrays of these specs.
    """
    site = user_site(2)
    lane, cls = _where(args, kwargs, lane, cls)
    for each in writes:
        refuse_frozen(each, "output array")
    noted = Operands(list(writes), lane, cls, site)
    given = {} if not kwargs else {key: value for key, value in kwargs.items() if value is not np._NoValue}
    tree = ("(", ("(", *[trees.encode(each, noted.note) for each in args]), trees.encode(given, noted.note))
    operands = noted.operands
    specs = tuple([each._spec for each in operands])
    for spec in specs:
        check_dtype(spec.dtype)
    found = _find(name, tree, specs, len(writes))
    refs = tuple([each._ref for each in operands])
    if writes:
        _issue(_ROWS[len(writes)], Inferred(()), refs, True, (name, tree), None, lane, cls, site)
        return None
    made: list[Any]
    if found.specs is None:
        count = 1 if found.arrays < 0 else found.arrays
        made = asked.issue(name, tree, refs, count, lane, cls, site)
    else:
        issued = _issue(_ROWS[0], Inferred(found.specs), refs, True, (name, tree), None, lane, cls, site)
        made = [issued] if len(found.specs) == 1 else list(issued or ())
    return made[0] if found.structure is None else found.structure(made)


class Operands:
    """The arrays among a call's arguments, as they are met. No closure: it would live until the next collection."""

    def __init__(self, operands: list[Any], lane: Lane, cls: type[Any], site: Site) -> None:
        self.operands = operands
        self._lane = lane
        self._cls = cls
        self._site = site

    def note(self, value: Any) -> Any:
        """What stands in the tree for an array, or for a number of a recording; None for anything else."""
        if isinstance(value, Handle):
            if value._lane is not self._lane:
                raise _elsewhere(self._lane, value._lane)
            for place, other in enumerate(self.operands):
                if other is value:
                    return ("@", place)
            return self._add(value)
        if type(value) is Number:
            return trees.encode(value.pinned(), self.note)
        if isinstance(value, np.ndarray) and value.nbytes > trees.INLINE:
            check_dtype(value.dtype.newbyteorder("="))
            return self._add(upload(value, self._lane, self._cls, self._site))
        return None

    def _add(self, array: Any) -> Any:
        self.operands.append(array)
        return ("@", len(self.operands) - 1)


def _where(args: Any, kwargs: Any, lane: Lane | None, cls: type[Any] | None) -> tuple[Lane, type[Any]]:
    """The lane and the class of the first array among the arguments."""
    first = _first((*args, *kwargs.values()) if kwargs else args)
    if first is not None:
        lane, cls = first._lane, cls or type(first)
    if lane is None or cls is None:
        from .array import Array
        from .client import lane_of

        lane, cls = lane or lane_of(None), cls or Array
    return lane, cls


def _first(args: Any) -> Any:
    for each in args:
        if isinstance(each, Handle):
            return each
        if isinstance(each, (list, tuple)):
            found = _first(each)
            if found is not None:
                return found
    return None


def _find(name: str, tree: Any, specs: tuple[Any, ...], writes: int) -> fitting.Found:
    # The dump tells 1, 1.0 and True apart, as == does not.
    exactly = (name, specs, writes, marshal.dumps(tree, 2))
    found = _found.get(exactly)
    if found is not None:
        return found
    if len(_found) >= _KEPT:
        _found.clear()
    # A float's value decides no shape; an int's may.
    key = (name, specs, writes, marshal.dumps(_without_floats(tree), 2))
    found = _found.get(key)
    if found is None:
        from . import fitting  # here, as many programs need none of it

        found = fitting.find(name, tree, specs, writes)
        for each in found.specs or ():
            check_dtype(each.dtype)
        _found[key] = found
    _found[exactly] = found
    return found


def _without_floats(tree: Any) -> Any:
    kind = type(tree)
    if kind is tuple:
        return tuple([_without_floats(each) for each in tree])
    return ... if kind is float else tree
