"""How each operation is carried out: NumPy's own functions, or those of a module that has the same names.

Decides the call behind every row of the table. Knows nothing of buffers, instructions or devices but `xp`, the module
of functions; the arrays are that module's own, except that generators draw on the host, bit for bit NumPy's stream.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from ..protocol.functions import DRAWS, carry_out
from ..protocol.operations import Operation
from ..protocol.specs import Spec, dtype_of
from ..protocol.trees import decode, leaves

Kernel = Callable[..., Any]


def kernel(operation: Operation, xp: Any) -> Kernel:
    """The function that carries out an operation.

    For `operation.plain` rows it is the ufunc: call `ufunc(*operands, out)`; with out None it may return a scalar.
    For all others call `function(out, operands, static)`: returns the array it made, a tuple of them for several
    outputs, None for none. `out` is None, an array (a tuple of them for several outputs), already known to fit.

    Args:
        operation: a row of the table.
        xp: numpy or cupy.
    """
    if operation.plain:
        return getattr(xp, operation.name)  # type: ignore[no-any-return]
    return _MAKERS[operation.kind](operation, xp)


def prepared(operation: Operation, xp: Any, static: tuple[Any, ...]) -> Kernel:
    """For an operation that is not plain, with its static values filled in: call `function(out, *operands)`.

    `out` is what `kernel` says, but never None where there are outputs.
    """
    if operation.kind == "call":
        function = functools.partial(_function(operation, xp), **dict(zip(operation.static, static, strict=True)))
        return _into_out(operation, function)
    run = kernel(operation, xp)
    return lambda out, *operands: run(out, operands, static)


def conform(result: Any, spec: Spec) -> Any:
    """The result in exactly the promised layout: itself, or a copy. Strides of axes of extent 1 do not count."""
    if result.strides == spec.strides and result.dtype == spec.dtype and result.shape == spec.shape:
        return result
    if result.shape != spec.shape:
        raise AssertionError(f"a result of shape {result.shape} where {spec} was promised")
    if result.dtype == spec.dtype and (
        not spec.size
        or all(
            found == promised
            for found, promised, extent in zip(result.strides, spec.strides, spec.shape, strict=True)
            if extent != 1
        )
    ):
        return result
    laid_out = _empty(np if isinstance(result, np.ndarray) else _module_of(result), spec)
    laid_out[...] = result
    return laid_out


def decode_operand(ref: Any) -> Any:
    """The scalar that a 1- or 2-tuple stands for."""
    return ref[0] if len(ref) == 1 else np.frombuffer(ref[1], dtype_of(ref[0]))[0]


def _module_of(array: Any) -> Any:
    import importlib

    return importlib.import_module(type(array).__module__.partition(".")[0])


def _empty(xp: Any, spec: Spec) -> Any:
    order = sorted(range(spec.ndim), key=lambda axis: (-abs(spec.strides[axis]), axis))
    return _ordered(xp.empty, spec.shape, spec.dtype, order)


def _ordered(make: Callable[..., Any], shape: Sequence[int], dtype: Any, order: str | Sequence[int]) -> Any:
    """An array made by `make`, whose axes lie in memory in this order, the slowest first."""
    if isinstance(order, str):
        return make(tuple(shape), dtype, order)
    made = make(tuple([shape[axis] for axis in order]), dtype)
    places = sorted(range(len(order)), key=lambda place: order[place])
    return made.transpose(places)


# -- one maker for each kind ------------------------------------------------------------------------------------------


def _ufunc(operation: Operation, xp: Any) -> Kernel:
    ufunc = getattr(xp, operation.name)
    nothing = (None,) * operation.outputs

    def run(out: Any, operands: tuple[Any, ...], static: tuple[Any, ...]) -> Any:
        results = ufunc(*operands, *(nothing if out is None else out))
        return tuple([xp.asarray(each) for each in results])

    return run


_NO_OUT: Final = frozenset(("sort", "argsort", "tril", "triu", "where"))
_WIDER: Final = frozenset(("mean", "var", "std", "round"))  # compute wider than their results, and not when given `out`


def _into_out(operation: Operation, function: Kernel) -> Kernel:
    """NumPy's function, writing to `out`: by itself where it can and has the same bits so."""
    takes_out = operation.name not in _NO_OUT
    wider = operation.name in _WIDER

    def call(out: Any, *operands: Any, **named: Any) -> Any:
        if takes_out and not (wider and (out.dtype.kind not in "fc" or out.dtype.char == "e")):
            return function(*operands, **named, out=out)
        out[...] = function(*operands, **named)
        return out

    return call


