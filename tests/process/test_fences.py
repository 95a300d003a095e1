"""What `synchronize` promises: all that was issued has finished, what was parked at a worker included."""

from __future__ import annotations

import pytest

import interlock as il


@pytest.mark.parametrize("consumer", ["cpu:0", "sim:0"])
def test_the_end_of_a_trace_waits_for_what_is_parked_at_the_workers(consumer: str) -> None:
    with il.connect(devices=[consumer, "cpu:1"]) as session:
        here, there = session.devices
        x = il.ones((600, 600), device=there)
        with il.trace(session=session) as trace:
            y = x @ x
            for device in (here, there) * 4:  # each of the two is parked until the other is done
                y = y.to(device)
                y = y @ y
        ran = {(r.lane, r.n) for r in trace.records.ran}
        matmuls = {(i.lane, i.n) for i in trace.records.issued() if i.name == "matmul"}
        assert len(matmuls) == 9
        assert matmuls <= ran
