"""What systems share in writing a step: its lane, micro-batches, a shared optimizer, modules in forward.

A workload has forward's time as one number. It is shared out over modules as backward's is over their
gradients, and modules are run in the order in which backward comes to them, from its end to its beginning.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Generic, TypeVar

from sim.clock import program as lane
from sim.clock.program import FORWARD, Item, Machine, Program, machine_of
from sim.costs.doubts import missing_curve
from sim.costs.service_time import collective_ns
from sim.errors import InputError, NotModelledError
from sim.nouns.collective import Collective, CollectiveKind, Phase
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import Iteration
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.units import divide_half_even, transfer_ns


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a system does with a workload: its settings read, its buckets cut; ``buckets`` as it numbers them.

    ``system`` is its name; ``reduces_each`` whether each micro-batch sends gradients, not the last alone;
    ``why`` what to say where an assignment has other buckets, with the rule that makes these. ``writer``
    writes a micro-batch.
    """

    writer: ClassVar[type["StepWriter[Any]"]]
    system: str
    workload: Workload
    buckets: tuple[tuple[int, ...], ...]
    micro_batches: int = 1
    reduces_each: bool = False
    why: str = ""

    def write(self, hardware: Hardware, iteration: Iteration) -> tuple[Program, ...]:
        """The programs of a step, one a micro-batch; those between the first and the last are alike.

        Raises:
            InputError: a step that is too long to be played.
            NotModelledError: an iteration that is not modelled, or a curve that the hardware does not have.
        """
        last = self.micro_batches - 1
        numbers = sorted({0, min(1, last), last})
        written = [self.writer(self, hardware, iteration, number).write() for number in numbers]
        for program in written:
            program.check_length(hardware.name)
        return (*written[:-1], *written[1:-1] * (last - 2), written[-1])

    def construct(self) -> tuple[Collective, ...]:
        """What the system sends before the first step."""
        return ()

    def buffer_bytes(self) -> int:
        """The most that buckets hold on one rank beside the gradients themselves, in bytes.

        Not counted: what the communication library takes for itself, and partitions that a system keeps
        whatever its buckets are.
        """
        raise NotImplementedError

    def lines(self) -> str:
        """What to paste where the job is started; of systems that have such lines."""
        raise NotImplementedError


P = TypeVar("P", bound=Plan)


