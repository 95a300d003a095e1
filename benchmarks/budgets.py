"""What Interlock promises to cost, as figures and as ratios to a floor that is measured in the same run.

Which benchmark measures each is said here too, and for those that none measures, why. How they are measured is not.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Budget(NamedTuple):
    """A bound on a figure, or on its ratio to the floor (unit "x")."""

    what: str
    limit: float
    unit: str
    least: bool = False  # a bound from below: more is better
    benchmark: str = ""  # which measures it; "" for none
    why: str = ""  # none does

    def __str__(self) -> str:
        return f"{'>=' if self.least else '<='} {self.limit:g} {self.unit}"

    def met(self, value: float) -> bool:
        return value >= self.limit if self.least else value <= self.limit


NO_GPU: Final = "this version drives no GPU"

ISSUE: Final = Budget("issue one small operation: the frontend's processor time", 3, "us", benchmark="issue")
TOY: Final = Budget("z = x*y + 2 until all is done", 6, "x", benchmark="toy")
READ: Final = Budget("read a small result, idle", 3, "x", benchmark="read")
TRANSFER: Final = Budget("64 MiB between CPU workers, one copy", 0.8, "x", True, "transfer")
IN_PLACE: Final = Budget("64 MiB between CPU workers in place: memory taken", 0.1, "MiB", benchmark="transfer")
MATMUL: Final = Budget("equal matrix products on two workers at once", 1.9, "x", True, "matmul")
MLP: Final = {
    64: Budget("a step of the MLP, captured, batch 64", 1.0, "x", True, "mlp"),
    512: Budget("a step of the MLP, captured, batch 512", 1.5, "x", True, "mlp"),
    4096: Budget("a step of the MLP, captured, batch 4096", 1.85, "x", True, "mlp"),
}
LIVE: Final = Budget("issue with a million live arrays", 1.5, "x", benchmark="live")  # flat, but for noise
LIVE_DONE: Final = Budget("until all is done with a million live arrays", 1.5, "x", benchmark="live")
FRONTEND_MEMORY: Final = Budget("a million operations: growth of the frontend", 32, "MiB", benchmark="million")
WORKER_MEMORY: Final = Budget("a million operations: growth of the worker", 32, "MiB", benchmark="million")
IMPORT: Final = Budget("import interlock and what a first program needs", 60, "ms", benchmark="import")
START: Final = Budget("start three CPU workers", 0.6, "s", benchmark="start")
IDLE: Final = Budget("idle after work: frontend and three workers, of a core", 1, "%", benchmark="idle")  # none spins
REPLAY: Final = Budget("a replayed operation above NumPy with out=", 0.5, "us", benchmark="replay")
REPLAY_STEP: Final = Budget("a replayed step, for each worker", 100, "us", benchmark="replay")
GPU_OVERLAP: Final = Budget("products on a GPU with their copies to the CPU at once", 1.15, "x", why=NO_GPU)

BUDGETS: Final = (
    ISSUE, TOY, READ, TRANSFER, IN_PLACE, MATMUL, *MLP.values(), LIVE, LIVE_DONE, FRONTEND_MEMORY, WORKER_MEMORY,
    IMPORT, START, IDLE, REPLAY, REPLAY_STEP, GPU_OVERLAP,
)  # fmt: skip
