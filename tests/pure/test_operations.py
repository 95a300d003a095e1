"""The table of operations: numbers that stay, a digest that tells two tables apart, a test for every row."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from interlock.protocol import operations
from interlock.protocol.operations import BY_NAME, BY_NUMBER, FIRST, OPERATIONS, Operation, table_hash

from .numpy_calls import calls


def test_numbers_and_names_are_unique_and_leave_room_for_control() -> None:
    assert [row.number for row in OPERATIONS] == list(range(FIRST, FIRST + len(OPERATIONS)))
    assert len(BY_NAME) == len(BY_NUMBER) == len(OPERATIONS)


def test_rows_are_only_ever_appended() -> None:
    published = repr([tuple(row) for row in OPERATIONS[:132]])
    assert hashlib.sha256(published.encode()).hexdigest()[:16] == "753b41dc6bc05904"


def test_the_digest_changes_with_any_change_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    before = table_hash()
    for place in range(0, len(OPERATIONS), 40):
        for field, value in (("name", "other"), ("inputs", 7), ("static", ("word",)), ("number", 9), ("writes", (5,))):
            values = dict(OPERATIONS[place]._asdict(), **{field: value})
            changed = (*OPERATIONS[:place], Operation(**values), *OPERATIONS[place + 1 :])
            monkeypatch.setattr(operations, "OPERATIONS", changed)
            assert table_hash() != before
        changed = (*OPERATIONS[:place], *OPERATIONS[place + 1 :])
        monkeypatch.setattr(operations, "OPERATIONS", changed)
        assert table_hash() != before


@pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.name)
def test_every_row_has_random_calls_to_be_tested_with(row: Operation) -> None:
    calls(row)


def test_written_operands_are_operands() -> None:
    for row in OPERATIONS:
        assert all(place < row.inputs or row.inputs == -1 for place in row.writes)
        assert row.outputs or row.writes


def test_the_table_has_every_numeric_ufunc_of_numpy() -> None:
    ufuncs = {each.__name__ for each in vars(np).values() if isinstance(each, np.ufunc)}
    left_out = {"isnat", "vecdot", "matvec", "vecmat"}  # dates; later NumPy's, with shapes that matmul gives, too
    assert ufuncs - left_out <= {row.name for row in OPERATIONS if row.kind == "ufunc"}
