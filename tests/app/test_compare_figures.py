"""The figures of the Compare page, as plain functions."""

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings

import sim
from app.figures.compare import draw_map, map_data, parts_data, stacked_data
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from tests.effort import tries
from tests.strategies import Case, cases


@settings(max_examples=tries(30), deadline=None)
@given(cases())
def test_every_collective_is_drawn_whole(case: Case) -> None:
    timeline = sim.simulate(case.workload, case.hardware, case.assignment, "analytic")
    row, again = stacked_data([("A", "a", timeline), ("B", "b", timeline)]).rows
    assert row.spans == again.spans
    drawn: Counter[int | None] = Counter()
    for span in row.spans:
        if span.lane.startswith("communication") and span.kind != "straggler":
            drawn[span.bucket] += span.end_ns - span.start_ns
            assert span.exposed == (span.start_ns >= timeline.backward_end_ns)
    for bucket in timeline.buckets:
        assert drawn[bucket.index] == bucket.end_ns - bucket.start_ns


def test_differences_begin_where_the_last_ended() -> None:
    bars = parts_data([("assignment", [("latency", -70), ("bytes", 20), ("compute", 0)])])
    assert [(bar.name, bar.from_ns, bar.to_ns) for bar in bars] == [
        ("latency", 0, -70),
        ("bytes", -70, -50),
        ("together", 0, -50),
    ]
    assert [bar.is_total for bar in bars] == [False, False, True]


@settings(max_examples=tries(30), deadline=None)
@given(cases())
def test_the_map_holds_every_gradient_once(case: Case) -> None:
    blocks = map_data([("A", case.workload, case.assignment)])
    assert sum(block.num_bytes for block in blocks) == case.workload.total_bytes
    reached = 0
    for block in blocks:
        assert block.start_bytes == reached
        reached += block.num_bytes
    sizes: Counter[int | None] = Counter()
    for block in blocks:
        sizes[block.bucket] += block.num_bytes
    for number, bucket in enumerate(case.assignment.bucket_indices):
        assert sizes[number] == sum(case.workload.gradients[index].num_bytes for index in bucket)


def test_names_from_files_are_no_markup(workload: Workload, hardware: Hardware) -> None:
    nasty = replace(
        workload, gradients=(replace(workload.gradients[0], name="<a href=x>"), *workload.gradients[1:])
    )
    (*_, last) = map_data([("<i>A</i>", nasty, sim.assign(nasty))])
    assert "<a" not in last.text
    assert "<i>" not in last.text
    assert "<i>" not in draw_map([last]).data[0].y[0]
