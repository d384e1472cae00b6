"""Steps that a job stamped itself become a measurement: by hand."""

import json
from pathlib import Path

import sim
from sim.nouns.measurement import Measurement
from tests.handmade import handmade
from tests.training.stamped_steps import measured

CHAIN = handmade([30, 20, 10], [12, 8, 4], name="chain", names=["a.weight", "b.weight", "c.weight"])


def line(backward_ns: int, plain_ns: int | None = None) -> str:
    """A step that begins at 100: 10 ns of forward, 5 of optimizer; two all-reduces, 8 ns apart."""
    ended_ns = 110 + backward_ns
    sent = [[ended_ns - 10, 12], [ended_ns - 2, 12]]
    stamps = {"began_ns": 100, "forward_ns": 110, "backward_ns": ended_ns, "ended_ns": ended_ns + 5}
    return json.dumps(stamps | {"plain_ns": plain_ns, "sent": sent}) + "\n"


def test_the_rank_that_waited_least_tells_the_step_and_the_slower_one_a_plain_backward(
    tmp_path: Path,
) -> None:
    warm = line(900) + line(900, 800)
    (tmp_path / "rank-0.jsonl").write_text(warm + line(50) + line(60, 35))
    (tmp_path / "rank-1.jsonl").write_text(warm + line(40) + line(70, 30))
    asked = sim.assign(CHAIN, bucket_cap_mb=4, optimize_ddp="python_reducer")
    eager = Measurement(
        name="eager",
        role="plain",
        mode="trace",
        backend="gloo",
        world_size=2,
        asked=None,
        observed=None,
        iterations=(),
        complete=False,
        plain_backward_ns=1,
        plain_step_ns=1,
        dropped_warmup=2,
        environment={"place": "cpu"},
    )
    made = measured("one", tmp_path, asked, CHAIN, eager)
    assert made.observed == ((2, 1), (0,))
    assert [(one.step_ns, one.backward_end_ns, one.sync_end_ns) for one in made.iterations] == [
        (55, 38, 40),
        (75, 58, 60),
    ]
    assert [bucket.launch_ns for bucket in made.iterations[0].buckets] == [30, 38]
    assert (made.plain_backward_ns, made.plain_step_ns) == (35, 50)
    assert made.environment == {"place": "cpu"}
