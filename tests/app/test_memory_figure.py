"""The trade-off between the largest bucket and the step, as data and as a drawing."""

from app.figures.memory import draw_memory, memory_data
from app.words.tune import memory_sentence
from sim.nouns.memory import MemoryPoint
from sim.units import MIB


def point(limit: int | None, largest: int | None, step_ms: int | None, *, front: bool = False) -> MemoryPoint:
    return MemoryPoint(
        limit_bytes=limit,
        largest_bucket_bytes=largest,
        step_ns=None if step_ms is None else step_ms * 1_000_000,
        num_buckets=None if step_ms is None else 3,
        on_front=front,
    )


POINTS = (
    point(MIB // 2, None, None),
    point(MIB, None, None),
    point(2 * MIB, 2 * MIB, 90, front=True),
    point(4 * MIB, 2 * MIB, 90),
    point(None, 8 * MIB, 80, front=True),
)


def test_the_front_alone_is_drawn() -> None:
    data = memory_data(POINTS)
    assert [(one.largest_mb, one.step_ms) for one in data.front] == [(2, 90), (8, 80)]
    assert data.fastest == data.front[-1]
    assert data.front[0].text == "<b>largest bucket 2 MiB</b><br>step 90.00 ms<br>3 buckets"
    assert data.out_of_reach_mb == 1


def test_the_drawing_steps_down_and_marks_what_is_out_of_reach() -> None:
    figure = draw_memory(memory_data(POINTS))
    line, fastest = figure.data
    assert (list(line.x), list(line.y), line.line.shape) == ([2, 8], [90, 80], "hv")
    assert (list(fastest.x), list(fastest.y)) == ([8], [80])
    assert [shape.x0 for shape in figure.layout.shapes] == [1]


def test_one_point_is_a_sentence() -> None:
    assert memory_sentence(memory_data(POINTS)) is None
    alone = memory_data((point(2 * MIB, 2 * MIB, 80, front=True), point(None, 2 * MIB, 80)))
    assert memory_sentence(alone) == (
        "No limit costs anything: the fastest buckets, 80.00 ms a step, hold 2 MiB at most, and none that "
        "were found hold less."
    )


def test_nothing_out_of_reach_and_nothing_at_all() -> None:
    assert memory_data(POINTS[2:]).out_of_reach_mb is None
    assert not draw_memory(memory_data(POINTS[2:])).layout.shapes
    assert draw_memory(memory_data(())).data == ()
