"""The figures of the Compare page, as plain functions."""

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings

import sim
from app.figures.compare import draw_stacked, stacked_data
from app.figures.compare_map import draw_map, map_data
from app.figures.compare_parts import parts_data
from app.figures.style import bucket_colour
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from tests.effort import tries
from tests.handmade import handmade
from tests.strategies import Case, cases


def played(workload: Workload, hardware: Hardware, policy: str = "ddp") -> Timeline:
    return sim.simulate(workload, hardware, sim.assign(workload, policy), "analytic")


def candidates(workload: Workload, hardware: Hardware) -> list[tuple[str, str, Timeline]]:
    return [
        ("A", "DDP's default", played(workload, hardware)),
        ("B", "one <b>per</b> parameter", played(workload, hardware, "per-parameter")),
    ]


def many(count: int) -> Workload:
    """So many gradients that a timeline of each must be merged."""
    ready = [(count - index) * 1000 for index in range(count)]
    return handmade(ready, 4, name="many", forward_ns=1, optimizer_ns=1)


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


def test_a_bucket_has_its_colour_on_every_lane(workload: Workload, hardware: Hardware) -> None:
    data = stacked_data(candidates(workload, hardware))
    bars = [trace for trace in draw_stacked(data).data if trace.type == "bar" and trace.name in ("A", "B")]
    for row, bar in zip(data.rows, bars, strict=True):
        assert list(bar.marker.color) == [bucket_colour(span.bucket) for span in row.spans]
        shapes = dict(zip(row.spans, bar.marker.pattern.shape, strict=True))
        assert {shape for span, shape in shapes.items() if span.exposed} == {"/"}


def test_spans_keep_to_the_budget(hardware: Hardware) -> None:
    workload = many(3000)
    data = stacked_data(candidates(workload, hardware), max_spans=1000)
    assert sum(len(row.spans) for row in data.rows) <= 1000
    assert "neighbours" in data.note
    timeline = played(workload, hardware, "per-parameter")
    shown = data.rows[1]
    assert min(span.start_ns for span in shown.spans) == 0
    assert max(span.end_ns for span in shown.spans) == timeline.sync_end_ns
    busy = sum(done.end_ns - done.start_ns for done in timeline.collectives)
    lane = [span for span in shown.spans if span.lane == "communication"]
    assert sum(span.end_ns - span.start_ns for span in lane) >= busy


def test_nothing_is_merged_that_need_not_be(workload: Workload, hardware: Hardware) -> None:
    assert stacked_data(candidates(workload, hardware)).note == ""


def test_differences_begin_where_the_last_ended() -> None:
    bars = parts_data([("assignment", [("latency", -70), ("bytes", 20), ("compute", 0)])])
    assert [(bar.name, bar.from_ns, bar.to_ns) for bar in bars] == [
        ("latency", 0, -70),
        ("bytes", -70, -50),
        ("together", 0, -50),
    ]
    assert [bar.is_total for bar in bars] == [False, False, True]


def test_causes_are_named_where_there_are_several() -> None:
    bars = parts_data([("assignment", [("bytes", 5)]), ("machine", [("bytes", -7)])])
    assert [bar.name for bar in bars] == ["bytes (assignment)", "bytes (machine)", "together"]


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


def test_a_thinned_map_is_as_wide() -> None:
    workload = many(3000)
    assignment = sim.assign(workload, "per-parameter")
    blocks = map_data([("A", workload, assignment)] * 2, max_blocks=200)
    assert len(blocks) <= 202
    assert sum(block.num_bytes for block in blocks) == 2 * workload.total_bytes
    assert draw_map(blocks).layout.xaxis.title.text == "gradients in ready order, MiB"


def test_names_from_files_are_no_markup(workload: Workload, hardware: Hardware) -> None:
    nasty = replace(
        workload, gradients=(replace(workload.gradients[0], name="<a href=x>"), *workload.gradients[1:])
    )
    (*_, last) = map_data([("<i>A</i>", nasty, sim.assign(nasty))])
    assert "<a" not in last.text
    assert "<i>" not in last.text
    assert "<i>" not in draw_map([last]).data[0].y[0]
