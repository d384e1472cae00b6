"""The chain of spans that decides when the last gradient is available, in the graph of what released what."""

import networkx

from sim.nouns.timeline import PathSpan, Timeline

_START = -1  # of backward, among the numbers of links


def dependencies(timeline: Timeline) -> "networkx.DiGraph[int]":
    """The links of a step by number: an edge from each one's cause to it.

    Every link has one, so that one way leads to each, without a gap, from the start of backward.
    """
    return networkx.DiGraph((link.cause, number) for number, link in enumerate(timeline.spans))


def critical_path(timeline: Timeline) -> tuple[PathSpan, ...]:
    """The spans that decide when the last gradient is available, in time order; all take time."""
    if timeline.released_by == _START:
        return ()
    way = networkx.shortest_path(dependencies(timeline), _START, timeline.released_by)
    return tuple(
        PathSpan(
            kind=link.kind,
            start_ns=link.start_ns,
            end_ns=link.end_ns,
            bucket=link.bucket,
            gradient=link.gradient,
            collective=link.collective,
        )
        for link in (timeline.spans[number] for number in way[1:])
        if link.end_ns > link.start_ns
    )