class StepWriter(Generic[P]):
    """The lane of micro-batch ``number`` (from 0), as a system writes it, and what it sends.

    ``carriers``: of each bucket the collectives that carry it, once they are sent; none where nothing is
    reduced.
    """

    def __init__(self, plan: P, hardware: Hardware, iteration: Iteration, number: int) -> None:
        self.plan, self.workload, self.hardware = plan, plan.workload, hardware
        self.iteration, self.number = iteration, number
        self.is_last = number == plan.micro_batches - 1
        self.reduces = self.is_last or plan.reduces_each
        self.lane: list[Item] = []
        self.collectives: list[Collective] = []
        self.carriers: list[tuple[int, ...]] = [() for _ in plan.buckets if self.reduces]
        self.notes: list[str] = []
        self.under_way: int | None = None  # a collective that the lane has yet to wait for
        self.gathers: dict[Hashable, int] = {}  # of what is gathered before it is used: its collective
        self.used: set[Hashable] = set()
        self._uncounted: Counter[tuple[str, str]] = Counter()
        included = "copy_in" in self.workload.ready_includes
        self.copy_in_rate = None if included else hardware.copy_in_bytes_per_s
        self.copy_out_rate = hardware.copy_out_bytes_per_s
        self.hook_ns = 0 if included else hardware.hook_cost_ns

    def write(self) -> Program:
        """The whole of it."""
        raise NotImplementedError

    def compute(
        self, kind: int, duration_ns: int, *, gradient: int | None = None, bucket: int | None = None
    ) -> None:
        """The lane is busy for ``duration_ns``; for 0 nothing is written."""
        if duration_ns:
            self.lane.append(Item(kind, duration_ns, -1, gradient, bucket))

    def forward_by_module(self, come_to: Callable[[tuple[int, ...]], None]) -> None:
        """Forward module by module; ``come_to`` writes what precedes the module of these parameters."""
        for indices, duration_ns in forward_modules(self.workload):
            come_to(indices)
            self.compute(FORWARD, duration_ns)

    def gathered(self, what: Any, phase: Phase, **more: Any) -> Collective:
        """The all-gather of ``what``, parameters that a system gathers together."""
        raise NotImplementedError

    def gather(self, what: Hashable, phase: Phase, **more: Any) -> bool:
        """The lane launches the gather of ``what``, unless it did before; whether it does now."""
        if is_first := what not in self.gathers:
            self.gathers[what] = self.send(self.gathered(what, phase, **more))
        return is_first

    def is_first_use(self, what: Hashable) -> bool:
        """Whether ``what`` was not used before; then the lane waits for its gather, if there is any."""
        if is_first := what not in self.used:
            self.used.add(what)
            if what in self.gathers:
                self.wait(self.gathers[what])
        return is_first

    def forward(self) -> None:
        """What of forward and the loss is left to be done; backward begins after it."""
        done = sum(item.duration_ns for item in self.lane if item.kind == FORWARD)
        self.compute(FORWARD, self.workload.forward_ns + self.workload.loss_ns - done)
        self.lane.append(Item(lane.BACKWARD_BEGIN))

    def backward(self, added_ns: Callable[[int], int] = lambda index: 0) -> Iterator[int]:
        """Backward's own work: each gradient, once what it takes is written, then the tail and the end.

        ``added_ns``: of a gradient, what AccumulateGrad adds.
        """
        tail_ns = self.workload.backward_ns
        for index, work_ns in works(self.workload):
            self.compute(lane.BACKWARD, work_ns + added_ns(index), gradient=index)
            yield index
            tail_ns -= work_ns
        self.compute(lane.BACKWARD, tail_ns)
        self.lane.append(Item(lane.BACKWARD_END))

    def addition_ns(self, index: int) -> int:
        """What AccumulateGrad takes to add one gradient to that of the micro-batches before; the first
        micro-batch has nothing to add to (A3.12)."""
        size = self.workload.gradients[index].num_bytes * bool(self.number)
        return transfer_ns(size, self.hardware.accumulate_bytes_per_s)

    def ready(self, bucket: int) -> None:
        """From here on the bucket is complete: nothing that it holds is missing."""
        self.lane.append(Item(lane.READY, bucket=bucket))

    def collective(
        self,
        kind: CollectiveKind,
        elements: int,
        dtype: str,
        phase: Phase,
        *,
        num_bytes: int | None = None,
        is_counted: bool = True,
        **more: Any,
    ) -> Collective:
        """A collective with its time; ``num_bytes`` where they are not those of its elements.

        ``is_counted``: its time is needed; else one without a curve takes 0, which a note tells.

        Raises:
            NotModelledError: the hardware has no curve of its kind.
        """
        size = elements * DTYPE_BYTES[dtype] if num_bytes is None else num_bytes
        duration_ns = collective_ns(self.hardware, kind, size)
        if duration_ns is None and is_counted:
            raise NotModelledError(f"{self.plan.system}: {missing_curve(self.hardware, kind)}")
        more |= {"num_bytes": size, "service_ns": duration_ns or 0}
        made = message(kind, elements, dtype, phase, **more)
        self._uncounted[kind, made.purpose] += duration_ns is None
        return made

    def send(self, collective: Collective) -> int:
        """The lane launches ``collective`` here, unless it follows another; its number is returned."""
        number = len(self.collectives)
        self.collectives.append(collective)
        if collective.after is None:
            self.lane.append(Item(lane.LAUNCH, collective=number))
        if collective.bucket is not None:
            self.carriers[collective.bucket] += (number,)
        return number

    def wait(self, number: int) -> None:
        """The lane stands still until the collective's result can be used."""
        self.lane.append(Item(lane.WAIT, collective=number))

    def catch_up(self) -> None:
        """The lane waits for what is under way, if anything is."""
        if self.under_way is not None:
            self.wait(self.under_way)
            self.under_way = None

    def block(self, collective: Collective) -> None:
        """The lane sends ``collective`` and stands still until its result can be used."""
        self.wait(self.send(collective))

    def copy_back(self, bucket: int, duration_ns: int = 0) -> None:
        """The lane copies a bucket's result back to its gradients, which are available then."""
        self.lane.append(Item(lane.COPY_BACK, duration_ns, bucket=bucket))

    def collect(self, bucket: int, duration_ns: int = 0) -> None:
        """The lane waits for the last that carries the bucket, if anything does, and copies it back."""
        for number in self.carriers[bucket][-1:]:
            self.wait(number)
        self.copy_back(bucket, duration_ns)

    def synchronised(self, optimizer_ns: int = 0) -> None:
        """From here on gradients are synchronised; in the last micro-batch the optimizer works on them."""
        self.lane.append(Item(lane.SYNC_END))
        self.compute(lane.OPTIMIZER, optimizer_ns * self.is_last)

    def program(self, around_for: str = "parameters", machine: Machine | None = None, **more: Any) -> Program:
        """What was written, and what is to be said of it; ``more`` are fields of ``Program``."""
        self.compute(lane.REST, self.workload.rest_ns * self.is_last)
        lacks = f"are not counted: hardware {self.hardware.name!r} has no"
        counted = ((*key, count) for key, count in self._uncounted.items() if count)
        uncounted = [
            f"{count} {kind.replace('_', '-')}(s) of {purpose} {lacks} {kind} curve"
            for kind, purpose, count in counted
        ]
        return Program(
            lane=tuple(self.lane),
            collectives=tuple(self.collectives),
            carriers=tuple(self.carriers),
            machine=machine or machine_of(self.workload, self.hardware),
            around_for=around_for,
            notes=(*uncounted, *self.notes),
            **more,
        )


