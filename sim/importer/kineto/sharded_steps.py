"""What FSDP2 did in each step of a trace, by its ``FSDP::`` ranges: units, their ready times, what was sent.

The work of a lane is what it does outside of these ranges: on a GPU the kernels launched outside of them, on
the CPU all time outside. FSDP2's own work and waiting lie inside, so that work is as without sharding.
"""

import bisect
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from sim.errors import NotModelledError
from sim.importer.kineto.autograd import find_accumulations
from sim.importer.kineto.compute_lane import launched_spans, make_lane
from sim.importer.kineto.events import TraceEvents
from sim.importer.kineto.seen import SeenCollective, SeenGradient, SeenSharding, SeenStep, SeenUnit
from sim.importer.kineto.traced_collectives import shape_of
from sim.metrics.intervals import Interval, intersection_length, union

_RANGE = re.compile(r"FSDP::(\w+)(?: (?:\(|for )(.*?)\)?)?( \[pg=\d+\])?$")
_REDUCE = "post_backward_reduce"
_CALLBACK = "root_post_backward_callback"
_COPY_IN, _COPY_OUT = "fsdp::chunk_cat", "fsdp::split_with_sizes_copy"


@dataclass(frozen=True, slots=True)
class _Range:
    """One ``FSDP::`` range: what FSDP2 did in it, and the modules of the unit; the root's has none."""

    what: str
    modules: tuple[str, ...]
    start_ns: int
    end_ns: int

    def holds(self, time_ns: int) -> bool:
        return self.start_ns <= time_ns < self.end_ns


def shard_steps(trace: TraceEvents, steps: Sequence[SeenStep]) -> tuple[SeenStep, ...]:
    """The steps with what FSDP2 did in them; unchanged if the trace shows no FSDP2.

    Raises:
        NotModelledError: FSDP2 in a way that is not modelled, by its name.
    """
    ranges, places = [], defaultdict(list)
    for one in sorted(trace.operators, key=lambda one: one.start_ns):
        if match := _RANGE.match(one.name):
            if match[3]:
                raise NotModelledError(f"{trace.source}: {one.name!r}: modules in several groups of ranks")
            modules = tuple(filter(None, (match[2] or "").split(", ")))
            ranges.append(_Range(match[1], modules, one.start_ns, one.end_ns))
            places[one.thread].append((one.start_ns, one.end_ns))
    if not any(one.what == _REDUCE for one in ranges):
        return tuple(steps)
    thread = Counter(one.thread for one in find_accumulations(trace)).most_common(1)[0][0]
    reader = _Reader(trace, ranges, {name: union(spans) for name, spans in places.items()}, thread)
    return tuple(map(reader.read, steps))


