"""Gradients: `grad`, `value_and_grad`, `vjp`, by going back over the instructions that a function issued.

Each instruction's gradient is made by the rules of `gradients.py`, as ordinary operations, on the device where its
operands live; a transfer's gradient travels back. As the trail is one of instructions on buffers, views and in-place
writes need no special care: the gradient of a buffer lies in a buffer of the same layout, a view of the one is a view
of the other, and a write takes what it overwrote out of it. What a rule needs and was overwritten is refused, with
the line. Gradients of gradients need nothing: what goes back is a trail like any other.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..protocol.accesses import accesses, buffer_of, operation_name, outputs
from ..protocol.messages import ARRAYS, CONTROLS, GENERAL, SCALAR_RIGHT, Control, Ref
from ..protocol.operations import BY_NUMBER
from ..protocol.specs import Spec
from ..protocol.specs import spec as spec_of
from . import functions as f
from .array import Array
from .client import default_session
from .gradients import FLAT, RULES
from .infer import like_order
from .issue import Handle
from .numbers import Number
from .sites import describe
from .trail import Taken, Trail, overlap, running

if TYPE_CHECKING:
    from .lane import Lane

_CAPTURED: Final = (
    "a captured function is called on arrays that gradients are taken by, at {}: capture the function that takes the "
    "gradients instead"
)


class Node:
    """An operation of the trail, as `gradients.Step` has it."""

    def __init__(self, trail: Trail, at: int, taken: Taken) -> None:
        self.trail = trail
        self.at = at
        self.taken = taken
        self.active: list[int] = []  # the operands that gradients go to
        self.g: Any = None
        code, *rest = taken.instruction
        operation = BY_NUMBER[code // 4]
        self.name, self.rule = operation_name(taken.instruction), RULES.get(operation.number)
        self.into: Ref | None = None  # what it writes, if that was there before
        self.made = [buffer for buffer, _ in outputs(taken.instruction)]
        self.static: dict[str, Any] = {}
        if code % 4 == GENERAL:
            _, _, self.operands, static, self.into = rest
            self.static = dict(zip(operation.static, static, strict=True))
            if operation.writes:
                self.into = self.operands[operation.writes[0]]
        else:
            operands = list(rest[2:])
            if code % 4 != ARRAYS:  # the plain scalar as a reference
                place = 1 if code % 4 == SCALAR_RIGHT else 0
                operands[place] = operands[place] if isinstance(operands[place], Number) else (operands[place],)
            self.operands = tuple(operands)

    @property
    def count(self) -> int:
        return len(self.operands)

    @property
    def y(self) -> Any:
        ref = self.made[0] if self.into is None else self.into
        return self.trail.value(ref, self.at, self.taken.lane)

    def x(self, place: int) -> Any:
        return self.trail.value(self.operands[place], self.at - 1, self.taken.lane)

    def shape(self, place: int) -> tuple[int, ...]:
        found = self._spec(place)
        return () if found is None else found.shape

    def dtype(self, place: int) -> Any:
        found = self._spec(place)
        assert found is not None
        return found.dtype

    def _spec(self, place: int) -> Spec | None:
        ref = self.operands[place]
        return None if isinstance(ref, Number) else self.trail.spec(ref)


class Backward:
    """Goes back over a trail, from the gradient of what a function returned to those of what it was given."""

    def __init__(self, trail: Trail, leaves: list[Any], returned: Any) -> None:
        self.trail = trail
        self._leaves = leaves
        self._returned = returned
        self._received: dict[int, tuple[Ref, Lane]] = {}  # by instruction: what was sent to it
        self._nodes = self._find_active()
        needed: set[int] = set()
        for node in self._nodes.values():
            if isinstance(node, Node) and node.rule is not None and node.active:
                reads, writes = accesses(node.taken.instruction)
                needed.update(reads if node.rule.operands else (), writes if node.rule.result else ())
        trail.need(needed)

    # -- what depends on what was given

    def _find_active(self) -> dict[int, Node | None]:
        """By its place, each instruction that a gradient goes through; None for a transfer."""
        active = {buffer_of(leaf._ref) for leaf in self._leaves}
        sent: dict[int, tuple[Ref, Lane]] = {}
        found: dict[int, Node | None] = {}
        for at, taken in enumerate(self.trail.instructions):
            code = taken.instruction[0]
            if code >= CONTROLS:
                node = Node(self.trail, at, taken)
                if self._goes_through(node, active):
                    found[at] = node
            elif code == Control.SEND and buffer_of(taken.instruction[1]) in active:
                sent[taken.instruction[2]] = taken.instruction[1], taken.lane
            elif code == Control.RECV and taken.instruction[3] in sent:
                self._received[at] = sent[taken.instruction[3]]
                active.add(taken.instruction[1])
                found[at] = None
            elif code == Control.RUN:
                given = {each if type(each) is int else each[0] for each in taken.instruction[3]}
                if given & active:
                    raise TypeError(_CAPTURED.format(describe(taken.site)))
        return found

    def _goes_through(self, node: Node, active: set[int | None]) -> bool:
        """Whether the operation depends on what is active, or overwrites it; `active` becomes what it leaves."""
        for place, ref in enumerate(node.operands):
            overwritten = node.name in ("assign", "setitem_advanced") and place == 0
            if not isinstance(ref, Number) and buffer_of(ref) in active and not overwritten and node.name not in FLAT:
                spec = self.trail.spec(ref)
                if spec is not None and spec.dtype.kind == "c":
                    raise TypeError(
                        f"gradients of complex arrays are not made, as `{node.name}` would need at "
                        f"{describe(node.taken.site)}: go by the real and the imaginary part"
                    )
                if spec is not None and spec.dtype.kind == "f":
                    node.active.append(place)
        if node.into is None:
            stopped = self.trail.stopped.intersection(node.made)
            depends = bool(node.active) and not stopped and any(map(self._is_real, node.made))
            active.update(node.made if depends else ())
            return depends
        target = buffer_of(node.into)
        was = target in active
        if node.active and self._is_real(target):
            active.add(target)
        elif type(node.into) is int:
            active.discard(target)  # all of it is something else now
        return was or bool(node.active)

    def _is_real(self, buffer: int | None) -> bool:
        spec = self.trail.spec(buffer) if buffer is not None else None
        return spec is not None and spec.dtype.kind in "fc"

    # -- the way back

    def run(self, cotangent: Any) -> list[Any]:
        """The gradients of the leaves, each an array of its own, where the leaf is."""
        trail = self.trail
        trail.catch_up()
        grads = Gradients(trail)
        grads.add(self._returned._ref, self._returned._lane, cotangent)
        for at in reversed(self._nodes):
            taken, node = trail.instructions[at], self._nodes[at]
            if node is None:
                ref, source = self._received[at]
                g = grads.take(taken.instruction[1])
                if g is not None:
                    grads.add(ref, source, g.to(source.device))
            else:
                self._back_through(node, grads)
        return self._collect(grads, cotangent)

    def _back_through(self, node: Node, grads: Gradients) -> None:
        lane = node.taken.lane
        if node.into is not None:
            node.g = grads.take(node.into)
        else:
            several = [grads.take(buffer) for buffer in node.made]
            node.g = next((g for g in several if g is not None), None)
            if len(several) > 1 and node.g is not None:
                raise _no_rule(node)
        if node.g is not None:
            for place in node.active:
                if node.rule is None:
                    raise _no_rule(node)
                grads.add(node.operands[place], lane, node.rule.partial(node, place))
            node.g = None

    def _collect(self, grads: Gradients, cotangent: Any) -> list[Any]:
        found: list[Any] = []
        for leaf in self._leaves:
            g = grads.look(leaf._ref)
            if g is None:
                g = f.zeros_like(leaf)
            elif g._base is not None or g is cotangent or any(g is other for other in found):
                g = g.copy()
            found.append(g)
        return found


class Gradients:
    """The gradient of each buffer, as far as it has come."""

    def __init__(self, trail: Trail) -> None:
        self._trail = trail
        self._found: dict[int, tuple[Any, bool]] = {}  # by buffer: the array, and whether it may be written

    def add(self, ref: Ref, lane: Lane, g: Any) -> None:
        """What an operand has contributed to: summed over what was broadcast, in the operand's dtype."""
        spec = self._trail.spec(ref)
        if spec is None:
            return
        g = _fitting(g, spec, lane)
        if type(ref) is int:
            known = self._found.get(ref)
            self._found[ref] = (g, False) if known is None else (known[0] + g, True)
            return
        buffer, offset, shape, strides, dtype = ref  # type: ignore[misc]
        repeated = tuple([axis for axis, stride in enumerate(strides) if stride == 0 and shape[axis] > 1])
        if repeated:  # a broadcast view: its elements are the same ones
            g = g.sum(axis=repeated, keepdims=True)
            shape = tuple([1 if axis in repeated else extent for axis, extent in enumerate(shape)])
        whole = self._writable(buffer, lane)
        if whole.dtype.str != dtype:
            raise TypeError(f"an array is differentiated through a view of it as {dtype}, which has no gradient")
        target = _view(whole, offset, shape, strides, dtype)
        target += g

    def take(self, ref: Ref) -> Any:
        """The gradient of what a reference stands for, which has none before it was written; None if there is none."""
        if type(ref) is int:
            found = self._found.pop(ref, None)
            return None if found is None else found[0]
        g = self.look(ref)
        if g is not None:
            g = g.copy()
            _view(self._writable(ref[0], g._lane), *ref[1:])[...] = 0  # type: ignore[index]
        return g

    def look(self, ref: Ref) -> Any:
        if type(ref) is int:
            return None if ref not in self._found else self._found[ref][0]
        if ref[0] not in self._found:  # type: ignore[index]
            return None
        return _view(self._writable(ref[0], self._found[ref[0]][0]._lane), *ref[1:])  # type: ignore[index]

    def _writable(self, buffer: int, lane: Lane) -> Any:
        """The gradient of a buffer, in the buffer's layout."""
        known = self._found.get(buffer)
        spec = self._trail.spec(buffer)
        assert spec is not None
        if known is not None and known[1] and known[0]._spec is spec:
            return known[0]
        made = _zeros(spec, lane)
        if known is not None:
            made[...] = known[0]
        self._found[buffer] = made, True
        return made


