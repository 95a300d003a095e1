"""Every message and instruction that crosses a process boundary, with its number.

A message holds only ids and plain values: integers, strings, bytes, and tuples of them.
This file knows nothing of sockets or of how the values are encoded.

Who speaks to whom:

- a session (the frontend) to a worker's inbox: Hello, Peers, Batch, Returned, PeerGone, Trace, Inspect,
  Cancel, Restore, Goodbye;
- a worker to a worker's inbox: Ticket, Taken;
- a worker to a session's events: Welcome, Refused, Completed, Failed, Value, Released, Traced,
  Inspected, Flagged, Described, Lost, Unreachable;
- a watcher thread, inside its own process, to the inbox or to the events: Lost;
- a supervisor to a worker's inbox: Stop.

An instruction is a plain tuple inside a Batch, `(code, ...)`: codes below 32 are the control instructions
of `Control`, the others come from the operation table (`operations.py`), four codes an operation (`form`).
"""

# Annotations are the types themselves here, not their texts: codec.py checks messages against them, and to make types
# of the texts would take longer than all else in this file.
import types
import typing
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, Union

PROTOCOL_VERSION: Final = 3

# A reference to an operand: a buffer's id; a view (buffer, offset, shape, strides, dtype); a plain scalar (value,);
# a typed constant (dtype, bytes). Offsets and strides are bytes, dtypes are NumPy's `dtype.str`.
Ref: TypeAlias = int | tuple[Any, ...]
Instruction: TypeAlias = tuple[Any, ...]


class Control:
    """Numbers of the instructions that are not operations on arrays."""

    FREE: Final = 0  # (FREE, buffer, buffer, ...): the names go; the memory when its last reader is done
    SEND: Final = 1  # (SEND, ref, ticket, target lane): when the array is ready, tell the target where it lies
    RECV: Final = 2  # (RECV, buffer, spec, ticket, source lane): a new array from what the ticket names
    READ: Final = 3  # (READ, ref, request): answer with a Value
    UPLOAD: Final = 4  # (UPLOAD, buffer, spec, place): a new array from the frontend's bytes, see Place
    FENCE: Final = 5  # (FENCE, request): answer with a Value when all before it in the lane has finished
    DEFINE: Final = 6  # (DEFINE, recording, *fields of a Template): remember what its runs do
    FORGET: Final = 7  # (FORGET, recording): no run of it comes any more
    # (RUN, recording, base, bindings, numbers, count): what the recording says. It takes `count` numbers in the lane,
    # as many as the recording has instructions.
    RUN: Final = 8
    # (KEEP, buffer, request): as READ, but of any buffer: a random generator's state, or the failure that it holds.
    KEEP: Final = 9


LANES: Final = 256  # of a session, at the most
LIFE: Final = 1 << 16  # a session's life: it is above the number of the lane in what workers report
TICKET_BITS: Final = 40  # of a ticket: the lane that sends is above, the buffer that is received below
CONTROLS: Final = 32  # operations are numbered from here

# What an operation's instruction looks like: code = 4 * number + form.
ARRAYS: Final = 0  # (code, out, spec, *refs of arrays)
SCALAR_RIGHT: Final = 1  # (code, out, spec, ref, plain scalar)
SCALAR_LEFT: Final = 2  # (code, out, spec, plain scalar, ref)
GENERAL: Final = 3  # (code, first out, specs, operands, static, into): into is a Ref to write, or None
NEXT_OUTPUT: Final = 1 << 48  # the outputs of an operation that has several: out, out + NEXT_OUTPUT, ...

# Among a Batch's specs, behind the new ones: no later batch names a spec that came up to here without giving it again.
FORGET_SPECS: Final = (-1, (), "", ())

# A Place is where the bytes of an array lie, in the memory order of its spec:
#   bytes                             inline
#   ("host", loan, offset, ticket)    in shared memory of the sender; answered by Taken, Returned or Released with
#                                     the loan's number
#   ("device", loan, offset, ticket)  in the sender's device memory, as the device exports it
#   ("generator", 0, 0, words)        no elements, but the state of a random generator: only of a KEEP, in a Restore


class Hello(NamedTuple):
    """A session introduces itself; answered by Welcome or Refused on the session's events."""

    version: int
    table: bytes  # hash of the operation table
    session: bytes  # 16 random bytes
    identity: tuple[Any, ...]  # of the frontend's process
    lane: int  # the number of this worker in the session
    events: str  # where the session listens
    options: dict[str, Any]  # memory: bytes this session may use here


class Peers(NamedTuple):
    """Where the session's other workers listen: (lane, endpoint, identity) each."""

    peers: tuple[tuple[Any, ...], ...]


class Restore(NamedTuple):
    """What the session had on the worker when its lane had come to `after`: in a new lane, before its first batch."""

    after: int
    specs: tuple[tuple[Any, ...], ...]  # as in Batch
    buffers: tuple[tuple[Any, ...], ...]  # (buffer, spec id, Place or None, failure or None) each
    recordings: tuple[tuple[Any, ...], ...]  # (recording, *fields of a Template) each


class Batch(NamedTuple):
    """Instructions `first`, `first + 1`, ... of the lane, and the specs that they are the first to use.

    One may come twice, where the program was interrupted as it sent; it is run once.
    """

    first: int
    specs: tuple[tuple[Any, ...], ...]  # (id, shape, dtype, strides)
    instructions: tuple[Instruction, ...]


class Returned(NamedTuple):
    """The session has copied what these Values lent it."""

    tickets: tuple[int, ...]