class _Reader:
    """Reads step after step."""

    def __init__(
        self,
        trace: TraceEvents,
        ranges: Sequence[_Range],
        hidden: dict[str, list[Interval]],
        thread: str,
    ) -> None:
        self._source = trace.source
        self._ranges = ranges
        self._thread = thread
        self._optimized = sorted(
            one.end_ns for one in trace.operators if one.name.startswith("Optimizer.step")
        )
        self._ends = sorted([*self._optimized, *(one.end_ns for one in ranges if one.what == _CALLBACK)])
        self._copies = [one for one in trace.operators if one.name in (_COPY_IN, _COPY_OUT)]
        self._on_gpu = bool(trace.gpu)
        self._hidden = hidden.get(thread, [])
        spans = launched_spans(trace)
        stream = make_lane(spans, thread).stream
        self._lane = [
            (at, by, span.end_ns - span.start_ns) for at, by, span in spans if span.stream == stream
        ]
        plain = [one for one in self._lane if not _inside(one[0], hidden.get(one[1], []))]
        self._work = {
            is_backward: _sums([one for one in plain if (one[1] == thread) == is_backward])
            for is_backward in (True, False)
        }

    def read(self, step: SeenStep) -> SeenStep:
        """A step with its sharding, the reductions of gradients and the end of its synchronisation."""
        first, last = step.gradients[0].hooked_at_ns, step.gradients[-1].hooked_at_ns
        since, begun = _last_before(first, self._ends), _last_before(first, self._optimized)
        over = next((end for end in self._ends if end > last), step.end_ns)
        if not self._on_gpu:
            since, begun = max(since, step.start_ns), max(begun, step.start_ns)
        earlier = [one for one in self._ranges if begun <= one.start_ns < since and one.what == _REDUCE]
        if step.micro_batches > 1 and earlier:
            raise NotModelledError(
                f"{self._source}: step {step.number}: micro-batches before the last reduce too, without "
                f"set_requires_gradient_sync(False); FSDP2 is modelled with the last one reducing alone"
            )
        ranges = [one for one in self._ranges if since <= one.start_ns < over]
        reduced = [one for one in ranges if one.what == _REDUCE]
        names = [one.modules for one in reduced]
        if len(set(names)) < len(names) or not names:
            raise NotModelledError(
                f"{self._source}: step {step.number} reduces {len(names)} times, {len(set(names))} units of "
                f"FSDP2; only units that are each reduced once, at the end of the last backward, are modelled"
            )
        collectives = [_with_role(one, reduced) for one in step.collectives]
        sent = [one for one in collectives if one.role == "gradients"]
        begin = since if self._on_gpu else step.backward_start_ns
        units = self._units(step, ranges, reduced, sent, begin)
        gathers, shards = _gathers(collectives, ranges, units)
        collectives = [
            replace(one, group_size=shards) if one in sent and one.group_size is None else one
            for one in collectives
        ]
        callback = next((one.end_ns for one in ranges if one.what == _CALLBACK and one.end_ns > last), last)
        ends = [] if self._on_gpu else [callback]
        return replace(
            step,
            collectives=tuple(collectives),
            sync_end_ns=max([step.backward_end_ns, *ends, *(one.end_ns for one in sent)]),
            end_ns=max([step.end_ns, *ends, *(one.end_ns for one in sent)]),
            sharding=SeenSharding(
                units=units,
                forward=tuple(dict.fromkeys(one.modules for one in ranges if one.what == "pre_forward")),
                gathers=gathers,
                forward_ns=self._worked(since, last if self._on_gpu else begin, is_backward=False),
                backward_ns=self._worked(begin, over if self._on_gpu else step.backward_end_ns),
                copy_in_ns=self._copied(_COPY_IN, since, over),
                copy_out_ns=self._copied(_COPY_OUT, since, over),
                settings=_settings(ranges, first),
            ),
        )

    def _worked(self, since: int, until: int, *, is_backward: bool = True) -> int:
        if not self._on_gpu:
            return until - since - intersection_length(self._hidden, [(since, until)])
        at, sums = self._work[is_backward]
        return sums[bisect.bisect_left(at, until)] - sums[bisect.bisect_left(at, since)]

    def _copied(self, name: str, since: int, until: int) -> int:
        copies = [one for one in self._copies if one.name == name and since <= one.start_ns < until]
        if not self._on_gpu:
            return sum(one.end_ns - one.start_ns for one in copies)
        inside = {one.thread: union((each.start_ns, each.end_ns) for each in copies) for one in copies}
        return sum(duration for at, by, duration in self._lane if _inside(at, inside.get(by, [])))

    def _units(
        self,
        step: SeenStep,
        ranges: Sequence[_Range],
        reduced: Sequence[_Range],
        sent: Sequence[SeenCollective],
        begin: int,
    ) -> tuple[SeenUnit, ...]:
        shapes = [self._shapes(one) for one in reduced]
        members = _members(step.gradients, ranges, reduced, shapes)
        units = []
        for number, one in enumerate(reduced):
            mine = [each for each in sent if one.holds(each.launched_ns)]
            if len(mine) > 1:
                raise NotModelledError(
                    f"{self._source}: {' and '.join(each.kind for each in mine)} of one unit of FSDP2: HSDP, "
                    f"whose traces are not read"
                )
            if members is not None:
                ready = tuple(self._worked(begin, each.hooked_at_ns) for each in members[number])
                dtype = next((each.dtype for each in members[number] if each.dtype), None)
            else:
                came = next(
                    each.start_ns
                    for each in ranges
                    if each.what == "post_backward_accumulate" and each.modules == one.modules
                )
                came = came if self._on_gpu else min(came, step.backward_end_ns)
                dtypes = {each.dtype for each in step.gradients}
                ready, dtype = (self._worked(begin, came),), dtypes.pop() if len(dtypes) == 1 else None
            units.append(
                SeenUnit(
                    modules=one.modules,
                    shapes=None if members is None else shapes[number],
                    ready_ns=ready,
                    dtype=dtype,
                    reduction=mine[0] if mine else None,
                )
            )
        return tuple(units)

    def _shapes(self, reduced: _Range) -> tuple[tuple[int, ...], ...] | None:
        """The shapes of a unit's gradients, as they are copied into one buffer; None if none are traced."""
        for one in self._copies:
            if one.name == _COPY_IN and reduced.holds(one.start_ns):
                dims = one.arguments.get("dims")
                found = [shape_of(shape) for shape in dims[0]] if dims and isinstance(dims[0], list) else []
                shapes = tuple(shape for shape in found if shape is not None)
                return shapes if shapes and len(shapes) == len(found) else None
        return None


