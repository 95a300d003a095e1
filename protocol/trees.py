"""The arguments of a call as an instruction carries them: a tree of plain values in which arrays are places.

`encode` makes a tree of what the user gave, `decode` gives the worker the same arguments back: None, bools, ints,
floats and strings stand for themselves, everything else is a tuple whose first item says what it is:

    ("@", place)                        the operand at this place: an array
    ("(", item, ...), ("[", item, ...)  a tuple, a list
    ("{", name, item, name, item, ...)  a dict with strings as keys
    (":", start, stop, step)            a slice
    ("...",)                            the ellipsis
    ("d", dtype string)                 a dtype
    ("n", dtype string, bytes)          a NumPy scalar
    ("a", dtype string, shape, bytes)   a small NumPy array
    ("z", real, imaginary)              a complex number
    ("i", digits)                       an int of more than 64 bits

Knows NumPy's types, nothing of functions, and has no way to name code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from .specs import dtype_of

INLINE: Final = 512  # bytes; a NumPy array up to here is part of the tree, a larger one becomes an operand
_BARE: Final = frozenset((type(None), bool, float, str))
_TYPES: Final = frozenset((bool, int, float, complex))
_KINDS: Final = "biufc"


class NoPlainValue(TypeError):
    """An argument that no instruction can carry."""


def encode(value: Any, special: Callable[[Any], Any]) -> Any:
    """The tree of an argument.

    Args:
        value: what the user gave, nested in tuples, lists and dicts as it may be.
        special: the tree of what the caller knows of, such as ("@", place) of an array; None for anything else.

    Raises:
        NoPlainValue: something in it is neither an array nor plain.
    """
    kind = type(value)
    if kind in _BARE:
        return value
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 63 else ("i", str(value))
    found = special(value)
    if found is not None:
        return found
    if isinstance(value, tuple):
        return ("(", *[encode(each, special) for each in value])
    if isinstance(value, (list, range)):
        return ("[", *[encode(each, special) for each in value])
    if kind is dict:
        return ("{", *[part for key, each in value.items() for part in (_name(key), encode(each, special))])
    if kind is slice:
        return (":", encode(value.start, special), encode(value.stop, special), encode(value.step, special))
    if value is Ellipsis:
        return ("...",)
    if isinstance(value, np.generic):
        return ("n", _checked(value.dtype).str, value.tobytes())
    if isinstance(value, np.ndarray):
        native = np.ascontiguousarray(value, _checked(value.dtype).newbyteorder("="))
        return ("a", native.dtype.str, value.shape, native.tobytes())
    return _unusual(value)


def _unusual(value: Any) -> Any:
    if isinstance(value, np.dtype) or (isinstance(value, type) and (value in _TYPES or issubclass(value, np.generic))):
        return ("d", np.dtype(value).newbyteorder("=").str)
    if isinstance(value, complex):
        return ("z", value.real, value.imag)
    for base in (bool, int, float, str):
        if isinstance(value, base):
            return encode(base(value), lambda _: None)
    if hasattr(value, "__index__"):
        return encode(value.__index__(), lambda _: None)
    raise NoPlainValue(f"a {type(value).__name__} is neither an array nor a plain value: no worker can be given it")


def _name(key: Any) -> str:
    if not isinstance(key, str):
        raise NoPlainValue(f"a dict with {key!r} as a key is no plain value: no worker can be given it")
    return key


def _checked(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind not in _KINDS:
        raise NoPlainValue(f"dtype {dtype} is not supported: arrays hold bool, int, float and complex")
    return dtype


def decode(tree: Any, operands: Sequence[Any]) -> Any:
    """The argument that `encode` made a tree of, with these arrays in their places."""
    if type(tree) is not tuple:
        return tree
    what, *items = tree
    if what == "@":
        return operands[items[0]]
    if what == "(":
        return tuple([decode(each, operands) for each in items])
    if what == "[":
        return [decode(each, operands) for each in items]
    if what == "{":
        return {key: decode(each, operands) for key, each in zip(items[::2], items[1::2], strict=True)}
    if what == ":":
        return slice(*[decode(each, operands) for each in items])
    if what == "n":
        return np.frombuffer(items[1], dtype_of(items[0]))[0]
    if what == "a":
        return np.frombuffer(items[2], dtype_of(items[0])).reshape(items[1]).copy()
    if what == "d":
        return dtype_of(items[0])
    if what == "z":
        return complex(*items)
    if what == "i":
        return int(items[0])
    if what == "...":
        return Ellipsis
    raise ValueError(f"no tree begins with {what!r}")


def leaves(result: Any) -> Iterator[Any]:
    """The arrays and numbers that a function returned, in order, whatever tuples and lists they are nested in."""
    if isinstance(result, (tuple, list)):
        for each in result:
            yield from leaves(each)
    else:
        yield result
