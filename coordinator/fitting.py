"""The specs of what a function called by name will give, found by trying it on small arrays.

For functions that no other rule knows. The function is called on samples: of the real shapes where these are small,
else with small extents in place of large ones. The result's extents must then be linear in these, which more samples
tell, each with one of the extents grown: a padded axis grows with its operand's, a repeated one twice as fast. They
grow by two, as some functions halve an extent. What is not linear, and whatever depends on values, has no spec before
it is computed: then the worker tells (`asked.py`). The result's nesting (a tuple, a list, one of NumPy's named tuples)
comes from the sample in any case.

Pure: no sockets, threads, clocks or devices.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from ..protocol.functions import carry_out
from ..protocol.specs import Spec, packed_strides, spec
from ..protocol.trees import decode, leaves

Array = np.ndarray[Any, Any]

SMALL: Final = 256  # elements of all operands together, up to which the sample has the real shapes
LARGEST: Final = 1 << 14  # elements that a sample may have
LARGEST_OF_CUBIC: Final = 1 << 10  # the same of a matrix that is decomposed
LARGEST_REAL: Final = 1 << 16  # elements of the real shapes with which a refusal is made sure of
LEAST: Final = 4  # the smallest extent that stands for a larger one
GROWTH: Final = 2
FAR: Final = (40, 15, 5, 2)  # times that growth, the first for which the sample is not too large
APART: Final = 2 * GROWTH + 1  # between two extents that stand for different ones: each can grow twice below the next

# What depends on the values of the operands: shapes, or dtypes (`roots` of real polynomials may be real).
_WAITING_NAMES: Final = """
    argwhere bincount compress extract flatnonzero intersect1d linalg.eig linalg.eigvals linalg.lstsq nonzero poly
    polydiv polymul real_if_close roots setdiff1d setxor1d trim_zeros union1d unique unique_all unique_counts
    unique_inverse unique_values
"""
WAITING: Final = frozenset(_WAITING_NAMES.split())
# Whose ints may be compared with extents: the small extents stay above them.
_MEASURING_NAMES: Final = """
    append argpartition delete diag diagflat diagonal diff fft.fft fft.fft2 fft.fftn fft.hfft fft.ifft fft.ifft2
    fft.ifftn fft.ihfft fft.irfft fft.irfft2 fft.irfftn fft.rfft fft.rfft2 fft.rfftn getitem insert
    linalg.diagonal linalg.trace ndarray.partition pad partition polyfit repeat resize setitem take tile trace
    tril triu unpackbits vander
"""
_MEASURING: Final = frozenset(_MEASURING_NAMES.split())
# Whose ints are indices: a sample of ones might reach outside.
_INDEXING_NAMES: Final = """
    choose delete getitem insert put put_along_axis ravel_multi_index setitem take take_along_axis unravel_index
