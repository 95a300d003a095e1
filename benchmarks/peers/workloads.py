"""What is measured on every peer, in what unit, and how often at most in one round.

Knows no peer. Figures come in seconds per unit of work; here they get the unit that the table shows.
"""

from __future__ import annotations

from typing import Final, NamedTuple

NUMBERS: Final = 100  # float64 in a small array
MIB64: Final = 64 * 2**20
BATCHES: Final = (64, 512, 4096)


class Workload(NamedTuple):
    """One column of the table."""

    name: str
    head: str
    unit: str
    most: int  # times in one round

    def shown(self, seconds: float) -> float:
        """Seconds per unit of work, in this workload's unit."""
        match self.unit:
            case "us":
                return seconds * 1e6
            case "ms":
                return seconds * 1e3
            case "k/s":
                return 1e-3 / seconds
            case "GB/s":
                return MIB64 / seconds / 1e9
        raise ValueError(f"no such unit: {self.unit}")


WORKLOADS: Final = (
    Workload("issue", "issue a small op, µs", "us", 1_000),
    Workload("done", "until done, per op, µs", "us", 1_000),
    Workload("throughput", "small ops, k/s", "k/s", 20_000),
    Workload("read", "op and read its result, µs", "us", 2_000),
    Workload("move", "64 MiB to another worker, GB/s", "GB/s", 20),
    Workload("share", "64 MiB read there in place, µs", "us", 100),
    *(Workload(f"mlp{batch}", f"MLP step, batch {batch}, ms", "ms", 200) for batch in BATCHES),
)
EXPLAINED: Final = """\
- *issue*: `x + y` on 100 float64, until the call returns; *until done*: a thousand of them, then wait; *small ops*:
  many, then wait, all on one worker; *op and read*: one, until its result is a NumPy array in the program.
- *64 MiB to another worker*: an array that one worker has, until the other has it as its own; NumPy's is one warm
  memcpy. *In place*: until the other worker has read from it, where memory is shared.
- *MLP step*: 784-256-10, float32, ReLU, softmax cross-entropy, SGD with momentum; each of two workers takes half of
  the batch, which lies there already; NumPy takes all of it. In brackets: how many times as fast as that, in turn.
- One BLAS thread in each process; PyTorch's small operations run in the program itself, JAX's devices are threads.
"""
