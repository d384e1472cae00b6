"""The chain of spans that decides when the last gradient is available, as a networkx graph's longest path."""

from itertools import chain, pairwise

import networkx

from sim.nouns.path import PathKind, PathSpan
from sim.nouns.timeline import Timeline

_START = -1  # of backward, among the numbers of spans


def dependencies(timeline: Timeline) -> tuple["networkx.DiGraph[int]", list[PathSpan]]:
    """The spans of a step, and a graph of their numbers: an edge from what had to end to what then started.

    An edge joins two spans only where the second waited for the first and starts the instant it ends,
    so the longest path runs without a gap from the start of backward to the end of synchronisation.
    The weight of an edge is how long the second span lasts, in ns.
    """
    graph: networkx.DiGraph[int] = networkx.DiGraph()
    spans: list[PathSpan] = []
    numbers: dict[int, int] = {}  # by identity: hashing a span costs more than finding a path

    def join(before: PathSpan | None, after: PathSpan | None) -> None:
        if before is None or after is None or before is after:
            return
        if before.end_ns == after.start_ns:
            weight = after.end_ns - after.start_ns
            graph.add_edge(numbers[id(before)], numbers[id(after)], weight=weight)

    def add(
        kind: PathKind,
        start: int,
        end: int,
        bucket: int | None,
        gradient: int | None = None,
        collective: int | None = None,
    ) -> PathSpan:
        span = PathSpan(
            kind=kind, start_ns=start, end_ns=end, bucket=bucket, gradient=gradient, collective=collective
        )
        numbers[id(span)] = len(spans)
        graph.add_node(len(spans))
        spans.append(span)
        return span

    compute = [add(s.kind, s.start_ns, s.end_ns, s.bucket, s.gradient) for s in timeline.compute]
    copies = [add("copy_out", b.copy_out_start_ns, b.available_ns, b.index) for b in timeline.buckets]
    lane = sorted((*compute, *copies), key=lambda span: (span.start_ns, span.end_ns))
    for before, after in pairwise(lane):
        join(before, after)
    lane_ends = {span.end_ns: span for span in lane if span.end_ns > span.start_ns}

    # The spans of a collective, in this order: its launch beside the lane, its wait for the last rank, its
    # transfer, and what follows until its result can be used.
    beside = not timeline.hardware.launch_blocks_compute or "launch" in timeline.workload.ready_includes
    cost = timeline.hardware.launch_cost_ns if beside else 0
    launches: dict[int, PathSpan] = {}  # by end
    sent: dict[int, list[PathSpan]] = {}  # by end
    lives: dict[int, list[PathSpan]] = {}  # the last span of each, by end

    def follow_lane(span: PathSpan) -> None:
        """Join ``span`` to what the lane did last before it: work, or a wait for collectives."""
        if span.start_ns in lane_ends:
            join(lane_ends[span.start_ns], span)
        else:
            for life in lives.get(span.start_ns, ()):
                join(life, span)

    numbered = enumerate(timeline.collectives)
    for number, played in sorted(numbered, key=lambda pair: (pair[1].start_ns, pair[1].launch_ns)):
        what = played.collective
        launch = None
        if what.after is not None:
            earlier = timeline.collectives[what.after]
            launch = add("settle", earlier.end_ns, played.launch_ns, what.bucket, collective=number)
            for before in sent.get(earlier.end_ns, ()):
                join(before, launch)
        elif cost:
            launch = add("launch", played.launch_ns - cost, played.launch_ns, what.bucket, collective=number)
            ready = what.bucket is not None and timeline.buckets[what.bucket].ready_ns == launch.start_ns
            if ready or launch.start_ns not in launches:
                follow_lane(launch)
            join(launches.get(launch.start_ns), launch)
            launches[launch.end_ns] = launch
        reduce = add(what.kind, played.start_ns, played.end_ns, what.bucket, collective=number)
        first, taken = reduce, played.start_ns - played.late_ns
        if played.late_ns:
            first = add("straggler", taken, played.start_ns, what.bucket, collective=number)
            join(first, reduce)
        if taken == played.launch_ns and launch is not None:
            join(launch, first)
        elif taken == played.launch_ns:
            follow_lane(first)
        if taken > played.launch_ns or timeline.hardware.comm_channels == 1:
            for before in sent.get(taken, ()):
                join(before, first)
        sent.setdefault(played.end_ns, []).append(reduce)
        last = reduce
        if played.usable_ns > played.end_ns:
            settle = add("settle", played.end_ns, played.usable_ns, what.bucket, collective=number)
            join(reduce, settle)
            if what.holds_channel:
                sent.setdefault(settle.end_ns, []).append(settle)
            last = settle
        lives.setdefault(last.end_ns, []).append(last)
    # The lane waited where it starts anew the instant that a result can be used.
    starts: dict[int, list[PathSpan]] = {}
    for span in lane:
        starts.setdefault(span.start_ns, []).append(span)
    for life in chain.from_iterable(lives.values()):
        for span in starts.get(life.end_ns, ()):
            waited = life.bucket in (None, span.bucket) if span.kind == "copy_out" else True
            if waited and (span.kind == "copy_out" or life.end_ns not in lane_ends):
                join(life, span)
    return graph, spans


def critical_path(timeline: Timeline) -> tuple[PathSpan, ...]:
    """The spans that decide when the last gradient is available, in time order; all take time."""
    graph, spans = dependencies(timeline)
    for number, span in enumerate(spans):
        if span.start_ns == 0:
            graph.add_edge(_START, number, weight=span.end_ns)
    path = (spans[number] for number in networkx.dag_longest_path(graph) if number != _START)
    return tuple(span for span in path if span.end_ns > span.start_ns)