"""
_INDEXING: Final = frozenset(_INDEXING_NAMES.split())


class Found(NamedTuple):
    """What a call gives."""

    structure: Any  # None for one array; else a function that nests a list of arrays as NumPy does
    arrays: int  # how many
    specs: tuple[Spec, ...] | None  # None: only the worker can tell


class NotFitting(Exception):
    """The small samples do not tell what the real arrays will give."""


def find(name: str, tree: Any, operands: tuple[Spec, ...], writes: int = 0) -> Found:
    """What the function gives for operands of these specs.

    Args:
        name: of the function, as in `protocol/functions.py`.
        tree: its arguments, as in `protocol/trees.py`: a tuple of the positional ones and a dict.
        operands: of the arrays in the tree.
        writes: how many of the operands, the first ones, it writes to.

    Raises:
        Exception: what NumPy raises for these operands.
    """
    call = _Call(name, tree, operands, writes)
    total = sum(each.size for each in operands)
    if name == "setitem" and _masked(name, operands) and _is_array(tree[1][3]):
        find("getitem", ("(", tree[1][:3], tree[2]), operands)  # what it assigns must fit as many as are selected
        return Found(None, 0, ())
    if total <= SMALL:
        return call.real()
    try:
        result = call.sample(call.small)
    except TypeError:
        raise
    except Exception as error:
        # The small extents may be what it refuses; and what it refuses for its values, only the values can tell.
        if total <= LARGEST_REAL:
            return call.real()
        if isinstance(error, ValueError | IndexError) and call.refused_when_larger():
            raise
        return Found(None, -1, None)
    if call.waits or writes:
        return call.found(result, None)
    try:
        return call.found(result, call.fit(result))
    except NotFitting:
        return call.real() if total <= LARGEST_REAL else call.found(result, None)


class _Call:
    """One call, to be tried on samples."""

    def __init__(self, name: str, tree: Any, operands: tuple[Spec, ...], writes: int) -> None:
        self.name = name
        self.tree = tree
        self.operands = operands
        self.writes = writes
        self.waits = name in WAITING or _waits(name, tree, operands)
        measure = max((abs(each) for each in _ints(tree)), default=0)
        least = LEAST + (measure if measure <= 16 or name in _MEASURING else 0)
        distinct = sorted({extent for each in operands for extent in each.shape})
        self.small: dict[int, int] = {}
        for extent in distinct:
            if extent <= least:
                self.small[extent] = extent
            else:
                self.small[extent] = min(extent, least + APART + (extent - least - APART) % GROWTH)
                least = self.small[extent]
        self.growing = [extent for extent in distinct if self.small[extent] < extent]

    def sample(self, extents: dict[int, int]) -> Any:
        """What the function makes of a sample with these extents in place of the real ones."""
        shapes = [tuple([extents[extent] for extent in each.shape]) for each in self.operands]
        if sum(map(math.prod, shapes)) > LARGEST:
            raise NotFitting
        return self._run(shapes)

    def _run(self, shapes: list[tuple[int, ...]]) -> Any:
        arrays = [self._stand_in(each, shape) for each, shape in zip(self.operands, shapes, strict=True)]
        args, kwargs = decode(self.tree, arrays)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return carry_out(self.name, args, kwargs, np)

    def _stand_in(self, each: Spec, shape: tuple[int, ...]) -> Array:
        """An array of a shape, with the axes in memory as the spec has them."""
        order = sorted(range(len(shape)), key=lambda axis: (-abs(each.strides[axis]), axis))
        made = np.ones([shape[axis] for axis in order], each.dtype)
        made = made.transpose(np.argsort(order)) if order else made
        if self.name in _INDEXING and each.dtype.kind in "iu":
            made[...] = 0
        elif self.name.startswith("linalg.") and len(shape) >= 2:
            made[...] = np.eye(*shape[-2:], dtype=each.dtype)  # so that it has an inverse
        return made

    def real(self) -> Found:
        """As it is with the real shapes."""
        try:
            result = self._run([each.shape for each in self.operands])
        except np.linalg.LinAlgError as error:
            if "must be" in str(error) or "incompatible" in str(error).lower() or "dimension" in str(error):
                raise
            return Found(None, -1, None)  # the sample's values are at fault
        if self.waits or self.writes:
            return self.found(result, None)
        arrays = [np.asarray(each) for each in leaves(result)]
        return self.found(result, tuple([_promise(each, each.shape) for each in arrays]))

    def refused_when_larger(self) -> bool:
        """Whether it refuses other small extents as well."""
        try:
            self.sample(self._grown(self.growing, 2))
        except NotFitting:
            return False
        except Exception:
            return True
        return False

    def found(self, result: Any, specs: tuple[Spec, ...] | None) -> Found:
        if self.writes:
            return Found(None, 0, ())
        count = len(list(leaves(result)))
        return Found(_structure(result), count, specs)

    def fit(self, result: Any) -> tuple[Spec, ...]:
        """The real specs, given the result for the small extents."""
        base = [np.asarray(each) for each in leaves(result)]
        shapes = [each.shape for each in base]
        if not self.growing:
            return tuple([_promise(each, each.shape) for each in base])
        slopes = {extent: self._slopes(extent, shapes) for extent in self.growing}
        # All of them together, and far: functions with steps, such as `packbits`, look linear to small growth.
        limit = LARGEST_OF_CUBIC if self.name.startswith("linalg.") else LARGEST
        times = next((times for times in FAR if self._size(times) <= limit), 1)
        together = self._shapes(self._grown(self.growing, times))
        real = []
        for place, shape in enumerate(shapes):
            steps = [sum(slopes[extent][place][axis] for extent in self.growing) for axis in range(len(shape))]
            if together[place] != tuple([e + times * step for e, step in zip(shape, steps, strict=True)]):
                raise NotFitting
            real.append(
                tuple(
                    [
                        e + sum(slopes[each][place][axis] * self._times(each) for each in self.growing)
                        for axis, e in enumerate(shape)
                    ]
                )
            )
        return tuple([_promise(each, shape) for each, shape in zip(base, real, strict=True)])

    def _grown(self, extents: list[int], times: int = 1) -> dict[int, int]:
        return {each: small + GROWTH * times * (each in extents) for each, small in self.small.items()}

    def _size(self, times: int) -> int:
        """Of all operands of a sample whose extents have grown so often."""
        extents = self._grown(self.growing, times)
        return sum(math.prod([extents[extent] for extent in each.shape]) for each in self.operands)

    def _times(self, extent: int) -> int:
        return (extent - self.small[extent]) // GROWTH

    def _slopes(self, extent: int, shapes: list[tuple[int, ...]]) -> list[list[int]]:
        """By how much each extent of each result grows when this one grows."""
        one, two = (self._shapes(self._grown([extent], times)) for times in (1, 2))
        if not len(shapes) == len(one) == len(two):
            raise NotFitting
        slopes = []
        for before, once, twice in zip(shapes, one, two, strict=True):
            if not len(before) == len(once) == len(twice):
                raise NotFitting
            slopes.append([b - a for a, b in zip(before, once, strict=True)])
            if slopes[-1] != [b - a for a, b in zip(once, twice, strict=True)]:
                raise NotFitting
        return slopes

    def _shapes(self, extents: dict[int, int]) -> list[tuple[int, ...]]:
        try:
            return [np.shape(each) for each in leaves(self.sample(extents))]
        except Exception:
            raise NotFitting from None


def _promise(sample: Array, shape: tuple[int, ...]) -> Spec:
    return spec(shape, sample.dtype, packed_strides(shape, sample.dtype.itemsize, sample.strides))


def _ints(tree: Any) -> list[int]:
    """The ints among the arguments, small constant arrays' included."""
    if type(tree) is int:
        return [tree]
    if type(tree) is not tuple or tree[0] in ("@", "d", "z", "i"):
        return []
    if tree[0] in ("n", "a"):
        array = np.frombuffer(tree[-1], tree[1])
        return [int(each) for each in array.tolist()] if array.dtype.kind in "iu" else []
    return [found for each in tree[1:] for found in _ints(each)]


