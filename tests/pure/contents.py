"""Everything in an object of slots, as plain values: so that a test can say that a refused fact changed nothing."""

from __future__ import annotations

from collections import deque


def contents(thing: object) -> object:
    """The slots of `thing`, and of what is in them, as lists and dictionaries that can be compared and printed."""
    if isinstance(thing, dict):
        return [(key, contents(value)) for key, value in thing.items()]  # in order: some dictionaries are kept so
    if isinstance(thing, (list, tuple, deque)):
        return [contents(value) for value in thing]
    if isinstance(thing, (set, frozenset)):
        return set(thing)
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    return {name: contents(getattr(thing, name)) for name in slots} if slots else thing
