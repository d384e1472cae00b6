"""The chain of spans that decides when the last gradient is available, as a networkx graph's longest path."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import networkx

from sim.nouns.collective import CollectiveKind
from sim.nouns.timeline import SpanKind, Timeline

PathKind = SpanKind | CollectiveKind | Literal["copy_out", "settle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSpan:
    """One link of the critical path, ns from the start of backward.

    ``settle`` is what a callback computes between collectives, or between one and the use of its result.
    ``collective`` is the place among the timeline's: those of a chain may be alike but for it.
    """

    kind: PathKind
    start_ns: int
    end_ns: int
    bucket: int | None = None
    gradient: int | None = None
    collective: int | None = None


def dependencies(timeline: Timeline) -> "networkx.DiGraph[PathSpan]":
    """Which span had to end for which to start; weights are durations in ns.

    An edge joins two spans only where the second waited for the first and starts the instant it ends,
    so the longest path runs without a gap from the start of backward to the end of synchronisation.
    """
    graph: networkx.DiGraph[PathSpan] = networkx.DiGraph()

    def join(before: PathSpan | None, after: PathSpan | None) -> None:
        if before is None or after is None or before is after:
            return
        if before.end_ns == after.start_ns:
            graph.add_edge(before, after, weight=after.end_ns - after.start_ns)

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
        graph.add_node(span)
        return span

    compute = [add(s.kind, s.start_ns, s.end_ns, s.bucket, s.gradient) for s in timeline.compute]
    copies = [add("copy_out", b.copy_out_start_ns, b.available_ns, b.index) for b in timeline.buckets]
    lane = sorted((*compute, *copies), key=lambda span: (span.start_ns, span.end_ns))
    for before, after in pairwise(lane):
        join(before, after)
    lane_ends = {span.end_ns: span for span in lane if span.end_ns > span.start_ns}

    # A collective's whole life: launched beside the lane, sent, and what follows until it can be used.
    beside = not timeline.hardware.launch_blocks_compute or "launch" in timeline.workload.ready_includes
    cost = timeline.hardware.launch_cost_ns if beside else 0
    launches: dict[int, PathSpan] = {}  # by end
    sent: dict[int, list[PathSpan]] = {}  # by end
    lives: list[PathSpan] = []  # the last span of each
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
                join(lane_ends.get(launch.start_ns), launch)
            join(launches.get(launch.start_ns), launch)
            launches[launch.end_ns] = launch
        reduce = add(what.kind, played.start_ns, played.end_ns, what.bucket, collective=number)
        if played.start_ns == played.launch_ns:
            join(launch or lane_ends.get(played.start_ns), reduce)
        if played.start_ns > played.launch_ns or timeline.hardware.comm_channels == 1:
            for before in sent.get(played.start_ns, ()):
                join(before, reduce)
        sent.setdefault(played.end_ns, []).append(reduce)
        lives.append(reduce)
        if played.usable_ns > played.end_ns:
            settle = add("settle", played.end_ns, played.usable_ns, what.bucket, collective=number)
            join(reduce, settle)
            if what.holds_channel:
                sent.setdefault(settle.end_ns, []).append(settle)
            lives[-1] = settle
    # The lane waited where it starts anew the instant that a result can be used.
    starts: dict[int, list[PathSpan]] = {}
    for span in lane:
        starts.setdefault(span.start_ns, []).append(span)
    for life in lives:
        for span in starts.get(life.end_ns, ()):
            waited = life.bucket in (None, span.bucket) if span.kind == "copy_out" else True
            if waited and (span.kind == "copy_out" or life.end_ns not in lane_ends):
                join(life, span)
    return graph


def critical_path(timeline: Timeline) -> list[PathSpan]:
    """The spans that decide ``sync_end_ns``, in time order; spans of no length are left out."""
    graph = dependencies(timeline)
    source = PathSpan(kind="backward", start_ns=0, end_ns=0)
    for span in list(graph.nodes):
        if span.start_ns == 0:
            graph.add_edge(source, span, weight=span.end_ns)
    return [span for span in networkx.dag_longest_path(graph) if span.end_ns > span.start_ns]