def _waits(name: str, tree: Any, operands: tuple[Spec, ...]) -> bool:
    """Whether for these arguments the result's shape depends on values."""
    args, kwargs = tree[1], tree[2]
    arrays = sum(_is_array(each) for each in (*args[1:], *kwargs[2::2]))
    if name == "where":
        return arrays == 1 and len(args) == 2
    if name == "repeat":
        return arrays > 1
    if name == "delete":
        return arrays > 1 or _holds(tree, "[", "a")
    if name == "polyfit":
        return _holds(kwargs, "full", "cov")
    if name.startswith("histogram"):
        return any(type(each) is str for each in (*args[2:], *kwargs[2::2]))
    return name in ("getitem", "insert", "ix_") and _masked(name, operands)


def _masked(name: str, operands: tuple[Spec, ...]) -> bool:
    """Whether some array among the operands selects by bools."""
    first = 1 if name in ("getitem", "setitem") else 0
    return any(each.dtype.kind == "b" for each in operands[first:])


def _is_array(tree: Any) -> bool:
    return type(tree) is tuple and tree[0] in ("@", "a", "[")


def _holds(tree: Any, *words: str) -> bool:
    if type(tree) is tuple:
        return any(_holds(each, *words) for each in tree)
    return type(tree) is str and tree in words


def _structure(result: Any) -> Callable[[list[Any]], Any] | None:
    """How a result is nested; None for a single array or number."""
    if not isinstance(result, (tuple, list)):
        return None
    parts = [(_structure(each), sum(1 for _ in leaves(each))) for each in result]
    cls: Any = type(result)
    make = cls._make if hasattr(cls, "_make") else cls

    return functools.partial(_nested, make, parts)


def _nested(make: Callable[[list[Any]], Any], parts: list[tuple[Any, int]], arrays: list[Any]) -> Any:
    given = iter(arrays)
    return make(
        [
            next(given) if structure is None else structure([next(given) for _ in range(count)])
            for structure, count in parts
        ]
    )
