"""One rank's training steps out of its trace: where backward begins and ends, and when gradients are ready.

The compute lane is the stream that runs most of backward's kernels. It has a gradient when it has finished
all that autograd's thread launched up to the gradient's AccumulateGrad and its copy into a bucket: a device
time, which may be far behind the CPU's. Without a GPU the lane is autograd's thread itself.
"""

import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from sim.errors import InputError, NotModelledError
from sim.importer.kineto.backwards import (
    AutogradThread,
    Backward,
    Window,
    between,
    find_accumulations,
    find_windows,
    is_node,
    launched_spans,
    make_lane,
    of_one_model,
)
from sim.importer.kineto.collectives import Role, SeenCollective, shape_of
from sim.importer.kineto.events import Operator, TraceEvents, is_computation, torch_dtype
from sim.metrics.intervals import union


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenGradient:
    """One gradient in hook order: when the compute lane had it, and its copy in a bucket.

    ``hooked_at_ns`` is when AccumulateGrad ended on the CPU; ``shape`` and ``dtype`` are None where the trace
    has none; ``reduced`` says whether DDP copied it, None where that cannot be seen.
    """

    ready_ns: int
    hooked_at_ns: int
    shape: tuple[int, ...] | None
    dtype: str | None
    reduced: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenStep:
    """One training step on the device.

    ``backward_end_ns`` is the end of the compute lane's backward, DDP's copies into buckets in it;
    ``sync_end_ns`` the end of the last copy out of a bucket, or of the last collective. ``copy_out_ns`` is
    the part of it that copies out take, with waits for the CPU to launch them, without waits for collectives.
    ``synchronised_batches`` of the ``micro_batches`` were reduced; ``other_backwards`` of them are of
    another model than the last, or lie before an optimizer's step. ``busy_ns`` is how long the lane worked in
    the last backward, ``plain_busy_ns`` in each backward before it, if only the last one was reduced.
    """

    number: int
    start_ns: int
    end_ns: int
    backward_start_ns: int
    backward_end_ns: int
    sync_end_ns: int
    copy_in_ns: int
    copy_out_ns: int
    micro_batches: int
    gradients: tuple[SeenGradient, ...]
    collectives: tuple[SeenCollective, ...]
    synchronised_batches: int = 0
    other_backwards: int = 0
    busy_ns: int = 0
    plain_busy_ns: tuple[int, ...] = ()

    @property
    def reductions(self) -> tuple[SeenCollective, ...]:
        """The all-reduces of the last backward's gradients, in launch order."""
        return tuple(one for one in self.collectives if one.role == "gradients")


_ALWAYS = 1 << 62


def find_steps(trace: TraceEvents, collectives: Sequence[tuple[SeenCollective, str]]) -> tuple[SeenStep, ...]:
    """The steps of a trace, whole ones only, in order; ``collectives`` are those of ``find_collectives``.

    Raises:
        NotModelledError: no backward in it: inference, or a forward alone.
        InputError: no operators, or nothing that tells where a step begins and ends.
    """
    if trace.began_ns is None:
        raise InputError(
            f"{trace.source}: no CPU operators in it, which tell backward from forward; profile with "
            f"ProfilerActivity.CPU as well"
        )
    accumulated = find_accumulations(trace)
    if not accumulated:
        if nodes := sum(is_node(one) for one in trace.operators):
            raise NotModelledError(
                f"{trace.source}: backward accumulates no gradient (of {nodes} nodes of autograd in it none "
                f"is a torch::autograd::AccumulateGrad): nothing is trained by it, or the trace leaves it out"
            )
        raise NotModelledError(
            f"{trace.source}: no backward in it: an inference trace, or a forward alone; give one of training"
        )
    thread = Counter(one.thread for one in accumulated).most_common(1)[0][0]
    accumulated = [one for one in accumulated if one.thread == thread]
    cpu = AutogradThread(trace, thread, accumulated)
    reader = _Reader(trace, cpu, collectives)
    windows = find_windows(trace, accumulated, reader.count_backwards())
    whole: list[SeenStep] = []
    for window, following in zip(windows, [*windows[1:], None], strict=True):
        step = reader.read(window, following, whole[-1].sync_end_ns if whole else None)
        if step is not None:
            whole.append(step)
    if not whole:
        raise InputError(f"{trace.source}: no whole training step in it; profile at least one more")
    return tuple(whole)