def _zeros(spec: Spec, lane: Lane) -> Any:
    return f._make("zeros", (), (spec.shape, spec.dtype_str, like_order(spec)), lane.device)


def _view(whole: Any, offset: int, shape: Any, strides: Any, dtype: str) -> Any:
    """The view of this geometry."""
    return whole._view((spec_of(tuple(shape), np.dtype(dtype), tuple(strides)), offset))


def _fitting(g: Any, spec: Spec, lane: Lane) -> Any:
    """A gradient in an operand's shape and dtype."""
    if not isinstance(g, Array):
        g = f.full((), g, spec.dtype, device=lane.device)
    lead = g.ndim - spec.ndim
    if lead >= 0 and g.shape != spec.shape:
        spread = [lead + axis for axis, extent in enumerate(spec.shape) if extent == 1 != g.shape[lead + axis]]
        if lead or spread:
            g = g.sum(axis=(*range(lead), *spread), keepdims=True).reshape(
                tuple([1 if lead + axis in spread else g.shape[lead + axis] for axis in range(spec.ndim)])
            )
    if g.shape != spec.shape:
        g = f.broadcast_to(g, spec.shape)
    return g if g.dtype == spec.dtype else g.astype(spec.dtype)


def _no_rule(node: Node) -> TypeError:
    return TypeError(
        f"no gradient of `{node.name}` is known, which is needed at {describe(node.taken.site)}: "
        f"take what does not depend on the parameters out of the function, or il.stop_gradient(...) of its operand"
    )


