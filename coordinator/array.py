"""The array that the user holds: ndarray's operators, methods and attributes, on a worker's array.

Each operation is issued and returns at once. Only what needs the elements waits: printing, `float(x)`,
`np.asarray(x)`, `x.tolist()`, `bool(x)`. Shape and dtype are always known. Basic indexing, reshaping and
transposing give views, with NumPy's aliasing.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np

from ..protocol.operations import BY_NAME
from ..protocol.specs import Spec
from . import answers, asked, issue, named, reading, views
from .events import seconds
from .infer import check_dtype, fast_power, ravel_axes
from .issue import (
    ArrayLike,
    Handle,
    binary_method,
    call,
    call_one,
    handle,
    inplace_method,
    reflected_method,
    refuse_frozen,
    unary_method,
)
from .lane import Device
from .sites import user_site

Axis = int | tuple[int, ...] | None

_divmod = BY_NAME["divmod"]


class Flags:
    """What `x.flags` says: `x.flags.c_contiguous`, `x.flags["C_CONTIGUOUS"]`."""

    def __init__(self, array: Array) -> None:
        ghost = views.ghost(array._spec).flags
        self.c_contiguous = self.contiguous = ghost.c_contiguous
        self.f_contiguous = ghost.f_contiguous
        self.fnc, self.forc, self.aligned = ghost.fnc, ghost.forc, True
        self.owndata = array._base is None
        self.writeable = array._base is None or not array._frozen
        self.writebackifcopy = False

    def __getitem__(self, name: str) -> bool:
        short = {"C": "c_contiguous", "F": "f_contiguous", "O": "owndata", "W": "writeable", "A": "aligned"}
        found: bool = getattr(self, short.get(name, name.lower()))
        return found


class Array(Handle):
    """An array on one device. Made by functions such as `interlock.asarray`, `interlock.zeros`, and by operations.

    An operation whose operands are on different devices raises ValueError: move one with `.to(device)`.
    Numbers and NumPy arrays go to the other operand's device by themselves.
    """

    __slots__ = ()

    __array_priority__ = 1000

    def __getattr__(self, name: str) -> Any:
        """Only for what is missing: a spec that the worker has still to tell; else say whether NumPy has it."""
        if name == "_spec":
            return asked.spec_of(self)
        text = f"{type(self).__name__!r} object has no attribute {name!r}"
        if not name.startswith("_") and hasattr(np.ndarray, name):
            text += f": ndarray's is not supported on a device yet; read the elements first, such as x.numpy().{name}"
        raise AttributeError(text, name=name, obj=self)

    # -- what is known without waiting

    @property
    def shape(self) -> tuple[int, ...]:
        return self._spec.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._spec.dtype

    @property
    def ndim(self) -> int:
        return self._spec.ndim

    @property
    def size(self) -> int:
        return self._spec.size

    @property
    def itemsize(self) -> int:
        return self._spec.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self._spec.nbytes

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each axis, on the worker."""
        return self._spec.strides

    @property
    def device(self) -> Device:
        return self._lane.device

    @property
    def base(self) -> Array | None:
        """The array whose memory this view looks into; None if it has its own."""
        return self._base  # type: ignore[return-value]

    @property
    def flags(self) -> Flags:
        """How it lies in the worker's memory, by NumPy's names."""
        return Flags(self)

    def __len__(self) -> int:
        if not self._spec.shape:
            raise TypeError("len() of unsized object")
        return self._spec.shape[0]

    # -- reading: what waits

    def numpy(self, timeout: float | None = None) -> np.ndarray[Any, Any]:
        """The elements as a NumPy array of the caller's own. Waits for them.

        Args:
            timeout: seconds; None waits as long as the work goes on.

        Raises:
            TimeoutError: they were not there in time; the text says what is being waited for.
            Exception: what made the array fail, with the line that issued the failed operation.
        """
        lane = self._lane
        return lane.session.read(lane, self._ref, self._spec, user_site(2), seconds(timeout))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("the elements are on a worker: they cannot be had without a copy")
        self._implicitly("np.asarray(x)")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def _implicitly(self, what: str) -> None:
        if self._lane.session.implicit_reads:
            reading.tell(self, what)

    def __await__(self) -> Generator[Any, None, np.ndarray[Any, Any]]:
        """`await x`: the elements as a NumPy array, without blocking the event loop."""
        return self._read_in_loop().__await__()

    async def _read_in_loop(self) -> np.ndarray[Any, Any]:
        import asyncio  # here, as it takes as long to import as NumPy, and few programs await

        loop = asyncio.get_running_loop()
        session = self._lane.session
        pending = session.ask(self._lane, self._ref, user_site(2))
        arrived = loop.create_future()

        def tell() -> None:
            if not arrived.done():
                arrived.set_result(None)

        def happened() -> None:  # on whatever thread receives
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
                loop.call_soon_threadsafe(tell)

        pending.callback = happened
        try:
            if not pending.done:
                await arrived
        except BaseException:  # it was cancelled
            session.abandon(pending)
            raise
        return answers.value(session, pending, self._spec)

    def item(self, *index: Any) -> Any:
        return self.numpy().item(*index)

    def tolist(self) -> Any:
        return self.numpy().tolist()

    def _scalar(self) -> Any:
        if self._spec.size != 1:
            raise TypeError("only arrays with one element can be converted to Python scalars")
        return self.numpy().reshape(())[()]

    def __float__(self) -> float:
        self._implicitly("float(x)")
        return float(self._scalar())

    def __int__(self) -> int:
        self._implicitly("int(x)")
        return int(self._scalar())

    def __complex__(self) -> complex:
        self._implicitly("complex(x)")
        return complex(self._scalar())

    def __bool__(self) -> bool:
        self._implicitly("bool(x)")
        return bool(self.numpy())

    def __index__(self) -> int:
        if self._spec.ndim or self._spec.dtype.kind not in "iu":
            raise TypeError("only integer scalar arrays can be converted to a scalar index")
        self._implicitly("an array as an index of something else")
        return int(self._scalar())

    def __contains__(self, value: Any) -> bool:
        found = self == value
        return bool(found.any()) if isinstance(found, Array) else False  # what is no number is in no array

    def __repr__(self) -> str:
        return f"{np.array2string(self.numpy(), separator=', ', prefix='array(')}".join(
            ("array(", f", dtype={self._spec.dtype}, device='{self.device}')")
        )

    def __str__(self) -> str:
        return str(self.numpy())

    def __format__(self, spec: str) -> str:
        return format(self._scalar() if not self._spec.ndim else str(self), spec)

    __hash__ = None  # type: ignore[assignment]

    # -- moving

    def to(self, device: Device | str) -> Array:
        """A copy on another device, made when the elements are ready; this array itself if it is there already."""
        session = self._lane.session
        lane = session.serving(session.device(device))
        return self if lane is self._lane else issue.transfer(self, lane, user_site(2))

    def to_device(self, device: Device | str, /, *, stream: None = None) -> Array:
        """As `to`: the array API standard's name for it."""
        if stream is not None:
            raise ValueError("streams are the workers' own: stream must be None")
        return self.to(device)

    # -- views

    def _view(self, found: tuple[Spec, int] | None, frozen: bool = False) -> Array:
        """A view of this geometry; `frozen` if it must not be written, as then its own views must not."""
        assert found is not None
        spec, offset = found
        base = self if self._base is None else self._base
        ref = (base._ref, offset, spec.shape, spec.strides, spec.dtype_str)
        made: Array = handle(Array, self._lane, ref, spec, base)
        if frozen or (base is not self and self._frozen):
            made._frozen = True
        return made

    @property
    def _offset(self) -> int:
        return 0 if type(self._ref) is int else self._ref[1]  # type: ignore[index]

    def __getitem__(self, key: Any) -> Array:
        try:
            return self._view(views.index(self._spec, self._offset, key))
        except views.AdvancedKey:
            key, masked = views.without_masks(self._spec, key)
            if masked:
                selected: Array = named.call("getitem", (self, key))
                return selected
            static, arrays = views.encode_key(key, Handle)
            made: Array = call(BY_NAME["getitem_advanced"], (self, *arrays), (static,))
            return made

    def __setitem__(self, key: Any, value: Any) -> None:
        refuse_frozen(self, "assignment destination")
        try:
            target = self._view(views.index(self._spec, self._offset, key))
        except views.AdvancedKey:
            key, masked = views.without_masks(self._spec, key)
            if masked:
                named.call("setitem", (self, key, value), writes=(self,))
                return
            static, arrays = views.encode_key(key, Handle)
            call(BY_NAME["setitem_advanced"], (self, value, *arrays), (static,))
            return
        if not target._spec.shape and type(value) not in _NUMBERS:
            _check_scalar(key, value, target._spec.dtype)
        if target.shape == self._spec.shape and target._spec is self._spec and self._base is None:
            target = self  # all of it: the old elements need not be kept
        if isinstance(value, Array) and value._ref == target._ref and value._lane is target._lane:
            return  # x[i] += y ends by assigning x[i] to itself
        issue.assign(target, value)

    def __iter__(self) -> Iterator[Array]:
        if not self._spec.shape:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(self._spec.shape[0]))

    def __delitem__(self, key: Any) -> None:
        raise ValueError("cannot delete array elements")

    @property
    def T(self) -> Array:  # noqa: N802
        return self._view(views.transpose(self._spec, self._offset))

    @property
    def mT(self) -> Array:  # noqa: N802
        if self._spec.ndim < 2:
            raise ValueError("matrix transpose with ndim < 2 is undefined")
        return self.swapaxes(-1, -2)

    def transpose(self, *axes: Any) -> Array:
        chosen = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None
        return self._view(views.transpose(self._spec, self._offset, chosen))

    def swapaxes(self, axis1: int, axis2: int) -> Array:
        return self._view(views.swapaxes(self._spec, self._offset, axis1, axis2))

    def squeeze(self, axis: Axis = None) -> Array:
        return self._view(views.squeeze(self._spec, self._offset, axis))

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> Array:
        """A view of this shape where there is one, else a copy."""
        chosen = shape[0] if len(shape) == 1 else shape
        if order == "A":
            order = views.ravel_order(self._spec, "A")
        if copy:
            return self.copy(order).reshape(chosen, order=order)
        found = views.reshape(self._spec, self._offset, chosen, order)
        if found is not None:
            return self._view(found)
        if copy is False:
            raise ValueError("Unable to avoid creating a copy while reshaping.")
        copied = self.copy(order)
        return copied._view(views.reshape(copied._spec, 0, chosen, order))

    def ravel(self, order: str = "C") -> Array:
        found = views.ravel(self._spec, self._offset, order)
        return self.flatten(order) if found is None else self._view(found)

    def flatten(self, order: str = "C") -> Array:
        order = views.ravel_order(self._spec, order)
        if order == "K":
            return self.transpose(ravel_axes(self._spec)).flatten()
        copied = self.copy(order)
        return copied._view(views.ravel(copied._spec, 0, order))

    # -- copies

    def copy(self, order: str = "C") -> Array:
        made: Array = call_one(BY_NAME["copy"], (order,), self)
        return made

    def __copy__(self) -> Array:
        return self.copy("K")

    def __deepcopy__(self, memo: Any) -> Array:
        return self.copy("K")

    def astype(self, dtype: Any, order: str = "K", casting: str = "unsafe", copy: bool = True) -> Array:
        wanted = np.dtype(dtype)
        if casting != "unsafe" and not np.can_cast(self._spec.dtype, wanted, casting):  # type: ignore[arg-type]
            raise TypeError(
                f"Cannot cast array data from {self.dtype!r} to {wanted!r} according to the rule '{casting}'"
            )
        if not copy and wanted == self._spec.dtype and order == "K":
            return self
        made: Array = call_one(BY_NAME["astype"], (_dtype(wanted), order), self)
        return made

    def fill(self, value: Any) -> None:
        self[...] = value

    # -- reductions

    def sum(self, axis: Axis = None, dtype: Any = None, out: Any = None, keepdims: bool = False, **more: Any) -> Array:
        if out is not None or more:
            return self._reduce_by_name("sum", axis=axis, dtype=dtype, out=out, keepdims=keepdims, **more)
        return self._reduce("sum", axis, _dtype(dtype), keepdims)

    def prod(self, axis: Axis = None, dtype: Any = None, out: Any = None, keepdims: bool = False, **more: Any) -> Array:
        if out is not None or more:
            return self._reduce_by_name("prod", axis=axis, dtype=dtype, out=out, keepdims=keepdims, **more)
        return self._reduce("prod", axis, _dtype(dtype), keepdims)

    def mean(self, axis: Axis = None, dtype: Any = None, out: Any = None, keepdims: bool = False, **more: Any) -> Array:
        if out is not None or more:
            return self._reduce_by_name("mean", axis=axis, dtype=dtype, out=out, keepdims=keepdims, **more)
        return self._reduce("mean", axis, _dtype(dtype), keepdims)

    def var(
        self, axis: Axis = None, dtype: Any = None, out: Any = None, ddof: int = 0, keepdims: bool = False, **more: Any
    ) -> Array:
        if out is not None or more or type(ddof) is not int:
            return self._spread_by_name("var", axis, dtype, out, ddof, keepdims, more)
        return self._reduce("var", axis, _dtype(dtype), ddof, keepdims)

    def std(
        self, axis: Axis = None, dtype: Any = None, out: Any = None, ddof: int = 0, keepdims: bool = False, **more: Any
    ) -> Array:
        if out is not None or more or type(ddof) is not int:
            return self._spread_by_name("std", axis, dtype, out, ddof, keepdims, more)
        return self._reduce("std", axis, _dtype(dtype), ddof, keepdims)

    def max(self, axis: Axis = None, out: Any = None, keepdims: bool = False, **more: Any) -> Array:
        if out is not None or more:
            return self._reduce_by_name("max", axis=axis, out=out, keepdims=keepdims, **more)
        return self._reduce("max", axis, keepdims)

    def min(self, axis: Axis = None, out: Any = None, keepdims: bool = False, **more: Any) -> Array:
        if out is not None or more:
            return self._reduce_by_name("min", axis=axis, out=out, keepdims=keepdims, **more)
        return self._reduce("min", axis, keepdims)

    def argmax(self, axis: int | None = None, out: Any = None, *, keepdims: bool = False) -> Array:
        if out is not None:
            return self._reduce_by_name("argmax", axis=axis, out=out, keepdims=keepdims)
        return self._reduce("argmax", axis, keepdims)

    def argmin(self, axis: int | None = None, out: Any = None, *, keepdims: bool = False) -> Array:
        if out is not None:
            return self._reduce_by_name("argmin", axis=axis, out=out, keepdims=keepdims)
        return self._reduce("argmin", axis, keepdims)

    def any(self, axis: Axis = None, out: Any = None, keepdims: bool = False, **more: Any) -> Array:
        if out is not None or more:
            return self._reduce_by_name("any", axis=axis, out=out, keepdims=keepdims, **more)
        return self._reduce("any", axis, keepdims)

    def all(self, axis: Axis = None, out: Any = None, keepdims: bool = False, **more: Any) -> Array:
        if out is not None or more:
            return self._reduce_by_name("all", axis=axis, out=out, keepdims=keepdims, **more)
        return self._reduce("all", axis, keepdims)

    def cumsum(self, axis: int | None = None, dtype: Any = None, out: Any = None) -> Array:
        if out is not None:
            return self._reduce_by_name("cumsum", axis=axis, dtype=dtype, out=out)
        return self._reduce("cumsum", axis, _dtype(dtype))

    def cumprod(self, axis: int | None = None, dtype: Any = None, out: Any = None) -> Array:
        if out is not None:
            return self._reduce_by_name("cumprod", axis=axis, dtype=dtype, out=out)
        return self._reduce("cumprod", axis, _dtype(dtype))

    def _reduce_by_name(self, name: str, **options: Any) -> Array:
        from .protocols import by_name

        made: Array = by_name(getattr(np, name), (self,), options)
        return made

    def _spread_by_name(
        self, name: str, axis: Axis, dtype: Any, out: Any, ddof: Any, keepdims: bool, more: dict[str, Any]
    ) -> Array:
        if "correction" not in more:  # NumPy takes one of the two
            more["ddof"] = ddof
        return self._reduce_by_name(name, axis=axis, dtype=dtype, out=out, keepdims=keepdims, **more)

    def _reduce(self, name: str, axis: Any, *rest: Any) -> Array:
        made: Array = call_one(BY_NAME[name], (tuple(axis) if isinstance(axis, list) else axis, *rest), self)
        return made

    def round(self, decimals: int = 0, out: Any = None) -> Array:
        if out is not None:
            return self._reduce_by_name("round", decimals=decimals, out=out)
        made: Array = call_one(BY_NAME["round"], (decimals,), self)
        return made

    def clip(self, min: Any = None, max: Any = None, out: Any = None, **more: Any) -> Array:
        if out is not None or more:
            from .protocols import by_name

            clipped: Array = by_name(np.clip, (self, min, max), {"out": out, **more})
            return clipped
        bounds = tuple(bound for bound in (min, max) if bound is not None)
        made: Array = call(BY_NAME["clip"], (self, *bounds), (min is not None, max is not None))
        return made

    def conj(self) -> Array:
        made: Array = call(BY_NAME["conjugate"], (self,))
        return made

    def dot(self, b: Any, out: Any = None) -> Array:
        made: Array
        if out is not None or np.ndim(b) > 2 or self.ndim > 2:
            from .protocols import by_name

            made = by_name(np.dot, (self, b), {"out": out})
        else:
            made = self @ b if self.ndim and np.ndim(b) else self * b
        return made

    # -- ndarray's other methods that NumPy has as functions, too, come behind the class

    @property
    def real(self) -> Array:
        return self._view_by_name(np.real)

    @real.setter
    def real(self, value: Any) -> None:
        self.real[...] = value

    @property
    def imag(self) -> Array:
        return self._view_by_name(np.imag)

    @imag.setter
    def imag(self, value: Any) -> None:
        if self._spec.dtype.kind != "c":
            raise TypeError("array does not have imaginary part to set")
        self.imag[...] = value

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
        """A view, which must not be written, as in NumPy."""
        return self._view_by_name(np.diagonal, offset, axis1, axis2)

    def _view_by_name(self, function: Callable[..., Any], *args: Any) -> Array:
        from .reshaping import VIEWING

        made: Array = VIEWING[function](self, *args)
        return made

    def view(self, dtype: Any = None) -> Array:
        """The same memory, its bytes taken for another dtype."""
        if dtype is None:
            return self._view((self._spec, self._offset))
        check_dtype(np.dtype(dtype))
        return self._view(views.placed(views.ghost(self._spec).view(dtype), self._offset))

    def sort(self, axis: int = -1, kind: Any = None, order: None = None, *, stable: bool | None = None) -> None:
        """In place."""
        self._change("ndarray.sort", axis, **_given(kind=kind, order=order, stable=stable))

    def partition(self, kth: Any, axis: int = -1, kind: str = "introselect", order: None = None) -> None:
        """In place."""
        self._change("ndarray.partition", kth, axis, kind, **_given(order=order))

    def put(self, indices: Any, values: Any, mode: str = "raise") -> None:
        """Set elements of the flat array."""
        self._change("put", indices, values, mode)

    def _change(self, name: str, *args: Any, **options: Any) -> None:
        named.call(name, (self, *args), options, writes=(self,))

    def compress(self, condition: Any, axis: int | None = None, out: Any = None) -> Array:
        from .protocols import by_name

        made: Array = by_name(np.compress, (condition, self), {"axis": axis, "out": out})
        return made

    def byteswap(self, inplace: bool = False) -> Array:
        raise TypeError("arrays on devices are in native byte order: swap the bytes of x.numpy()")

    def tobytes(self, order: str = "C") -> bytes:
        return self.numpy().tobytes(order)  # type: ignore[arg-type]

    # -- operators

    __add__ = binary_method("add")
    __sub__ = binary_method("subtract")
    __mul__ = binary_method("multiply")
    __truediv__ = binary_method("divide")
    __floordiv__ = binary_method("floor_divide")
    __mod__ = binary_method("remainder")
    __matmul__ = binary_method("matmul")
    __and__ = binary_method("bitwise_and")
    __or__ = binary_method("bitwise_or")
    __xor__ = binary_method("bitwise_xor")
    __lshift__ = binary_method("left_shift")
    __rshift__ = binary_method("right_shift")
    __eq__ = binary_method("equal")
    __ne__ = binary_method("not_equal")
    __lt__ = binary_method("less")
    __le__ = binary_method("less_equal")
    __gt__ = binary_method("greater")
    __ge__ = binary_method("greater_equal")

    __radd__ = reflected_method("add")
    __rsub__ = reflected_method("subtract")
    __rmul__ = reflected_method("multiply")
    __rtruediv__ = reflected_method("divide")
    __rfloordiv__ = reflected_method("floor_divide")
    __rmod__ = reflected_method("remainder")
    __rpow__ = reflected_method("power")
    __rmatmul__ = reflected_method("matmul")
    __rand__ = reflected_method("bitwise_and")
    __ror__ = reflected_method("bitwise_or")
    __rxor__ = reflected_method("bitwise_xor")
    __rlshift__ = reflected_method("left_shift")
    __rrshift__ = reflected_method("right_shift")

    __iadd__ = inplace_method("add")
    __isub__ = inplace_method("subtract")
    __imul__ = inplace_method("multiply")
    __itruediv__ = inplace_method("divide")
    __ifloordiv__ = inplace_method("floor_divide")
    __imod__ = inplace_method("remainder")
    __ipow__ = inplace_method("power")
    __imatmul__ = inplace_method("matmul")
    __iand__ = inplace_method("bitwise_and")
    __ior__ = inplace_method("bitwise_or")
    __ixor__ = inplace_method("bitwise_xor")
    __ilshift__ = inplace_method("left_shift")
    __irshift__ = inplace_method("right_shift")

    __neg__ = unary_method("negative")
    __pos__ = unary_method("positive")
    __abs__ = unary_method("absolute")
    __invert__ = unary_method("invert")

    _power = staticmethod(binary_method("power"))

    def __pow__(self, exponent: Any) -> Any:
        fast = fast_power(self._spec.dtype, exponent)
        return self._power(self, exponent) if fast is None else call(fast, (self,))

    def __divmod__(self, other: Any) -> Any:
        return call(_divmod, (self, other)) if isinstance(other, (Handle, *ArrayLike)) else NotImplemented

    def __rdivmod__(self, other: Any) -> Any:
        return call(_divmod, (other, self)) if isinstance(other, (Handle, *ArrayLike)) else NotImplemented

    # -- protocols

    def __dlpack__(
        self, *, stream: None = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """The elements, read into the host's memory, for another library. Waits for them."""
        if stream is not None:
            raise ValueError("the elements come to the host's memory, which has no streams: stream must be None")
        if copy is False:
            raise BufferError("the elements are on a worker: they cannot be had without a copy")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the elements come to the host's memory, not to the DLPack device {dl_device}")
        self._implicitly("x.__dlpack__()")
        return self.numpy().__dlpack__(max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The host's memory, where `__dlpack__` brings the elements."""
        return 1, 0

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        import interlock

        if api_version is not None and api_version not in interlock.__array_api_versions__:
            raise ValueError(f"unsupported version of the array API standard: {api_version!r}")
        return interlock

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        from .protocols import array_ufunc

        return array_ufunc(ufunc, method, inputs, options)

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        from .protocols import array_function

        return array_function(function, args, kwargs)

    def __reduce__(self) -> Any:
        raise TypeError("an array on a worker cannot be pickled: save the elements, x.numpy()")


_NUMBERS = frozenset((bool, int, float))


def _check_scalar(key: Any, value: Any, dtype: np.dtype[Any]) -> None:
    """Raise what NumPy raises where one element is set to an array with axes: it broadcasts none there."""
    shape = value._spec.shape if isinstance(value, Handle) else np.shape(value)
    keys = key if type(key) is tuple else (key,)
    if shape and not any(item is Ellipsis for item in keys):
        np.empty(1, dtype)[0] = np.broadcast_to(np.ones((), dtype), shape)


def _dtype(dtype: Any) -> str | None:
    """A dtype as instructions carry it."""
    if dtype is None:
        return None
    return _kept_name(dtype) if isinstance(dtype, (type, str)) else _name(dtype)


def _name(dtype: Any) -> str:
    name: str = np.dtype(dtype).newbyteorder("=").str
    return name


_kept_name = functools.lru_cache(1024)(_name)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _as_method(name: str) -> Callable[..., Any]:
    """The method that does what NumPy's function of this name does."""

    def method(self: Array, *args: Any, **options: Any) -> Any:
        from .protocols import array_function

        return array_function(getattr(np, name), (self, *args), options)

    method.__name__ = name
    method.__qualname__ = f"Array.{name}"
    method.__doc__ = f"As `numpy.{name}` does."
    return method


for _each in ["argpartition", "argsort", "choose", "nonzero", "repeat", "searchsorted", "take", "trace"]:
    setattr(Array, _each, _as_method(_each))
Array.conjugate = Array.conj  # type: ignore[attr-defined]