def message(kind: CollectiveKind, elements: int, dtype: str, phase: Phase, **more: Any) -> Collective:
    """A collective; of what is not given, its bytes are those of its elements, and it takes no time."""
    told = {"num_bytes": elements * DTYPE_BYTES[dtype], "service_ns": 0} | more
    return Collective(kind=kind, elements=elements, dtype=dtype, phase=phase, **told)


def completed_by(buckets: Iterable[Iterable[int]], order: Iterable[int]) -> dict[int, int]:
    """By gradient, the bucket that it completes where gradients come in this ``order``: its last one.

    Those that never come are not waited for.
    """
    home = {index: number for number, bucket in enumerate(buckets) for index in bucket}
    last = {home[index]: index for index in order if index in home}
    return {index: bucket for bucket, index in last.items()}


def works(workload: Workload) -> list[tuple[int, int]]:
    """Backward cut at its gradients: (gradient, its own work in ns), in ready order; the tail is left out."""
    cut, before = [], 0
    for index in workload.order():
        ready = workload.gradients[index].ready_ns
        assert ready is not None
        cut.append((index, ready - before))
        before = ready
    return cut


def check_backward(workload: Workload) -> None:
    """Raise ``InputError`` where no gradient ever becomes ready."""
    if all(gradient.ready_ns is None for gradient in workload.gradients):
        raise InputError(f"workload {workload.name!r}: no gradient ever becomes ready; there is no backward")


def check_gradients(workload: Workload, whose: str, decides: str, twice: str) -> None:
    """Raise unless each gradient is dense, ready once in a backward, as wide on the wire as in memory, and
    all are on one device.

    Args:
        whose: the system that takes no others.
        decides: the setting that decides what travels in place of ``wire_bytes``.
        twice: why none may be ready twice.

    Raises:
        NotModelledError: a gradient that is not so. InputError: none ever becomes ready.
    """
    device = workload.gradients[0].device
    for one in workload.gradients:
        elsewhere = f"is on {one.device or 'no device'}, others on {device or 'no device'}"
        for is_so, why in (
            (one.sparse, f"is sparse; {whose} takes dense gradients"),
            (one.uses > 1, f"becomes ready {one.uses} times in one backward; {twice}"),
            (one.num_bytes % DTYPE_BYTES[one.dtype], f"has {one.num_bytes} bytes, no whole {one.dtype}s"),
            (
                one.on_wire != one.num_bytes,
                f"has wire_bytes {one.on_wire}; what {whose} sends follows from num_bytes and {decides}",
            ),
            (one.device != device, f"{elsewhere}; those of {whose} are all on one device"),
        ):
            if is_so:
                raise NotModelledError(f"{workload.label(one)} {why}")
    check_backward(workload)


def shared_optimizer_ns(workload: Workload, owned: int) -> int:
    """The optimizer's time on a rank that owns ``owned`` elements, padding included."""
    total = sum(gradient.elements for gradient in workload.gradients)
    return divide_half_even(workload.optimizer_ns * owned, total) if total else 0


def forward_modules(workload: Workload) -> list[tuple[tuple[int, ...], int]]:
    """Modules that hold parameters themselves, in the order in which forward runs them: their own
    parameters' indices, and their time in ns.

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
    total, done, ends = sum(work.values()), 0, [0]
    for module in members:
        done += work.get(module, 0)
        ends.append(divide_half_even(workload.forward_ns * done, total) if total else 0)
    return [
        (tuple(sorted(indices)), after - before)
        for indices, (before, after) in zip(members.values(), pairwise(ends), strict=True)
    ]
