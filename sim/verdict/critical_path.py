"""The chain of spans that decides when the last gradient is available, as a networkx graph's longest path."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import networkx

from sim.nouns.timeline import Timeline

PathKind = Literal["backward", "copy_in", "launch", "all_reduce", "copy_out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSpan:
    """One link of the critical path, ns from the start of backward."""

    kind: PathKind
    start_ns: int
    end_ns: int
    bucket: int | None = None
    gradient: int | None = None


def dependencies(timeline: Timeline) -> "networkx.DiGraph[PathSpan]":
    """Which span had to end for which to start; weights are durations in ns.

    An edge joins two spans only where the second waited for the first and starts the instant it ends,
    so the longest path runs without a gap from the start of backward to the end of synchronisation.
    """
    graph: networkx.DiGraph[PathSpan] = networkx.DiGraph()

    def join(before: PathSpan | None, after: PathSpan) -> None:
        if before is not None and before.end_ns == after.start_ns and before is not after:
            graph.add_edge(before, after, weight=after.end_ns - after.start_ns)

    compute = [
        PathSpan(
            kind=span.kind,
            start_ns=span.start_ns,
            end_ns=span.end_ns,
            bucket=span.bucket,
            gradient=span.gradient,
        )
        for span in timeline.compute
    ]
    for span in compute:
        graph.add_node(span)
    for before, after in pairwise(compute):
        join(before, after)
    lane_ends = {span.end_ns: span for span in compute}

    launches: list[PathSpan] = []
    reduces: list[PathSpan] = []
    copies: list[PathSpan] = []
    beside = not timeline.hardware.launch_blocks_compute or "launch" in timeline.workload.ready_includes
    cost = timeline.hardware.launch_cost_ns if beside else 0
    for bucket in timeline.buckets:
        k = bucket.index
        launch = None
        if cost:
            launch = PathSpan(
                kind="launch", start_ns=bucket.launch_ns - cost, end_ns=bucket.launch_ns, bucket=k
            )
            graph.add_node(launch)
            if bucket.ready_ns == launch.start_ns:
                join(lane_ends.get(launch.start_ns), launch)
            if launches:
                join(launches[-1], launch)
            launches.append(launch)
        reduce = PathSpan(kind="all_reduce", start_ns=bucket.start_ns, end_ns=bucket.end_ns, bucket=k)
        graph.add_node(reduce)
        if bucket.start_ns == bucket.launch_ns:
            join(launch or lane_ends.get(bucket.start_ns), reduce)
        if bucket.start_ns > bucket.launch_ns or timeline.hardware.comm_channels == 1:
            for earlier in reduces:
                join(earlier, reduce)
        copy = PathSpan(
            kind="copy_out", start_ns=bucket.copy_out_start_ns, end_ns=bucket.available_ns, bucket=k
        )
        graph.add_node(copy)
        join(reduce, copy)
        join(copies[-1] if copies else (compute[-1] if compute else None), copy)
        reduces.append(reduce)
        copies.append(copy)
    return graph


def critical_path(timeline: Timeline) -> list[PathSpan]:
    """The spans that decide ``sync_end_ns``, in time order; spans of no length are left out."""
    graph = dependencies(timeline)
    source = PathSpan(kind="backward", start_ns=0, end_ns=0)
    for span in list(graph.nodes):
        if span.start_ns == 0:
            graph.add_edge(source, span, weight=span.end_ns)
    return [span for span in networkx.dag_longest_path(graph) if span.end_ns > span.start_ns]
