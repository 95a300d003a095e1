"""Skeleton; the rules follow in the next commit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..protocol.operations import Operation
from ..protocol.specs import Spec, spec

Scalar = bool | int | float | complex | np.generic
Operand = Spec | Scalar
Ref = tuple[bool | int | float] | tuple[str, bytes]

GENERATOR = spec((), np.dtype("V1"))  # what a random generator's buffer has for a spec: no operation on arrays takes it


class Inferred(NamedTuple):
    """The results' specs, and for which plain Python ints among the operands they hold.

    A Python int in low..high gives the same specs, raises nothing, and may travel bare as `(value,)`. Outside, ask
    again and use `encode_scalar`. An empty range (low > high) never hits. Without int operands the range has no meaning.
    """

    specs: tuple[Spec, ...]
    low: int
    high: int


def infer(operation: Operation, operands: tuple[Operand, ...], static: tuple[object, ...]) -> Inferred:
    """The specs of the results, or NumPy's own error."""
    raise NotImplementedError


def infer_into(operation: Operation, operands: tuple[Operand, ...], static: tuple[object, ...], target: Spec) -> Inferred:
    """As `infer`, for a result written into an existing array (`out=`, `x += y`); the specs are `(target,)`."""
    raise NotImplementedError


def encode_scalar(operation: Operation, operands: tuple[Operand, ...], position: int, result: Spec | None) -> Ref:
    """The reference for the scalar at `position`: the worker computes with it what NumPy would with the user's own."""
    raise NotImplementedError


def weak_key(value: Scalar) -> object:
    """The part of a cache's key that stands for a scalar operand."""
    raise NotImplementedError
