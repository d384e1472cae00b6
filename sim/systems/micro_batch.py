"""What systems share in writing a step: lanes, programs of micro-batches, the time of a shared optimizer."""

from collections.abc import Callable

from sim.clock.program import LaneItem, Launch, Program, Work
from sim.nouns.collective import Collective
from sim.nouns.timeline import SpanKind
from sim.nouns.workload import Workload
from sim.units import divide_half_even


class LaneWriter:
    """The compute lane of one micro-batch, as a system writes it, and the collectives that it launches."""

    def __init__(self) -> None:
        self.lane: list[LaneItem] = []
        self.collectives: list[Collective] = []

    def work(
        self, kind: SpanKind, duration_ns: int, *, gradient: int | None = None, bucket: int | None = None
    ) -> None:
        """The lane is busy for ``duration_ns``; for 0 nothing is written."""
        if duration_ns:
            self.lane.append(Work(kind, duration_ns, gradient, bucket))

    def launch(self, collective: Collective) -> int:
        """The lane launches ``collective`` here; its number is returned."""
        number = len(self.collectives)
        self.collectives.append(collective)
        self.lane.append(Launch(number))
        return number


def micro_batches(count: int, write: Callable[[int], Program]) -> tuple[Program, ...]:
    """The programs of ``count`` micro-batches; those between the first and the last are alike."""
    before = [write(number) for number in range(min(count - 1, 2))]
    return (*before, *before[1:] * (count - 3), write(count - 1))


def shared_optimizer_ns(workload: Workload, owned: int) -> int:
    """The optimizer's time on a rank that owns ``owned`` elements, padding included."""
    total = sum(gradient.elements for gradient in workload.gradients)
    return divide_half_even(workload.optimizer_ns * owned, total) if total else 0