# What NumPy's functions of these names do with its own arrays: they look for much else first.
_REDUCES: Final = {
    "sum": np.add.reduce,
    "prod": np.multiply.reduce,
    "max": np.maximum.reduce,
    "min": np.minimum.reduce,
    "any": np.logical_or.reduce,
    "all": np.logical_and.reduce,
}


def _function(operation: Operation, xp: Any) -> Kernel:
    found = _REDUCES.get(operation.name) if xp is np else None
    return found or getattr(xp, operation.name)


def _call(operation: Operation, xp: Any) -> Kernel:
    function = _function(operation, xp)
    names = operation.static
    into_out = _into_out(operation, function)

    def run(out: Any, operands: tuple[Any, ...], static: tuple[Any, ...]) -> Any:
        named = dict(zip(names, static, strict=True))
        return xp.asarray(function(*operands, **named)) if out is None else into_out(out, *operands, **named)

    return run


def _clip(operation: Operation, xp: Any) -> Kernel:
    def run(out: Any, operands: tuple[Any, ...], static: tuple[Any, ...]) -> Any:
        array, *bounds = operands
        low, high = bounds[0] if static[0] else None, bounds[-1] if static[1] else None
        return xp.asarray(xp.clip(array, low, high, out=out))

    return run


def _method(operation: Operation, xp: Any) -> Kernel:
    name = operation.name

    def run(out: Any, operands: tuple[Any, ...], static: tuple[Any, ...]) -> Any:
        if out is None:
            return getattr(operands[0], name)(*static)
        out[...] = operands[0]
        return out

    return run


def _assign(operation: Operation, xp: Any) -> Kernel:
    def run(out: Any, operands: tuple[Any, ...], static: tuple[Any, ...]) -> Any:
        operands[0][...] = operands[1]

    return run


def _index(operation: Operation, xp: Any) -> Kernel:
    if operation.outputs:

        def get(out: Any, operands: tuple[Any, ...], static: tuple[Any, ...]) -> Any:
            result = xp.asarray(operands[0][_key(xp, static[0], operands[1:])])
            if out is None:
                return result
            out[...] = result
            return out

        return get

    def put(out: Any, operands: tuple[Any, ...], static: tuple[Any, ...]) -> Any:
        operands[0][_key(xp, static[0], operands[2:])] = operands[1]

    return put


def _key(xp: Any, items: Sequence[Any], arrays: Sequence[Any]) -> tuple[Any, ...]:
    given = iter(arrays)
    key: list[Any] = []
    for item in items:
        if isinstance(item, str):
            key.append(Ellipsis if item == "..." else next(given))
        elif item is None or isinstance(item, int):
            key.append(item)
        elif item[0] == "s":
            key.append(slice(*item[1:]))
        else:
            key.append(xp.asarray(np.frombuffer(item[3], dtype_of(item[1])).reshape(item[2])))
    return tuple(key)


def _join(operation: Operation, xp: Any) -> Kernel:
    function = getattr(xp, operation.name)

    def run(out: Any, operands: tuple[Any, ...], static: tuple[Any, ...]) -> Any:
        axis, dtype = static
        if out is None:
            return function(operands, axis=axis, dtype=dtype)
        return function(operands, axis=axis, out=out)

    return run


_FILLS: Final = {"zeros": 0, "ones": 1}


def _create(operation: Operation, xp: Any) -> Kernel:
    name = operation.name
    make = getattr(xp, "empty" if name == "full" else name)

    def run(out: Any, operands: tuple[Any, ...], static: tuple[Any, ...]) -> Any:
        shape, dtype, order = static
        if out is None:
            if dtype is None and name != "full":
                dtype = "f8"
            elif dtype is None:
                dtype = np.asarray(operands[0]).dtype if isinstance(operands[0], (int, float)) else operands[0].dtype
            out = _ordered(make, shape, dtype, order)
        elif name in _FILLS:
            out[...] = _FILLS[name]
        if name == "full":
            xp.copyto(out, operands[0], casting="unsafe")
        return out

    return run