class _Reader:
    """Reads step after step of one trace."""

    def __init__(
        self,
        trace: TraceEvents,
        cpu: AutogradThread,
        collectives: Sequence[tuple[SeenCollective, str]],
    ) -> None:
        self._trace = trace
        self._cpu = cpu
        self._collectives = collectives
        self._collectives_at = [one.launched_ns for one, _ in collectives]
        spans = launched_spans(trace)
        self._lane = lane = make_lane(spans, cpu.thread) if trace.gpu else None
        self._stream = None if lane is None else lane.stream
        self._device_at = sorted(
            (launch, span.start_ns, span.end_ns, span.stream) for launch, _, span in spans
        )
        self._stream_at = sorted(
            (one.start_ns, one.end_ns) for one in trace.gpu if one.stream == self._stream
        )
        ours = [(launch, by, span.name) for launch, by, span in spans if span.stream == self._stream]
        self._launches_at = [launch for launch, _, _ in ours]
        work = [launch for launch, by, name in ours if by != cpu.thread and is_computation(name)]
        self._forward_at = sorted([*cpu.forwards_at, *work])

    def count_backwards(self) -> int:
        """How many backwards the whole trace shows."""
        return len(self._cpu.backwards(Window(0, -_ALWAYS, _ALWAYS), self._forward_at))

    def read(self, window: Window, following: Window | None, synchronised_ns: int | None) -> SeenStep | None:
        """A step, or None where its forward or its backward is not in the trace, or not all of it.

        ``synchronised_ns`` is when the gradients of the step before were.
        """
        backwards = self._cpu.backwards(window, self._forward_at)
        if not backwards:
            return None
        backward = backwards[-1]
        if not self._has_forward(window, backwards[0].start_ns):
            self._trace.dropped["steps without their forward in the trace"] += 1
            return None
        edges = self._edges(backward)
        start_ns, end_ns = self._step_edges(window, following, synchronised_ns)
        if edges is None or start_ns is None:
            return None
        backward_start, backward_end = edges
        gradients = [
            tuple(self._gradient(each, backward_start) for each in one.accumulated) for one in backwards
        ]
        collectives = self._in_step(window, backwards, gradients, backward_start)
        backward_end = self._plain_end(backward, collectives, backward_end)
        copy_out, out_end = self._copy_out(backward, window, backward_end, collectives)
        sent = [one.end_ns for one in collectives if one.is_ddps]
        sync_end = max([backward_end, out_end, *sent])
        synchronised, others = count_backwards(backwards, collectives, self._cpu.optimizer_at)
        is_plain = synchronised == 1 and not others and any(one.role == "gradients" for one in collectives)
        return SeenStep(
            number=window.number,
            start_ns=min(start_ns, backward_start),
            end_ns=max(end_ns, sync_end),
            backward_start_ns=backward_start,
            backward_end_ns=backward_end,
            sync_end_ns=sync_end,
            copy_in_ns=self._copy_in(backward),
            copy_out_ns=copy_out,
            micro_batches=len(backwards),
            gradients=gradients[-1],
            collectives=tuple(collectives),
            synchronised_batches=synchronised,
            other_backwards=others,
            busy_ns=self._busy_ns(backward),
            plain_busy_ns=tuple(map(self._busy_ns, backwards[:-1])) if is_plain else (),
        )

    def _has_forward(self, window: Window, backward_ns: int) -> bool:
        """Whether what comes before a step's first backward is in the trace: work for the device, by another
        thread than autograd's where there is one; and, in a step that the trace's own beginning may cut, a
        forward of DDP's where others have it.
        """
        if (
            window.cut
            and self._cpu.forwards_at
            and not _any_between(self._cpu.forwards_at, window.start_ns, backward_ns)
        ):
            return False
        if self._lane is None:
            return window.start_ns < backward_ns
        return _any_between(self._forward_at or self._launches_at, window.start_ns, backward_ns)

    def _step_edges(
        self, window: Window, following: Window | None, synchronised_ns: int | None
    ) -> tuple[int | None, int]:
        """Where a step begins and ends on the device: with its first work after the step before was
        synchronised, and the next one's. On the CPU alone: as it is marked.
        """
        if self._lane is None:
            return window.start_ns, window.end_ns
        start = self._first_work(window)
        if start is not None and synchronised_ns is not None:
            start = max(start, synchronised_ns)
        end = self._first_work(following) if following is not None else None
        if end is None or start is None:
            end = max([window.end_ns, *(ended for _, _, ended, _ in self._launched_in(window))])
        return start, end

    def _first_work(self, window: Window) -> int | None:
        """When the device began a step; what other streams do while the lane's is still at the step before
        (copies of the next batch) is ahead of it.
        """
        launched = self._launched_in(window)
        ours = next((start for _, start, _, stream in launched if stream == self._stream), None)
        if ours is None:
            return None
        first = launched[0][1]
        place = bisect.bisect_left(self._stream_at, (ours,))
        return ours if place and self._stream_at[place - 1][1] > first else min(first, ours)

    def _launched_in(self, window: Window) -> Sequence[tuple[int, int, int, int]]:
        lo = bisect.bisect_left(self._device_at, (window.start_ns,))
        return self._device_at[lo : bisect.bisect_left(self._device_at, (window.end_ns,))]

    def _edges(self, backward: Backward) -> tuple[int, int] | None:
        """Start and end of backward on the lane."""
        if self._lane is None:
            return backward.start_ns, backward.end_ns
        work = self._lane.between(backward.start_ns, backward.end_ns)
        if not work:
            return None
        begin = self._lane.start_ns[work.start]
        return begin, max(self._lane.reached_ns[work.stop - 1], begin)

    def _busy_ns(self, backward: Backward) -> int:
        """How long the lane worked; that it waits for launches says nothing of the work."""
        if self._lane is None:
            return backward.end_ns - backward.start_ns
        work = self._lane.between(backward.start_ns, backward.end_ns)
        return sum(self._lane.end_ns[place] - self._lane.start_ns[place] for place in work)

    def _plain_end(self, backward: Backward, collectives: Sequence[SeenCollective], end: int) -> int:
        """The end of backward's own work on the lane.

        A compiled backward also waits for its all-reduces and accumulates what they bring: then it ends with
        what it did before them, or beside them.
        """
        sent = _sent_before_accumulating(backward, collectives)
        if not sent or self._lane is None:
            return end
        busy = union((one.start_ns, one.end_ns) for one in sent)
        plain = self._lane.reached(sent[0].launched_ns, end)
        for place in self._lane.between(sent[0].launched_ns, sent[-1].launched_ns):
            began, ended = self._lane.start_ns[place], self._lane.end_ns[place]
            beside = bisect.bisect_left(busy, (ended,))
            since, until = busy[beside - 1] if beside else (began, began)
            # Half of either beside the other: clocks of two streams may let them touch.
            if 2 * (min(ended, until) - max(began, since)) > min(ended - began, until - since):
                plain = max(plain, ended)
        return min(plain, end)

    def _copy_in(self, backward: Backward) -> int:
        """The copies into buckets: the lane's work in hooks, or DDP's own operators on the CPU."""
        if self._lane is None:
            copies = between(self._cpu.copies_in, backward.accumulated[0].start_ns, backward.end_ns)
            return sum(one.end_ns - one.start_ns for one in copies)
        return sum(
            self._lane.end_ns[place] - self._lane.start_ns[place]
            for one in backward.accumulated
            if (hook := self._cpu.hook(one)) is not None
            for place in self._lane.between(one.end_ns + 1, hook.end_ns)
        )

    def _copy_out(
        self, backward: Backward, window: Window, backward_end: int, collectives: Sequence[SeenCollective]
    ) -> tuple[int, int]:
        """What copies out of buckets add after backward, and their end; waits for collectives are not
        counted. Traces too old to name copies: all that the lane does before the optimizer; of a compiled
        backward: all that it does after its last all-reduce.
        """
        ends = sorted(one.end_ns for one in collectives if one.is_ddps)
        if not ends:
            return 0, backward_end
        until = self._cpu.until(backward.end_ns, window.end_ns)
        named = between(self._cpu.copies_out, backward.end_ns, until)
        if self._lane is None:
            spans = [(one.start_ns, one.end_ns) for one in named]
        else:
            sent = _sent_before_accumulating(backward, collectives)
            since = sent[-1].launched_ns if sent else backward.end_ns
            last = max((one.end_ns for one in named), default=backward.end_ns)
            work = self._lane.between(since + 1, last if self._cpu.names_copies or sent else until)
            spans = [(self._lane.start_ns[place], self._lane.end_ns[place]) for place in work]
        return _added_by_copies(spans, ends, backward_end)

    def _gradient(self, accumulated: Operator, begin: int) -> SeenGradient:
        dims, types = accumulated.arguments.get("dims"), accumulated.arguments.get("types")
        shape = shape_of(dims[0]) if isinstance(dims, list) and len(dims) == 1 else None
        word = types[0] if isinstance(types, list) and types else None
        hook = self._cpu.hook(accumulated)
        copies = between(self._cpu.copies_in, accumulated.end_ns, hook.end_ns) if hook is not None else ()
        ready = accumulated.end_ns
        if copies:
            ready = copies[-1].end_ns
        elif hook is not None and self._lane is not None:
            ready = hook.end_ns
        if self._lane is not None:
            ready = max(begin, self._lane.reached(ready, begin))
        return SeenGradient(
            ready_ns=ready,
            hooked_at_ns=accumulated.end_ns,
            shape=shape,
            dtype=torch_dtype(word),
            reduced=bool(copies) if self._cpu.copies_in and hook is not None else None,
        )

    def _in_step(
        self,
        window: Window,
        backwards: Sequence[Backward],
        gradients: Sequence[Sequence[SeenGradient]],
        begin: int,
    ) -> list[SeenCollective]:
        """The step's collectives with their roles; those of gradients as the lane came to them."""
        lo = bisect.bisect_left(self._collectives_at, window.start_ns)
        hi = bisect.bisect_left(self._collectives_at, window.end_ns)
        found = give_roles(self._collectives[lo:hi], gradients, backwards)
        return [self._reached(one, begin) if one.role == "gradients" else one for one in found]

    def _reached(self, one: SeenCollective, begin: int) -> SeenCollective:
        if self._lane is None:
            return replace(one, ready_ns=one.launched_ns)
        at = max(begin, self._lane.reached(one.launched_ns, begin))
        return replace(one, ready_ns=at) if one.timed else replace(one, ready_ns=at, start_ns=at, end_ns=at)


