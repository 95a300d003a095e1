"""The table of operations: what each is called, what it takes and writes. Both sides of the wire number them by it.

Decides the number, the operand count, the written operands and the names of the static values of every operation.
Knows neither how a result's spec is inferred nor how an operation is carried out.

An instruction carries the operation's number, its operands and its static values. *Operands* are arrays (or generators)
and the scalars that stand in an array's place. *Static values* are plain, hashable values in the order of
`Operation.static`; where NumPy has a keyword of that name they mean what NumPy means:

    axis, keepdims, ddof, decimals, k, size, N, M, num, endpoint, replace, shuffle    int, bool, tuple of ints, None
    dtype                       a dtype string such as '<f4'; None where NumPy has a default
    shape                       tuple of ints
    order (astype, copy)        'K', 'C', 'F' or 'A'
    order (empty, zeros, ...)   'C', 'F', or a tuple of the axes from the slowest to the fastest in memory
    min, max (clip)             bool: whether an operand for this bound is given
    start, stop, step, loc, scale, low, high, lam
                                a scalar reference: (value,) or (dtype string, bytes); None where it was left out
    x, a (permutation, choice)  an int, or None where the second operand is the array
    seed, spawn_key (rng_new)   tuples of 32-bit words: what numpy.random.SeedSequence(entropy, spawn_key=...) takes
    key (get/setitem_advanced)  a tuple of: int; None (a new axis); '...'; ('s', start, stop, step), a slice;
                                ('c', dtype string, shape, bytes), an index array known when issued;
                                '@', the next index array among the operands
    function, tree (named)      which of NumPy's functions (`functions.py`), and its arguments (`trees.py`): a tuple of
                                the positional ones and a dict
    method, tree, size (rng_named)
                                which of a generator's methods, its arguments but `size`, and that
    count, request (asked)      how many arrays come of it, and the number under which the worker answers with their
                                specs: they are known when it has them (a Described of `messages.py`)
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Operation(NamedTuple):
    """One row of the table."""

    number: int
    name: str  # NumPy's own, where NumPy has the function
    kind: str  # which convention infer and the kernels share for it
    inputs: int  # operands; -1: any number
    outputs: int  # new buffers; -1: as many as the instruction says
    writes: tuple[int, ...]  # positions of the operands that it writes
    static: tuple[str, ...]  # names of the static values, in order

    @property
    def plain(self) -> bool:
        """Whether the kernel is the ufunc itself, to be called with the operands and then the output or None."""
        return self.kind == "ufunc" and self.outputs == 1


FIRST: Final = 32  # the numbers below are the control instructions'

_UNARY = """negative positive absolute fabs exp exp2 expm1 log log2 log10 log1p sqrt cbrt square reciprocal sign floor
    ceil trunc rint sin cos tan sinh cosh tanh arcsin arccos arctan arcsinh arccosh arctanh degrees radians
    rad2deg deg2rad logical_not invert isnan isinf isfinite signbit conjugate spacing bitwise_count"""
_BINARY = """add subtract multiply divide floor_divide remainder power float_power fmod arctan2 hypot logaddexp
    logaddexp2 maximum minimum fmax fmin equal not_equal less less_equal greater greater_equal logical_and logical_or
    logical_xor bitwise_and bitwise_or bitwise_xor left_shift right_shift copysign nextafter heaviside gcd lcm ldexp
    matmul"""

# (name, kind, inputs, outputs, writes, static). A number is a row's place: append only.
_ROWS: tuple[tuple[str, str, int, int, tuple[int, ...], str], ...] = (
    *((name, "ufunc", 1, 1, (), "") for name in _UNARY.split()),
    *((name, "ufunc", 2, 1, (), "") for name in _BINARY.split()),
    ("divmod", "ufunc", 2, 2, (), ""),
    ("modf", "ufunc", 1, 2, (), ""),
    ("frexp", "ufunc", 1, 2, (), ""),
    ("sum", "call", 1, 1, (), "axis dtype keepdims"),
    ("prod", "call", 1, 1, (), "axis dtype keepdims"),
    ("mean", "call", 1, 1, (), "axis dtype keepdims"),
    ("var", "call", 1, 1, (), "axis dtype ddof keepdims"),
    ("std", "call", 1, 1, (), "axis dtype ddof keepdims"),
    ("max", "call", 1, 1, (), "axis keepdims"),
    ("min", "call", 1, 1, (), "axis keepdims"),
    ("argmax", "call", 1, 1, (), "axis keepdims"),
    ("argmin", "call", 1, 1, (), "axis keepdims"),
    ("any", "call", 1, 1, (), "axis keepdims"),
    ("all", "call", 1, 1, (), "axis keepdims"),
    ("cumsum", "call", 1, 1, (), "axis dtype"),
    ("cumprod", "call", 1, 1, (), "axis dtype"),
    ("round", "call", 1, 1, (), "decimals"),
    ("sort", "call", 1, 1, (), "axis"),
    ("argsort", "call", 1, 1, (), "axis"),
    ("tril", "call", 1, 1, (), "k"),
    ("triu", "call", 1, 1, (), "k"),
    ("where", "call", 3, 1, (), ""),
    ("clip", "clip", -1, 1, (), "min max"),
    ("astype", "method", 1, 1, (), "dtype order"),
    ("copy", "method", 1, 1, (), "order"),
    ("assign", "assign", 2, 0, (0,), ""),
    ("getitem_advanced", "index", -1, 1, (), "key"),
    ("setitem_advanced", "index", -1, 0, (0,), "key"),
    ("concatenate", "join", -1, 1, (), "axis dtype"),
    ("stack", "join", -1, 1, (), "axis dtype"),
    ("empty", "create", 0, 1, (), "shape dtype order"),
    ("zeros", "create", 0, 1, (), "shape dtype order"),
    ("ones", "create", 0, 1, (), "shape dtype order"),
    ("full", "create", 1, 1, (), "shape dtype order"),
    ("eye", "sequence", 0, 1, (), "N M k dtype"),
    ("arange", "sequence", 0, 1, (), "start stop step dtype"),
    ("linspace", "sequence", 0, 1, (), "start stop num endpoint dtype"),
    ("rng_new", "random", 0, 1, (), "seed spawn_key"),
    ("rng_random", "random", 1, 1, (0,), "size dtype"),
    ("rng_standard_normal", "random", 1, 1, (0,), "size dtype"),
    ("rng_standard_exponential", "random", 1, 1, (0,), "size dtype"),
    ("rng_normal", "random", 1, 1, (0,), "loc scale size"),
    ("rng_uniform", "random", 1, 1, (0,), "low high size"),
    ("rng_exponential", "random", 1, 1, (0,), "scale size"),
    ("rng_poisson", "random", 1, 1, (0,), "lam size"),
    ("rng_integers", "random", 1, 1, (0,), "low high size dtype endpoint"),
    ("rng_permutation", "random", -1, 1, (0,), "x axis"),
    ("rng_choice", "random", -1, 1, (0,), "a size replace axis shuffle"),
    ("rng_shuffle", "random", 2, 0, (0, 1), "axis"),
    ("named", "named", -1, -1, (), "function tree"),
    ("named_write", "named", -1, 0, (0,), "function tree"),
    ("named_write_two", "named", -1, 0, (0, 1), "function tree"),
    ("asked", "asked", -1, -1, (), "function tree count request"),
    ("rng_named", "random", -1, 1, (0,), "method tree size"),
)

OPERATIONS: Final[tuple[Operation, ...]] = tuple(
    Operation(FIRST + place, name, kind, inputs, outputs, writes, tuple(static.split()))
    for place, (name, kind, inputs, outputs, writes, static) in enumerate(_ROWS)
)
BY_NAME: Final[dict[str, Operation]] = {row.name: row for row in OPERATIONS}
BY_NUMBER: Final[dict[int, Operation]] = {row.number: row for row in OPERATIONS}


def table_hash() -> bytes:
    """A digest of the whole table: two sides with the same digest mean the same by every number."""
    import hashlib  # here, as it takes longer to load than this file; only a greeting needs it

    return hashlib.sha256(repr([tuple(row) for row in OPERATIONS]).encode()).digest()
