"""What an instruction reads and writes, for each form that an instruction can have."""

from __future__ import annotations

import pytest

from interlock.protocol.accesses import accesses, buffer_of, outputs, spoiled
from interlock.protocol.messages import ARRAYS, GENERAL, NEXT_OUTPUT, SCALAR_LEFT, SCALAR_RIGHT, Control
from interlock.protocol.operations import BY_NAME

VIEW = (7, 16, (3,), (8,), "<f8")


def code(name: str, form: int) -> int:
    return 4 * BY_NAME[name].number + form


@pytest.mark.parametrize(
    ("instruction", "reads", "writes"),
    [
        ((Control.FREE, 1, 2, 3), (), (1, 2, 3)),
        ((Control.SEND, 5, 900, 1), (5,), ()),
        ((Control.SEND, VIEW, 900, 1), (7,), ()),
        ((Control.RECV, 6, 0, 900, 0), (), (6,)),
        ((Control.UPLOAD, 6, 0, b""), (), (6,)),
        ((Control.READ, VIEW, 1), (7,), ()),
        ((Control.FENCE, 1), (), ()),
        ((code("add", ARRAYS), 9, 0, 1, VIEW), (1, 7), (9,)),
        ((code("exp", ARRAYS), 9, 0, 1), (1,), (9,)),
        ((code("add", SCALAR_RIGHT), 9, 0, VIEW, 2), (7,), (9,)),
        ((code("add", SCALAR_LEFT), 9, 0, 2, VIEW), (7,), (9,)),
        ((code("sum", GENERAL), 9, (0,), (1,), (None, None, False), None), (1,), (9,)),
        ((code("add", GENERAL), 9, (), (1, (2,)), (), 1), (1,), (1,)),
        ((code("add", GENERAL), 9, (), (1, 2), (), VIEW), (1, 2, 7), (7,)),
        ((code("assign", GENERAL), 9, (), (1, (2,)), (), None), (), (1,)),
        ((code("assign", GENERAL), 9, (), (VIEW, 2), (), None), (7, 2), (7,)),
        ((code("setitem_advanced", GENERAL), 9, (), (1, 2, 3), ("@",), None), (1, 2, 3), (1,)),
        ((code("rng_random", GENERAL), 9, (0,), (4,), ((3,), None), None), (4,), (9, 4)),
        ((code("rng_shuffle", GENERAL), 9, (), (4, VIEW), (0,), None), (4, 7), (4, 7)),
        ((code("divmod", GENERAL), 9, (0, 0), (1, (2,)), (), None), (1,), (9, 9 + NEXT_OUTPUT)),
        ((code("full", GENERAL), 9, (0,), (("<f4", b"1234"),), ((3,), None, "C"), None), (), (9,)),
    ],
)
def test_an_instruction_reads_and_writes(
    instruction: tuple[object, ...], reads: tuple[int, ...], writes: tuple[int, ...]
) -> None:
    assert accesses(instruction) == (reads, writes)


def test_outputs_come_with_their_specs() -> None:
    assert list(outputs((Control.RECV, 6, 3, 900, 0))) == [(6, 3)]
    assert list(outputs((Control.UPLOAD, 6, 3, b""))) == [(6, 3)]
    assert list(outputs((Control.FREE, 6, 3))) == []
    assert list(outputs((code("add", ARRAYS), 9, 3, 1, 2))) == [(9, 3)]
    assert list(outputs((code("divmod", GENERAL), 9, (3, 4), (1, 2), (), None))) == [(9, 3), (9 + NEXT_OUTPUT, 4)]
    assert list(outputs((code("add", GENERAL), 9, (), (1, 2), (), 1))) == []


def test_only_arrays_have_a_buffer() -> None:
    assert buffer_of(4) == 4
    assert buffer_of(VIEW) == 7
    assert buffer_of((2.5,)) is None
    assert buffer_of(("<f4", b"1234")) is None


def test_what_fails_spoils_what_it_writes_but_not_a_generator() -> None:
    assert spoiled((code("rng_random", GENERAL), 9, (0,), (4,), ((3,), None), None)) == (9,)
    assert spoiled((code("rng_shuffle", GENERAL), 9, (), (4, VIEW), (0,), None)) == (7,)
    assert spoiled((code("add", GENERAL), 9, (), (1, 2), (), VIEW)) == (7,)
    assert spoiled((code("rng_new", GENERAL), 9, (0,), (), ((1,), ()), None)) == (9,)
    assert spoiled((Control.RECV, 6, 0, 900, 0)) == (6,)
