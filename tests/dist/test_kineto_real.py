"""Traces that torch.profiler writes of real gloo ranks, against what DDP says of itself."""

import json
import math
from pathlib import Path

import pytest

from sim.errors import InputError, NotModelledError
from sim.importer.imported import ImportOptions
from tests.importer.built_traces import Traced, read_kineto
from tests.importer.profiled_runs import SHAPES, STEPS, log, traces

pytestmark = pytest.mark.dist
SHUFFLED = tuple(shape for width in (128, 96, 80, 112, 32) for shape in ((width, 64), (width,)))
REBUILT = (
    *("default", "small", "static", "hook", "accumulation", "view", "shuffled"),
    *("loss", "loss-before", "clip", "norm", "metrics", "zero"),
)

OTHERS = {"loss": 1, "loss-before": 1, "norm": 1, "metrics": 5}


def imported(case: str, ranks: int = 2) -> Traced:
    return read_kineto(traces(case)[:ranks], ImportOptions())


def check_steps(found: Traced) -> None:
    """All are there; but a step that the machine made manifold as long is left out, and named."""
    named = any(f" of {STEPS} left out" in one for one in found.doubtful)
    assert (2 if named else STEPS) <= len(found.steps) <= STEPS - named


def logged_buckets(case: str) -> list[list[int]]:
    """DDP's own buckets, parameter indices in the order in which the Reducer saw them."""
    buckets = log(case)["rebuilt_per_bucket_param_indices"].split(",")
    return [list(map(int, bucket.split())) for bucket in buckets]


@pytest.mark.parametrize("case", REBUILT)
@pytest.mark.parametrize("ranks", [1, 2])
def test_buckets_and_ready_order_are_ddps_own(case: str, ranks: int) -> None:
    found = imported(case, ranks)
    shapes = SHUFFLED if case == "shuffled" else SHAPES
    logged = [[shapes[index] for index in bucket] for bucket in logged_buckets(case)]
    elements = [sum(map(math.prod, bucket)) for bucket in logged]
    assert [row["num_elements"] for row in found.buckets] == elements
    check_steps(found)
    workload = found.workload
    shape = [gradient.shape for gradient in workload.gradients]
    assert [shape[index] for index in workload.order()] == [one for bucket in logged for one in bucket]
    assert [[shape[index] for index in bucket] for bucket in found.measurements[0].observed] == logged
    times = [workload.gradients[index].ready_ns or 0 for index in workload.order()]
    assert times == sorted(times)
    assert 0 < times[0] <= times[-1] <= workload.backward_ns


@pytest.mark.parametrize("case", REBUILT)
def test_collectives_run_between_their_launch_and_the_end_of_synchronisation(case: str) -> None:
    found = imported(case)
    (hardware,) = found.hardware
    assert (hardware.world_size, hardware.comm_channels, hardware.provenance["backend"]) == (2, 2, "gloo")
    assert all(point.duration_ns > 0 for point in hardware.all_reduce)
    for iteration in imported(case, 1).measurements[0].iterations:
        for bucket in iteration.buckets:
            assert bucket.start_ns is not None
            assert bucket.end_ns is not None
            assert bucket.ready_ns <= bucket.launch_ns <= bucket.start_ns < bucket.end_ns
            assert bucket.end_ns <= iteration.sync_end_ns <= iteration.step_ns


@pytest.mark.parametrize("case", ["small", "accumulation"])
def test_ranks_of_one_machine_share_their_clock(case: str) -> None:
    first, second = imported(case).ranks
    assert (first.rank, second.rank) == (0, 1)
    assert second.clock_scatter_ns is not None
    assert second.clock_offset_ns is not None
    # Gloo's ends are apart by what the scheduler does to its threads; no GPU spins for the last.
    assert abs(second.clock_offset_ns) < 100_000_000
    # Where their ends scatter, who came last cannot be told of most; none is told twice.
    assert (first.came_last or 0) + (second.came_last or 0) == first.collectives


def test_what_is_no_gradient_becomes_no_bucket() -> None:
    reduced = {case: f"{n} other collectives a step (all_reduce)" for case, n in OTHERS.items()}
    for case, words in {**reduced, "zero": "other collectives a step (broadcast)"}.items():
        assert any(words in line for line in imported(case).found), case
    for case in ("clip", "small", "static"):
        assert not any("other collectives" in line for line in imported(case).found)