class PeerGone(NamedTuple):
    """Nothing more comes from this worker: its tickets are errors, its loans are over."""

    lane: int
    reason: str


class Trace(NamedTuple):
    """Start or stop to record when each instruction ran."""

    on: bool


class Inspect(NamedTuple):
    """Answer with Inspected: what the session holds at this moment."""

    request: int


class Goodbye(NamedTuple):
    """The session ends: everything it has on the worker goes."""


class Ticket(NamedTuple):
    """An array is ready and lies there: from a producing worker to the consuming one."""

    session: bytes
    source: int
    ticket: int
    place: Any  # a Place, or None where `failure` says why there is nothing
    failure: tuple[Any, ...] | None
    sent_ns: int
    taken: tuple[int, ...]  # as in Taken, so that it needs no message of its own


class Taken(NamedTuple):
    """The consumer has copied or dropped what these tickets named."""

    session: bytes
    source: int  # the consumer's lane
    tickets: tuple[int, ...]


class Cancel(NamedTuple):
    """Drop what has not started, up to instruction `through`, once the grace is over; what runs goes on to its end."""

    through: int
    grace_ms: int


class Stop(NamedTuple):
    """End the worker, whatever it holds."""


class Welcome(NamedTuple):
    """The worker has made the lane."""

    lane: int
    identity: tuple[Any, ...]
    device: dict[str, Any]


class Refused(NamedTuple):
    """The worker will not serve this session."""

    lane: int
    reason: str


class Completed(NamedTuple):
    """Everything in this lane up to and including `through` has finished on the device."""

    lane: int
    through: int


class Failed(NamedTuple):
    """Instruction n failed, or inherited the failure (root lane, root n)."""

    lane: int
    n: int
    root: tuple[int, int]
    kind: str  # the exception's class
    text: str
    traceback: str
    detail: str  # the operation and its operands' specs
    issued: int  # grows in the order of issue over all lanes
    shortage: tuple[Any, ...] = ()  # a Shortage (shortage.py), where it was memory that lacked


class Value(NamedTuple):
    """The answer to a READ or a FENCE."""

    lane: int
    request: int
    place: Any  # a Place, or None
    failure: tuple[Any, ...] | None  # as the worker's Failure: (root, kind, text, traceback, detail, path)
    through: int = 0  # as in Completed, so that a read needs no second message


class Released(NamedTuple):
    """The worker has copied or dropped what these blocks of the frontend's arena lent it."""

    lane: int
    blocks: tuple[int, ...]


class Traced(NamedTuple):
    """What ran: (n, stream, start, end) in nanoseconds of the worker's monotonic clock; and transfers.

    The stream behind the last one stands for none: the instruction waited for a ticket, or behind one that did.
    """

    lane: int
    ran: tuple[tuple[Any, ...], ...]
    moved: tuple[tuple[Any, ...], ...]  # (ticket, source lane, nbytes, sent_ns, taken_ns, in place)
    last: bool  # nothing more comes of this trace


class Inspected(NamedTuple):
    """The answer to an Inspect: how many of each thing the session holds on the worker."""

    lane: int
    request: int
    counts: dict[str, int]


class Described(NamedTuple):
    """What an instruction has made whose specs only its run could tell; or why it made nothing."""

    lane: int
    request: int
    specs: tuple[tuple[Any, ...], ...]  # (shape, dtype, strides) of each result
    failure: tuple[Any, ...] | None  # as in Value


class Lost(NamedTuple):
    """The process behind `key` has ended: a lane's number for a session, a session's id for a worker."""

    key: Any
    reason: str


class Unreachable(NamedTuple):
    """The worker's connection to another one, over tcp, is over: what it had for it may be lost."""

    lane: int
    peer: int  # the other's lane
    reason: str


class Flagged(NamedTuple):
    """Instruction n made or brought a NaN or an infinity, and nothing before it that it reads had one."""

    lane: int
    n: int
    how: str  # "made", "number" (an operand is one that is not finite), "data" (it was sent so)
    detail: str  # the operation and its operands' specs, or the spec of what was sent
    counts: tuple[int, ...]  # nan, inf, elements
    issued: int  # grows in the order of issue over all lanes


def aged(message: Any, life: int) -> Any:
    """A worker's report as it leaves in this life of the session; the first leaves as it is."""
    return message._replace(lane=message.lane + life * LIFE) if life else message


Message = Any  # any of the classes below
CLASSES: Final[tuple[type[Any], ...]] = (
    Hello, Peers, Batch, Returned, PeerGone, Trace, Goodbye, Ticket, Taken, Stop,
    Welcome, Refused, Completed, Failed, Value, Released, Traced, Lost, Inspect, Inspected,
    Cancel, Unreachable, Flagged, Described, Restore,
)  # fmt: skip
TAGS: Final[dict[type[Any], int]] = {cls: tag for tag, cls in enumerate(CLASSES)}


class Shape:
    """The types that a message's fields may have, read once from its annotations."""

    of: ClassVar[dict[int, tuple[type[Any], tuple[tuple[type[Any], ...] | None, ...]]]] = {}


def _allowed(annotation: Any) -> tuple[type[Any], ...] | None:
    """The types of a field; None where the field may hold anything plain."""
    if annotation is Any:
        return None
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is Union:
        parts = [_allowed(part) for part in typing.get_args(annotation)]
        return None if None in parts else tuple(t for part in parts if part for t in part)
    return (typing.get_origin(annotation) or annotation,)


for _tag, _cls in enumerate(CLASSES):
    Shape.of[_tag] = (_cls, tuple(_allowed(_cls.__annotations__[field]) for field in _cls._fields))
