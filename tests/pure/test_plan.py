"""The plan of temporaries: what lives at the same moment never overlaps, and the block is no larger than it must be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from interlock.coordinator.plan import ALIGNMENT, Temporary, plan


def padded(nbytes: int) -> int:
    return max(-(-nbytes // ALIGNMENT) * ALIGNMENT, ALIGNMENT)


@st.composite
def lifetimes(draw: st.DrawFn) -> list[Temporary]:
    """Temporaries in the order in which they are made; some may take the place of one that ends as they begin."""
    made: list[Temporary] = []
    taken: set[int] = set()
    at = 0
    for slot in range(1, draw(st.integers(1, 14)) + 1):
        at += draw(st.integers(0, 2))  # 0: an instruction that makes several
        ending = [each for each in made if each.last == at and each.slot not in taken and each.first < at]
        instead = draw(st.sampled_from([0, *[each.slot for each in ending]]))
        nbytes = draw(st.integers(0, 400))
        if instead and draw(st.booleans()):
            nbytes = next(each.nbytes for each in made if each.slot == instead)
        taken.add(instead)
        made.append(Temporary(slot, nbytes, at, at + draw(st.integers(0, 5)), instead))
    return made


@given(lifetimes())
def test_what_lives_at_the_same_moment_never_overlaps(temporaries: list[Temporary]) -> None:
    offsets, _ = plan(temporaries)
    for one in temporaries:
        for other in temporaries:
            together = one.slot != other.slot and one.first <= other.last and other.first <= one.last
            instead = one.slot == other.instead or other.slot == one.instead
            if together and not (instead and offsets[one.slot] == offsets[other.slot]):
                ends = [offsets[each.slot] + padded(each.nbytes) for each in (one, other)]
                assert ends[0] <= offsets[other.slot] or ends[1] <= offsets[one.slot], (one, other, offsets)


@given(lifetimes())
def test_one_lies_where_another_still_lives_only_if_it_may_take_its_place(temporaries: list[Temporary]) -> None:
    offsets, _ = plan(temporaries)
    named = {each.slot: each for each in temporaries}
    for each in temporaries:
        ended = [o for o in temporaries if o.slot != each.slot and o.last == each.first and o.first < each.first]
        for other in ended:
            if offsets[each.slot] == offsets[other.slot]:
                assert each.instead == other.slot
                assert padded(each.nbytes) == padded(named[each.instead].nbytes)


@given(lifetimes())
def test_the_block_is_between_the_most_that_lives_at_once_and_the_sum(temporaries: list[Temporary]) -> None:
    offsets, end = plan(temporaries)
    assert set(offsets) == {each.slot for each in temporaries}
    assert all(offset % ALIGNMENT == 0 for offset in offsets.values())
    assert end == max(offsets[each.slot] + padded(each.nbytes) for each in temporaries)
    assert end <= sum(padded(each.nbytes) for each in temporaries)
    places = {each.slot: (offsets[each.slot], padded(each.nbytes)) for each in temporaries}
    for at in {each.first for each in temporaries}:
        living = {places[each.slot] for each in temporaries if each.first <= at <= each.last}  # shared ones once
        assert sum(size for _, size in living) <= end


@given(st.integers(2, 60), st.integers(1, 1000))
def test_a_chain_takes_two_places_and_one_where_results_may_replace_operands(length: int, nbytes: int) -> None:
    chain = [Temporary(slot, nbytes, slot, slot + 1) for slot in range(1, length + 1)]
    assert plan(chain)[1] == 2 * padded(nbytes)
    replacing = [each._replace(instead=each.slot - 1) for each in chain]
    assert plan(replacing)[1] == padded(nbytes)


def test_the_smallest_free_stretch_that_fits_is_taken_and_neighbours_are_joined() -> None:
    first = [Temporary(1, 64, 0, 1), Temporary(2, 64, 0, 5), Temporary(3, 192, 0, 1), Temporary(4, 64, 0, 5)]
    offsets, _ = plan([*first, Temporary(5, 64, 2, 5), Temporary(6, 128, 3, 5)])
    assert offsets == {1: 0, 2: 64, 3: 128, 4: 320, 5: 0, 6: 128}
    offsets, end = plan([Temporary(1, 64, 0, 1), Temporary(2, 64, 0, 1), Temporary(3, 128, 2, 3)])
    assert (offsets[3], end) == (0, 128)
    offsets, end = plan([Temporary(1, 64, 0, 1), Temporary(2, 640, 2, 3)])
    assert (offsets[2], end) == (0, 640)


def test_nothing_takes_nothing() -> None:
    assert plan([]) == ({}, 0)
