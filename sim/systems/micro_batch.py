"""What systems share in writing a step: lanes, micro-batches, a shared optimizer, modules in forward.

A workload has forward's time as one number. It is shared out over modules as backward's is over their
gradients, and modules are run in the order in which backward comes to them, from its end to its beginning.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sim.clock.program import LaneItem, Launch, Program, Work, works
from sim.errors import InputError, NotModelledError
from sim.nouns.collective import Collective
from sim.nouns.timeline import SpanKind
from sim.nouns.workload import Gradient, Workload
from sim.units import divide_half_even, format_ms

_SHARED_OUT = (
    "how long forward takes (forward_ns) is one number: it is shared out over modules as backward's time is "
    "over their gradients, and what gathers hide behind forward follows from that"
)


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


def check_backward(workload: Workload) -> None:
    """Raise ``InputError`` where no gradient ever becomes ready."""
    if all(gradient.ready_ns is None for gradient in workload.gradients):
        raise InputError(f"workload {workload.name!r}: no gradient ever becomes ready; there is no backward")


def check_wire_bytes(gradient: Gradient, label: str, system: str, decides: str) -> None:
    """Raise ``NotModelledError`` if ``gradient`` has its own ``wire_bytes``: the setting ``decides`` them."""
    if gradient.on_wire != gradient.num_bytes:
        raise NotModelledError(
            f"{label} has wire_bytes {gradient.on_wire}; what {system} sends follows from num_bytes "
            f"and {decides}"
        )


def write_micro_batches(count: int, write: Callable[[int], Program]) -> tuple[Program, ...]:
    """The programs of ``count`` micro-batches; those between the first and the last are alike."""
    before = [write(number) for number in range(min(count - 1, 2))]
    return (*before, *before[1:] * (count - 3), write(count - 1))


def shared_optimizer_ns(workload: Workload, owned: int) -> int:
    """The optimizer's time on a rank that owns ``owned`` elements, padding included."""
    total = sum(gradient.elements for gradient in workload.gradients)
    return divide_half_even(workload.optimizer_ns * owned, total) if total else 0


def told_of_forward(gathers: Sequence[Collective], waited_ns: int) -> tuple[str, ...]:
    """What the reader of a report should know where forward gathers parameters, if that takes time."""
    if not any(one.service_ns for one in gathers):
        return ()
    waits = (
        f"forward waits {format_ms(waited_ns)} for gathers of parameters and their copies; exposed "
        f"communication counts backward only"
    )
    return waits, _SHARED_OUT


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardModule:
    """A module in forward: its own parameters' indices, and its time."""

    indices: tuple[int, ...]
    duration_ns: int


def forward_modules(workload: Workload) -> tuple[ForwardModule, ...]:
    """Modules that hold parameters themselves, in the order in which forward runs them.

    A parameter's module is its name up to the last dot. What has no dot belongs to the root, which comes
    first whenever its gradients are ready; gradients that stand for whole buckets are modules of their own.
    """
    members: dict[str, list[int]] = {}
    work: dict[str, int] = {}
    if not workload.is_of_whole_buckets and any("." not in g.name for g in workload.gradients):
        members[""] = []
    for index, duration_ns in reversed(works(workload)):
        name = workload.gradients[index].name
        module = name if workload.is_of_whole_buckets else name.rpartition(".")[0]
        members.setdefault(module, []).append(index)
        work[module] = work.get(module, 0) + duration_ns
    total, done, modules = sum(work.values()), 0, []
    for module, indices in members.items():
        before = divide_half_even(workload.forward_ns * done, total) if total else 0
        done += work.get(module, 0)
        after = divide_half_even(workload.forward_ns * done, total) if total else 0
        modules.append(ForwardModule(indices=tuple(sorted(indices)), duration_ns=after - before))
    return tuple(modules)
