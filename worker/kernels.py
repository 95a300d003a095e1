"""Skeleton; the kernels follow in the next commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..protocol.operations import Operation
from ..protocol.specs import Spec


def kernel(operation: Operation, xp: Any) -> Callable[..., Any]:
    """`operation.plain`: the ufunc, for `ufunc(*operands, out)`. Else `function(out, operands, static)`."""
    raise NotImplementedError


def conform(result: Any, spec: Spec) -> Any:
    """The result in exactly the promised layout: itself, or a copy."""
    raise NotImplementedError


def decode_operand(ref: Any) -> Any:
    """The scalar that a 1- or 2-tuple stands for."""
    raise NotImplementedError


def is_view_ref(ref: Any) -> bool:
    """Whether a reference is a view (5-tuple)."""
    raise NotImplementedError