# -- what is given and returned ---------------------------------------------------------------------------------------


def _mapped(value: Any, leaf: Callable[[Any], Any], other: Callable[[Any], Any]) -> Any:
    """The same nesting of tuples, lists, dicts, dataclasses: arrays and floats changed by `leaf`, else by `other`."""
    if isinstance(value, Handle) or type(value) is float or type(value) is Number or isinstance(value, np.floating):
        return leaf(value)
    if isinstance(value, dict):
        return {key: _mapped(each, leaf, other) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_mapped(each, leaf, other) for each in value]
        if isinstance(value, list):
            return parts
        return tuple(parts) if type(value) is tuple else type(value)(*parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **{name: _mapped(getattr(value, name), leaf, other) for name in fields})
    return other(value)


def _arrays_in(value: Any) -> list[Handle]:
    found: list[Handle] = []
    _mapped(value, lambda leaf: found.append(leaf) if isinstance(leaf, Handle) else None, lambda each: None)
    return found


class Differentiated:
    """One call of a function whose gradients will be taken."""

    def __init__(
        self, function: Callable[..., Any], chosen: tuple[int, ...], args: Any, kwargs: Any, aux: bool
    ) -> None:
        self.leaves: list[Any] = []
        given = list(args)
        for place in chosen:
            given[place] = _mapped(args[place], self._as_leaf, lambda each: each)
        self._shapes = [given[place] for place in chosen]
        arrays = _arrays_in((given, kwargs))
        sessions = {array._lane.session for array in arrays}
        if len(sessions) > 1:
            raise ValueError("the arrays that the function is given belong to different sessions")
        self.trail = Trail(sessions.pop() if sessions else default_session(), arrays)
        self.aux: Any = None
        mine = threading.get_ident(), self.trail
        running.append(mine)
        try:
            self.trail.begin()
            self.value = function(*given, **kwargs)
            if aux:
                self.value, self.aux = self.value
            self.trail.end()
        except BaseException:
            self.trail.let_go()
            raise
        finally:
            running.remove(mine)

    def _as_leaf(self, value: Any) -> Any:
        """What the function is given instead: a leaf that no other shares memory with."""
        array = value if isinstance(value, Handle) else f.asarray(value.pinned() if type(value) is Number else value)
        if array._spec.dtype.kind != "f":
            raise TypeError(
                f"a gradient by an array of {array._spec.dtype} is not defined: use a real floating dtype, or argnums "
                f"to choose other arguments"
            )
        ref = array._ref
        if any(leaf._lane is array._lane and _share(leaf._ref, ref) for leaf in self.leaves):
            array = array.copy()  # type: ignore[attr-defined]
        self.leaves.append(array)
        return array

    def nested(self, gradients: list[Any]) -> Any:
        """The leaves' gradients, nested as the arguments are."""
        found = iter(gradients)
        return tuple([_mapped(each, lambda leaf: next(found), lambda other: None) for each in self._shapes])