def _sequence(operation: Operation, xp: Any) -> Kernel:
    function = getattr(xp, operation.name)

    def run(out: Any, operands: tuple[Any, ...], static: tuple[Any, ...]) -> Any:
        named = dict(zip(operation.static, static, strict=True))
        if operation.name == "eye":
            result = function(named["N"], named["M"], named["k"], named["dtype"] or "f8")
        elif operation.name == "linspace":
            start, stop = decode_operand(named["start"]), decode_operand(named["stop"])
            result = function(start, stop, named["num"], endpoint=named["endpoint"], dtype=named["dtype"])
        else:
            bounds = [None if ref is None else decode_operand(ref) for ref in static[:3]]
            result = function(*bounds, dtype=named["dtype"])
        if out is None:
            return result
        out[...] = result
        return out

    return run


_REFS: Final = frozenset(("loc", "scale", "low", "high", "lam"))


def _random(operation: Operation, xp: Any) -> Kernel:
    if operation.name == "rng_new":

        def new(out: Any, operands: tuple[Any, ...], static: tuple[Any, ...]) -> Any:
            return np.random.Generator(np.random.PCG64(np.random.SeedSequence(static[0], spawn_key=static[1])))

        return new
    if operation.name == "rng_named":
        return _draw(xp)
    method = operation.name.removeprefix("rng_")

    def draw(out: Any, operands: tuple[Any, ...], static: tuple[Any, ...]) -> Any:
        named = dict(zip(operation.static, static, strict=True))
        if named.get("dtype", "") is None:
            del named["dtype"]
        if named.get("size", 0) is None:
            named["size"] = ()  # or NumPy gives a Python number, which does not say its dtype
        for name in _REFS.intersection(named):
            named[name] = None if named[name] is None else decode_operand(named[name])
        generator, *arrays = operands
        for name in ("x", "a"):
            if named.get(name, 0) is None:
                named[name] = _on_host(arrays[0])
        result = xp.asarray(getattr(generator, method)(**named))
        if out is None:
            return result
        out[...] = result
        return out

    def shuffle(out: Any, operands: tuple[Any, ...], static: tuple[Any, ...]) -> Any:
        generator, target = operands
        if isinstance(target, np.ndarray):
            generator.shuffle(target, axis=static[0])
        else:
            host = _on_host(target)
            generator.shuffle(host, axis=static[0])
            target[...] = xp.asarray(host)

    return shuffle if method == "shuffle" else draw


def _draw(xp: Any) -> Kernel:
    def run(out: Any, operands: tuple[Any, ...], static: tuple[Any, ...]) -> Any:
        method, tree, size = static
        if method not in DRAWS.split():
            raise LookupError(f"{method} is no method of a generator that a worker carries out by name")
        generator, *arrays = operands
        args, kwargs = decode(tree, (None, *[_on_host(each) for each in arrays]))
        if size is not None:
            kwargs["size"] = size
        result = xp.asarray(getattr(generator, method)(*args, **kwargs))
        if out is None:
            return result
        out[...] = result
        return out

    return run


def _on_host(array: Any) -> Any:
    return array if isinstance(array, np.ndarray) else array.get()


def _named(operation: Operation, xp: Any) -> Kernel:
    def run(out: Any, operands: tuple[Any, ...], static: tuple[Any, ...]) -> Any:
        args, kwargs = decode(static[1], operands)
        with np.errstate(all="ignore"):
            result = carry_out(static[0], args, kwargs, xp)
        if operation.writes:
            return None
        if out is None:
            made = tuple([_independent(xp, each, operands) for each in leaves(result)])
            return made[0] if len(made) == 1 and operation.kind == "named" else made
        for target, each in zip(out if isinstance(out, tuple) else (out,), leaves(result), strict=True):
            target[...] = each
        return out

    return run


def _independent(xp: Any, result: Any, operands: tuple[Any, ...]) -> Any:
    """One result, in memory of its own, in native byte order."""
    array = xp.asarray(result)
    if array.dtype.kind not in "biufc":
        raise TypeError(f"the result has dtype {array.dtype}, and arrays hold bool, int, float and complex")
    shared = array.base is not None or any(array is each for each in operands)
    return array.copy() if shared or not array.dtype.isnative else array


_MAKERS: Final[dict[str, Callable[[Operation, Any], Kernel]]] = {
    "ufunc": _ufunc,
    "call": _call,
    "clip": _clip,
    "method": _method,
    "assign": _assign,
    "index": _index,
    "join": _join,
    "create": _create,
    "sequence": _sequence,
    "random": _random,
    "named": _named,
    "asked": _named,
}
