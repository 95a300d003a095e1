"""What is said where there was no memory."""

from __future__ import annotations

from interlock.protocol.shortage import LARGEST, OWN, Owner, Shortage, amount, largest, tell


def shortage(owners: list[Owner]) -> Shortage:
    chosen, others = largest(owners)
    return Shortage("cpu:0", 8_000_000, "float64[1000,1000]", 64 << 20, 61 << 20, "", chosen, others)


def test_those_of_one_line_and_kind_are_named_together_the_largest_sum_first() -> None:
    big = Owner(1, OWN, 32 << 20, "float64[2000,2000]")
    many = [Owner(10 + i, OWN, 1 << 20, "f4[262144]") for i in range(36)]
    text = tell(shortage([*many, big]), "x.py:12", lambda owner: f" made at x.py:{1 if owner.buffer < 10 else 2}")
    assert text == (
        "cpu:0 has no room for 7.6 MiB (float64[1000,1000]) issued at x.py:12: limit 64.0 MiB, 61.0 MiB in use by this "
        "session; largest: 36.0 MiB in 36 f4[262144] made at x.py:2; 32.0 MiB float64[2000,2000] made at x.py:1. "
        "Drop arrays, or connect(memory=...) with more"
    )


def test_of_very_many_the_largest_are_told_and_the_others_counted() -> None:
    owners = [Owner(i, OWN, 1000 + i, f"f8[{i}]") for i in range(LARGEST + 60)]
    text = tell(shortage(owners))
    assert f"{1000 + LARGEST + 59} bytes f8[{LARGEST + 59}]" in text or "1.1 KiB f8" in text
    assert f"; {LARGEST + 60 - 5} more" in text


def test_the_systems_own_words_are_told_and_more_memory_is_not_advised() -> None:
    text = tell(Shortage("cpu:0", 0, "", 1 << 30, 5, "the system refused 8.0 MiB", small=3, small_bytes=900))
    assert text == (
        "cpu:0 has no room for what it needs on the way: the system refused 8.0 MiB; limit 1.0 GiB, 5 bytes in use by "
        "this session; largest: 3 small arrays of 900 bytes together. Drop arrays"
    )


def test_amounts() -> None:
    assert [amount(n) for n in (0, 1023, 1 << 10, 1_500_000, 3 << 30)] == [
        "0 bytes", "1023 bytes", "1.0 KiB", "1.4 MiB", "3.0 GiB"
    ]  # fmt: skip