def _share(one: Ref, other: Ref) -> bool:
    return buffer_of(one) == buffer_of(other) and overlap(one, other)


def _places(argnums: int | tuple[int, ...], args: tuple[Any, ...], name: str) -> tuple[int, ...]:
    chosen = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    for place in chosen:
        if not -len(args) <= place < len(args):
            raise TypeError(f"{name} is called with {len(args)} arguments and differentiated by number {place}")
    return tuple([place % len(args) for place in chosen])


def _check_loss(value: Any, name: str) -> None:
    if not isinstance(value, Array):
        raise TypeError(f"{name} must return an array with one real element to be differentiated, not {value!r:.60}")
    if value.shape != () or value.dtype.kind != "f":
        raise TypeError(
            f"{name} must return one real number to be differentiated, an array of shape (), not of shape "
            f"{value.shape} and {value.dtype}: reduce it, such as by .sum() or .mean()"
        )


def value_and_grad(
    function: Callable[..., Any], argnums: int | tuple[int, ...] = 0, *, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns what `function` does, and its gradient by some arguments.

        loss, gradients = il.value_and_grad(loss_of)(parameters, x, y)

    Nothing waits: value and gradients are arrays like any other. It may be captured, and differentiated again.

    Args:
        function: returns an array of shape () and a real floating dtype.
        argnums: by which positional arguments; each an array, a float, or tuples, lists, dicts and dataclasses of
            them. The gradients are nested likewise, a tuple of them if `argnums` is one; what is no array or float
            there has None.
        has_aux: `function` returns (value, anything else); so does the first of what is returned then.

    Raises:
        TypeError: at the call: an argument or the value is not real, or an operation has no gradient (with its line).
        RuntimeError: at the call: what a gradient needs was overwritten in place (with the line).
    """
    name = getattr(function, "__name__", repr(function))

    @functools.wraps(function)
    def differentiated(*args: Any, **kwargs: Any) -> Any:
        run = Differentiated(function, _places(argnums, args, name), args, kwargs, has_aux)
        try:
            _check_loss(run.value, name)
            value = run.value
            one = f.ones((), value.dtype, device=value.device)
            gradients = run.nested(Backward(run.trail, run.leaves, value).run(one))
            gradients = gradients[0] if isinstance(argnums, int) else gradients
        finally:
            run.trail.let_go()
        return ((value, run.aux) if has_aux else value), gradients

    return differentiated


def grad(
    function: Callable[..., Any], argnums: int | tuple[int, ...] = 0, *, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns the gradient of `function`: see `value_and_grad`, which returns the value as well.

    With `has_aux` it returns (gradient, what else `function` returned).
    """
    both = value_and_grad(function, argnums, has_aux=has_aux)

    @functools.wraps(function)
    def differentiated(*args: Any, **kwargs: Any) -> Any:
        value, gradients = both(*args, **kwargs)
        return (gradients, value[1]) if has_aux else gradients

    return differentiated


def vjp(function: Callable[..., Any], *args: Any) -> tuple[Any, Callable[[Any], Any]]:
    """(what `function` returns for these arguments, a function from that one's gradient to theirs).

    The second may be called any number of times; what it needs is kept until it goes.

    Raises:
        TypeError: as of `value_and_grad`; the value may be of any shape.
    """
    name = getattr(function, "__name__", repr(function))
    run = Differentiated(function, tuple(range(len(args))), args, {}, aux=False)
    try:
        if not isinstance(run.value, Array) or run.value.dtype.kind != "f":
            raise TypeError(f"{name} must return a real array to be differentiated, not {run.value!r:.60}")
    except BaseException:
        run.trail.let_go()
        raise
    return run.value, Pullback(run)


class Pullback:
    """From the gradient of a function's value to those of its arguments."""

    def __init__(self, run: Differentiated) -> None:
        self._run = run
        self._way = Backward(run.trail, run.leaves, run.value)

    def __call__(self, cotangent: Any) -> Any:
        """The gradients of the arguments, a tuple where there are several.

        Args:
            cotangent: of the shape of the value, on its device; numbers and NumPy arrays go there.
        """
        value = self._run.value
        g = f.asarray(cotangent, value.dtype, device=None if isinstance(cotangent, Handle) else value.device)
        if g.shape != value.shape:
            raise ValueError(f"the value has shape {value.shape}, and its gradient is given in shape {g.shape}")
        gradients = self._run.nested(self._way.run(g))
        return gradients[0] if len(gradients) == 1 else gradients

    def __del__(self) -> None:
        self._run.trail.let_go()


def stop_gradient(x: Any) -> Any:
    """The same elements, through which no gradient goes. A copy inside a function that is being differentiated."""
    if not running or not isinstance(x, Array):
        return x
    copied = x.copy("K")
    for _, trail in running:
        trail.stopped.add(copied._ref)  # type: ignore[arg-type]
    return copied
