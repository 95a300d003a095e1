"""Messages survive the wire as they are, and nothing else gets through."""

from __future__ import annotations

import contextlib
import tracemalloc
import typing

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.protocol import messages as m
from interlock.protocol.codec import LARGEST_MESSAGE, decode, encode, packer
from interlock.protocol.errors import ProtocolError

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=40)
)
PLAIN = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=12)
TYPES: dict[object, st.SearchStrategy[object]] = {
    int: st.integers(0, 1 << 62),
    bytes: st.binary(max_size=40),
    str: st.text(max_size=20),
    bool: st.booleans(),
    typing.Any: PLAIN,
}


def strategy(annotation: object) -> st.SearchStrategy[object]:
    if annotation in TYPES:
        return TYPES[annotation]
    origin = typing.get_origin(annotation)
    if origin is tuple:
        return st.lists(PLAIN, max_size=4).map(tuple)
    if origin is dict:
        return st.dictionaries(st.text(max_size=8), SCALARS, max_size=4)
    return st.one_of(*(st.none() if arg is type(None) else strategy(arg) for arg in typing.get_args(annotation)))


def messages() -> st.SearchStrategy[object]:
    """Any message, by its class's own annotations."""
    return st.one_of(
        *(st.builds(cls, *(strategy(hint) for hint in typing.get_type_hints(cls).values())) for cls in m.CLASSES)
    )


@given(messages())
@settings(max_examples=300)
def test_a_message_comes_back_as_it_was(message: object) -> None:
    back = decode(encode(message))
    assert type(back) is type(message)
    assert back == message


def test_every_class_has_a_tag_of_its_own() -> None:
    assert len(set(m.TAGS.values())) == len(m.CLASSES) == len(m.TAGS)


@given(st.binary(max_size=200))
@settings(max_examples=500)
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    try:
        message = decode(data)
    except ProtocolError:
        return
    assert encode(message) == data or decode(encode(message)) == message  # it happened to be one


@given(messages(), st.data())
@settings(max_examples=300)
def test_a_mutated_message_is_refused_or_is_another_message(message: object, data: st.DataObject) -> None:
    bytes_ = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        bytes_[data.draw(st.integers(0, len(bytes_) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        decode(bytes(bytes_))


@pytest.mark.parametrize(
    "lie",
    [
        b"\xdd\xff\xff\xff\xff",  # an array of four thousand million
        b"\xc6\xff\xff\xff\xff",  # bytes, as many
        b"\x92\x07\xdf\xff\xff\xff\xff",  # a map, inside a message
        b"\x92" * 200_000,  # arrays in arrays, two hundred thousand deep
    ],
)
def test_a_few_bytes_cannot_claim_gigabytes(lie: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(ProtocolError):
        decode(lie)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20


def test_wrong_tags_counts_and_types_are_refused_with_words() -> None:
    with pytest.raises(ProtocolError, match="not a message"):
        decode(msgpack.packb((99,)))
    with pytest.raises(ProtocolError, match="Completed has 2 fields, the message has 1"):
        decode(msgpack.packb((m.TAGS[m.Completed], 1)))
    with pytest.raises(ProtocolError, match=r"Completed\.through cannot be a str"):
        decode(msgpack.packb((m.TAGS[m.Completed], 1, "x")))


def test_large_honest_messages_pass() -> None:
    instructions = tuple((128, n, 3, n - 1, n - 2) for n in range(200_000))
    batch = m.Batch(1, (), instructions)
    assert decode(encode(batch)) == batch
    value = m.Value(0, 1, bytes(150 << 20), None)
    assert len(decode(encode(value)).place) == 150 << 20


def test_a_message_over_the_limit_is_refused_before_it_is_looked_at() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return LARGEST_MESSAGE + 1

    with pytest.raises(ProtocolError, match="over the limit"):
        decode(Huge())


def test_a_packer_packs_a_batch_as_encode_does() -> None:
    batch = m.Batch(7, ((1, (2, 3), "<f8", (24, 8)),), ((128, 9, 1, 8, 2.5),))
    assert packer()((m.TAGS[m.Batch], *batch)) == encode(batch)