def _last_before(time_ns: int, ends: Sequence[int]) -> int:
    place = bisect.bisect_right(ends, time_ns)
    return ends[place - 1] if place else 0


def _gathers(
    collectives: Sequence[SeenCollective], ranges: Sequence[_Range], units: Sequence[SeenUnit]
) -> tuple[tuple[SeenCollective, ...], int | None]:
    """The all-gathers of units, each with the elements of all ranks; and the number of these ranks."""
    elements = {unit.modules: unit.reduction.num_elements for unit in units if unit.reduction is not None}
    found, shards = [], set()
    for one in collectives:
        of = next((e.modules for e in ranges if e.what == "all_gather" and e.holds(one.launched_ns)), None)
        if one.kind == "all_gather" and of is not None:
            whole = elements.get(of)
            found.append(replace(one, num_elements=whole))
            if whole and one.num_elements:
                shards.add(whole // one.num_elements)
    return tuple(found), shards.pop() if len(shards) == 1 else None


def _inside(time_ns: int, spans: Sequence[Interval]) -> bool:
    place = bisect.bisect_right(spans, time_ns, key=lambda span: span[0])
    return bool(place) and time_ns < spans[place - 1][1]


def _sums(launched: Sequence[tuple[int, str, int]]) -> tuple[list[int], list[int]]:
    """When each kernel was launched, and the total ns of the kernels before it."""
    return [one[0] for one in launched], [0, *accumulate(one[2] for one in launched)]


def _with_role(one: SeenCollective, reduced: Sequence[_Range]) -> SeenCollective:
    if one.role == "before":
        return one
    reduces = one.kind in ("reduce_scatter", "all_reduce")
    is_units = reduces and any(each.holds(one.launched_ns) for each in reduced)
    return replace(one, role="gradients" if is_units else "other", ready_ns=one.launched_ns)


def _members(
    gradients: Sequence[SeenGradient],
    ranges: Sequence[_Range],
    reduced: Sequence[_Range],
    shapes: Sequence[tuple[tuple[int, ...], ...] | None],
) -> list[list[SeenGradient]] | None:
    """The gradients of each unit, in the order of its ``shapes``; None if shapes do not tell their units.

    A unit's gradients come after the range in which backward reached its outputs, and before that of its
    reduction. Of several with one shape the last declared is taken to come first. The rest are the root's.
    """
    left = list(gradients)
    found: list[list[SeenGradient]] = [[] for _ in reduced]
    for number in sorted(range(len(reduced)), key=lambda number: not reduced[number].modules):
        of, own = reduced[number], shapes[number]
        if own is None:
            return None
        before = [one.start_ns for one in ranges if one.what == "pre_backward" and one.modules == of.modules]
        since = before[0] if before and of.modules else 0
        places: dict[tuple[int, ...] | None, list[int]] = defaultdict(list)
        for place, shape in enumerate(own):
            places[shape].append(place)
        made: dict[int, SeenGradient] = {}
        for one in [one for one in left if since <= one.hooked_at_ns < of.start_ns]:
            if places[one.shape]:
                made[places[one.shape].pop()] = one
                left.remove(one)
        if len(made) < len(own):
            return None
        found[number] = [made[place] for place in range(len(own))]
    return None if left else found


def _settings(ranges: Sequence[_Range], backward_ns: int) -> dict[str, bool | int]:
    """The settings of prefetching and resharding that the ranges show; others keep torch's defaults."""
    made: dict[str, bool | int] = {}
    gathers = [one for one in ranges if one.what == "all_gather"]
    backward = min((one.start_ns for one in ranges if one.what == "pre_backward"), default=backward_ns)
    if any(one.modules for one in gathers) and not any(one.start_ns >= backward for one in gathers):
        made["reshard_after_forward"] = False
    for kind in ("forward", "backward"):
        launched = [one for one in ranges if one.what == f"{kind}_prefetch"]
        hooks = [one.start_ns for one in ranges if one.what == f"pre_{kind}"]
        by_hook = Counter(bisect.bisect_right(hooks, one.start_ns) for one in launched)
        most = max(by_hook.values(), default=0)
        if most > (kind == "backward"):
            made[f"{kind}_prefetch"] = most
    return made