def _any_between(times_ns: Sequence[int], start_ns: int, end_ns: int) -> bool:
    """Whether one of sorted times lies in a span."""
    place = bisect.bisect_left(times_ns, start_ns)
    return place < len(times_ns) and times_ns[place] < end_ns


def _sent_before_accumulating(
    backward: Backward, collectives: Sequence[SeenCollective]
) -> list[SeenCollective]:
    """The reductions of a backward that sends all before its first AccumulateGrad; of others none."""
    sent = [one for one in collectives if one.role == "gradients"]
    return sent if sent and sent[-1].launched_ns < backward.accumulated[0].start_ns else []


def _added_by_copies(
    spans: Sequence[tuple[int, int]], collectives: Sequence[int], backward_end: int
) -> tuple[int, int]:
    """Time that copies add, and the end of the last; a copy's wait for its collective is not counted.

    A copy may seem to begin a little before its collective ends: what ended before its middle, it waited for.

    Args:
        spans: start and end of each copy, in order.
        collectives: when each of them ended, sorted.
        backward_end: when the lane was free.
    """
    added, free = 0, backward_end
    for start, end in spans:
        arrived = bisect.bisect_right(collectives, (start + end) // 2)
        since = max(free, min(start, collectives[arrived - 1])) if arrived else free
        added += max(0, end - since)
        free = max(free, end)
    return added, free


# ---- which collectives reduced gradients, told from losses, norms, metrics and activations

_MAP_DTYPES = ("int32", "int64")


def give_roles(
    found: Sequence[tuple[SeenCollective, str]],
    gradients: Sequence[Sequence[SeenGradient]],
    backwards: Sequence[Backward],
) -> list[SeenCollective]:
    """The collectives of a step, each with its role; ``gradients`` are by backward. Those that no backward
    sent are as they were found: of this step, or from before the trace.
    """
    roles: dict[int, Role] = {}
    for number, (ready, backward) in enumerate(zip(gradients, backwards, strict=True), 1):
        for place, role in _roles_in(found, ready, backward).items():
            is_earlier = role == "gradients" and number < len(backwards)
            roles[place] = "earlier" if is_earlier else role
    return [replace(one, role=roles.get(place, one.role)) for place, (one, _) in enumerate(found)]


def count_backwards(
    backwards: Sequence[Backward], collectives: Sequence[SeenCollective], optimizer_at: Sequence[int]
) -> tuple[int, int]:
    """How many backwards were reduced, and how many are no micro-batches of the last one's model.

    Micro-batches have the same gradients, reduce the same sizes, and no optimizer's step lies between them.
    """
    borders = [one.accumulated[0].start_ns for one in backwards[1:]]
    sizes: list[list[int | None]] = [[] for _ in backwards]
    for one in collectives:
        if one.role in ("earlier", "gradients"):
            sizes[bisect.bisect_right(borders, one.launched_ns)].append(one.num_elements)
    last = backwards[-1].accumulated
    stepped = bisect.bisect_left(optimizer_at, last[0].start_ns)
    others = sum(
        (stepped and optimizer_at[stepped - 1] > one.accumulated[-1].end_ns)
        or not of_one_model(one.accumulated, last)
        or bool(reduced and sizes[-1] and reduced != sizes[-1])
        for one, reduced in zip(backwards[:-1], sizes, strict=False)
    )
    return sum(map(bool, sizes)), others


def _roles_in(
    found: Sequence[tuple[SeenCollective, str]], gradients: Sequence[SeenGradient], backward: Backward
) -> dict[int, Role]:
    """By place, what those collectives of a step carried that a backward's hooks sent.

    DDP reduces in hooks: once one is seen there, a later one is a loss, a norm or a metric. Where none is, or
    the trace is too old to show hooks, those after the last gradient are taken as far as their elements are
    the gradients'.
    """
    first, last = backward.accumulated[0].start_ns, backward.accumulated[-1].start_ns
    hooked, after, maps = [], [], []
    for place, (one, thread) in enumerate(found):
        if one.kind not in ("all_reduce", "coalesced") or not first <= one.launched_ns < backward.until_ns:
            continue
        if one.role == "before":
            continue
        if one.dtype in _MAP_DTYPES:
            maps.append(place)
        elif one.launched_ns <= last or backward.hooks:
            if _from_hook(one.launched_ns, thread, backward):
                hooked.append(place)
            elif one.launched_ns > last:
                after.append(place)
        else:
            after.append(place)
    if not (hooked and backward.hooks):
        hooked += _of_gradients([found[place][0] for place in hooked], after, found, gradients)
    if not hooked:
        hooked = _inside_one_node(found, len(backward.accumulated), backward)
    roles: dict[int, Role] = dict.fromkeys(maps, "map")
    roles.update((place, "gradients") for place in hooked)
    return roles


def _from_hook(launched_ns: int, thread: str, backward: Backward) -> bool:
    """Whether an AccumulateGrad's hook launched it; where the engine's calls are not there, no other node."""
    if thread != backward.thread:
        return launched_ns < backward.end_ns
    if backward.hooks:
        return _within(launched_ns, backward.hooks)
    return not _within(launched_ns, backward.nodes)


def _within(time_ns: int, operators: Sequence[Operator]) -> bool:
    place = bisect.bisect_right(operators, time_ns, key=lambda one: one.start_ns)
    return any(one.end_ns >= time_ns for one in operators[max(0, place - 2) : place])


def _of_gradients(
    before: Sequence[SeenCollective],
    after: Sequence[int],
    found: Sequence[tuple[SeenCollective, str]],
    gradients: Sequence[SeenGradient],
) -> list[int]:
    """The places of those collectives after the last gradient that hold gradients.

    With the reductions ``before`` they have as many elements as all gradients together. Where the elements do
    not tell, all are taken but those of a single element, which are a loss or a norm.
    """
    counts = [found[place][0].num_elements for place in after]
    known = [count for count in counts if count is not None]
    reduced = [one for one in gradients if one.reduced is not False]
    shapes = [one.shape for one in reduced if one.shape is not None]
    sent = [one.num_elements for one in before if one.num_elements is not None]
    if len(known) == len(after) and len(shapes) == len(reduced) and len(sent) == len(before):
        # A scalar's shape and that of a gradient which is not there look alike.
        most = sum(map(prod, shapes)) - sum(sent)
        fewest = most - sum(not shape for shape in shapes)
        if most == 0:
            return []
        for begin in range(len(after)):
            total = 0
            for end in range(begin, len(after)):
                total += known[end]
                if total > 0 and fewest <= total <= most:
                    return list(after[begin : end + 1])
    others = [one.num_elements for one in before] + counts
    if all(count == 1 for count in others):
        return list(after)
    return [place for place, count in zip(after, counts, strict=True) if count != 1]


def _inside_one_node(
    found: Sequence[tuple[SeenCollective, str]], gradients: int, backward: Backward
) -> list[int]:
    """One all-reduce a gradient within backward, though no hook sent them: a compiled backward's own."""
    inside = [
        place
        for place, (one, _) in enumerate(found)
        if (one.kind, one.role) == ("all_reduce", "other")
        and backward.start_ns <= one.launched_ns < backward.until_ns
    ]
    return inside if len(inside) == gradients else []