def test_what_a_comm_hook_sends_is_on_the_wire_only() -> None:
    found = imported("hook")
    facts = {(one.dtype, one.num_bytes / (one.wire_bytes or 1)) for one in found.workload.gradients}
    assert facts == {("float32", 2)}
    assert {row["dtype"] for row in found.buckets} == {"float16"}
    assert found.measurements[0].observed == ((9, 8, 7, 6, 5, 4), (3, 2, 1, 0))


def test_micro_batches_before_the_last_belong_to_forward() -> None:
    assert any("2 micro-batches a step" in line for line in imported("accumulation").found)
    assert not any("micro-batches" in line for line in imported("small").found)


def test_unused_parameters_leave_the_buckets_as_they_ran() -> None:
    """The trace has no AccumulateGrad of theirs, but DDP reduces them: buckets stand for their gradients."""
    found, spare = imported("unused"), 7 * 5 + 5
    assert sum(row["num_elements"] for row in found.buckets) == sum(map(math.prod, SHUFFLED)) + spare
    assert any("each bucket that ran stands for its gradients" in line for line in found.assumed)


def test_steps_without_numbers_are_told_by_their_optimizer_on_one_rank_alone() -> None:
    check_steps(imported("no-steps", 1))
    with pytest.raises(InputError, match="steps without numbers"):
        imported("no-steps", 2)


def test_without_shapes_nothing_is_made_up() -> None:
    found = imported("no-shapes")
    assert (found.workload, *found.hardware, *found.measurements) == (None,)
    assert len(found.buckets) == 2
    check_steps(found)
    assert any("record_shapes=True" in line for line in found.missing)


def test_no_curve_is_made_where_only_the_sending_is_seen(tmp_path: Path) -> None:
    """As older versions write it: gloo's all-reduces on the thread that sends them."""
    document = json.loads(traces("small")[0].read_text())
    events = document["traceEvents"]
    calls = [event for event in events if event["name"] == "c10d::allreduce_"]
    for event in (one for one in events if one["name"] == "gloo:all_reduce"):
        shape = event["args"]["Input Dims"][0]
        alike = [one["ts"] for one in calls if one["args"]["Input Dims"][0] == [shape]]
        sent = max(at for at in alike if at <= event["ts"])
        event |= {"tid": calls[0]["tid"], "dur": event["dur"] + event["ts"] - sent, "ts": sent}
    path = tmp_path / "older.json"
    path.write_text(json.dumps(document))
    found = read_kineto([path], ImportOptions())
    assert [row["num_elements"] for row in found.buckets] == [20448, 20704]
    assert (found.workload is None, found.hardware) == (False, ())
    assert any("when it ran" in line for line in found.missing)


def test_all_reduces_after_backward_are_told_from_ddps() -> None:
    found = imported("after-backward")
    assert [row["num_elements"] for row in found.buckets] == [math.prod(shape) for shape in reversed(SHAPES)]
    assert found.measurements[0].asked.policy == "after-backward"
    assert any("no DDP" in line for line in found.assumed)


@pytest.mark.parametrize(("case", "buckets"), [("alone", 0), ("alone-ddp", 2)])
def test_one_rank_has_steps_and_gradients_and_no_curve(case: str, buckets: int) -> None:
    found = imported(case)
    assert len(found.buckets) == buckets
    check_steps(found)
    assert [gradient.shape for gradient in found.workload.gradients] == list(SHAPES)
    assert not found.hardware
    assert any("the job had one rank" in line for line in found.missing)
    for row in found.steps:
        assert 0 < row["forward_ns"] < row["step_ns"]
        assert 0 < row["backward_ns"] <= row["sync_end_ns"] < row["step_ns"]


@pytest.mark.parametrize(
    ("case", "word"),
    [
        *(pytest.param(f"fsdp{version}", "FSDP", marks=pytest.mark.slow) for version in (1, 2)),
        pytest.param("tensor", "tensor parallelism", marks=pytest.mark.slow),
        pytest.param("pipeline", "pipeline parallelism", marks=pytest.mark.slow),
        ("send", "pipeline parallelism"),
        ("inference", "inference"),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_other_ways_to_train_are_declined_with_a_word(case: str, word: str, ranks: int) -> None:
    with pytest.raises(NotModelledError, match=word) as error:
        imported(case, ranks)
    assert len(str(error.value).splitlines()) == 1
    assert f"{case}_" in str(error.value)
