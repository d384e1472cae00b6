"""DDP's logger: real ranks, simulated steps, a published cluster, and what lies about it in job logs."""

import json
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.errors import InputError, SimError
from sim.formats.documents import parse_document, to_document
from sim.importer.ddp_log.logged_buckets import read_ddp_log
from sim.nouns.assignment import Assignment, bucket_bytes
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.imported import Imported, ImportOptions
from sim.nouns.workload import Workload
from sim.systems.bucketing import initial_buckets
from tests.effort import tries
from tests.importer.ddp_run import BUCKETS, SIZES, files, model
from tests.importer.mutations import mutated
from tests.public_data import DATA, needs_data
from tests.strategies import workloads

MACHINE = Hardware(name="m", world_size=4, all_reduce=(CurvePoint(num_bytes=0, duration_ns=1000),))


def read(text: str, **options: Any) -> Imported:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.log"
        path.write_text(text)
        return read_ddp_log([path], ImportOptions(**options))


@settings(max_examples=tries(100), deadline=None)
@given(workloads(dtypes=("float32",), devices=(None,), sparse=False, empty=False), st.floats(0.01, 60))
def test_a_simulated_log_gives_its_own_assignment_back(workload: Workload, cap_mb: float) -> None:
    """What ``sim.ddp_logging_data`` says of a step, read with the model, is that step's assignment."""
    workload = replace(workload, ready_includes=(), samples=())
    assignment = sim.assign(workload, "ddp", bucket_cap_mb=cap_mb)
    log = sim.ddp_logging_data(sim.simulate(workload, MACHINE, assignment))
    if log["avg_backward_compute_time"] <= workload.loss_ns or workload.backward_ns == 0:
        return
    imported = read(json.dumps(log), model=workload)
    (layout,) = imported.details["layouts"]
    found = parse_document(layout["assignment"], Assignment, "details")
    assert found.bucket_indices == assignment.bucket_indices
    found.check_fits(workload)
    assert imported.workload is not None
    assert imported.workload.estimated
    assert imported.workload.order() == workload.order()
    assert imported.workload.backward_ns == log["avg_backward_compute_time"] - workload.loss_ns
    without = {key: value for key, value in log.items() if key != "rebuilt_per_bucket_param_indices"}
    (layout,) = read(json.dumps(without), model=workload).details["layouts"]
    assert layout["assignment"]["bucket_indices"] == [list(bucket) for bucket in assignment.bucket_indices]


def test_real_ranks_with_their_model() -> None:
    """T1 on two gloo ranks: the rebuilt buckets by index, and the times that DDP measured."""
    logs = [json.loads(path.read_text()) for path in files("log")]
    imported = read_ddp_log(files("log"), ImportOptions(model=model()))
    (layout,) = imported.details["layouts"]
    assert layout["bucket_bytes"] == list(SIZES)
    assert layout["assignment"]["bucket_indices"] == [list(bucket) for bucket in BUCKETS]
    assert layout["assignment"]["made_for"]["world_size"] == 2
    assert [row["backward_compute_ns"] for row in layout["times"]] == [
        log["avg_backward_compute_time"] for log in logs
    ]
    workload = imported.workload
    assert workload is not None
    assert workload.backward_ns == logs[0]["avg_backward_compute_time"] - model().loss_ns
    assert workload.ready_includes == ("copy_in", "launch", "interference")
    assert workload.band is not None
    assert workload.band[0] <= model().backward_ns / workload.backward_ns + 0.001
    assert [gradient.name for gradient in workload.gradients] == [g.name for g in model().gradients]
    assert [row.rank for row in imported.ranks] == [0, 1]
    assert imported.measurements == ()


def test_real_ranks_without_a_model() -> None:
    """One gradient a bucket; bucket 0 is ready as it was launched (A4), the last as backward ends."""
    log = json.loads(files("log")[0].read_text())
    workload = read_ddp_log(files("log")[:1], ImportOptions()).workload
    assert workload is not None
    ready = [workload.gradients[index] for index in workload.order()]
    launch = log["avg_backward_compute_time"] - log["avg_backward_compute_comm_overlap_time"]
    assert [gradient.num_bytes for gradient in ready] == list(SIZES)
    assert [gradient.ready_ns for gradient in ready] == [launch, log["avg_backward_compute_time"]]
    assert workload.estimated
    assert to_document(workload)["kind"] == "workload"


def test_in_a_job_log_as_python_prints_it() -> None:
    """Lines of other output, prefixes, Python's own quotes; a line that was cut is counted."""
    printed = "".join(path.read_text() for path in files("printed", "txt"))
    imported = read(printed + "{'bucket_sizes': '1, 2\n")
    (layout,) = imported.details["layouts"]
    assert layout["assignment"]["bucket_indices"] == [list(bucket) for bucket in BUCKETS]
    assert [row["rank"] for row in layout["times"]] == [0, 1]
    assert len(imported.dropped) == 1
    assert "1 line with DDP's keys but no whole object" in imported.dropped[0]


@needs_data
def test_a_published_cluster() -> None:
    """4x A40: 26 and 14 buckets of 330,405,888 bytes; backward ends 15.96 and 19.92 ms before the sync."""
    path = DATA / "ddp_logging" / "kopernik_a40x4_hostA_ddp_logging.json"
    imported = read_ddp_log([path], ImportOptions(world_size=4))
    small, large = imported.details["layouts"]
    assert (len(small["bucket_bytes"]), len(large["bucket_bytes"])) == (26, 14)
    assert sum(small["bucket_bytes"]) == sum(large["bucket_bytes"]) == 330_405_888
    assert small["times"][0]["after_backward_ns"] == 82_320_711 - 66_360_583
    assert large["times"][0]["after_backward_ns"] == 86_115_041 - 66_195_486
    workload = imported.workload
    assert workload is not None
    assert len(workload.gradients) == 26
    assert workload.gradients[workload.order()[0]].ready_ns == 94_177_047 - 66_360_583
    assert workload.band is not None
    assert workload.band[0] < 0.8 < 1.2 < workload.band[1]


def log_of(**changes: Any) -> str:
    log: dict[str, Any] = {
        "bucket_sizes": "164608",
        "rebuilt_bucket_sizes": "81792, 82816",
        "rebuilt_per_bucket_param_indices": "9 8 7 6 5 4, 3 2 1 0",
        "num_parameter_tensors": 10,
        "avg_backward_compute_time": 50_000,
    }
    return json.dumps({key: value for key, value in {**log, **changes}.items() if value is not None})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_parameter_tensors": 11}, "num_parameter_tensors: 11; the model 'mlp' has 10"),
        ({"total_parameter_size_bytes": 4}, "total_parameter_size_bytes: 4; the model 'mlp' has 164608"),
        ({"rebuilt_bucket_sizes": "81792, 82817"}, "bucket 1 has 82817 bytes; its gradients in the model"),
        ({"rebuilt_per_bucket_param_indices": "9 8, 10"}, "bucket 1 has index 10; the model 'mlp' has"),
        ({"rebuilt_bucket_sizes": "81792"}, "1 rebuilt_bucket_sizes for 2 lists of indices"),
        ({"rebuilt_bucket_sizes": "81792, x"}, "log 0: rebuilt_bucket_sizes: 'x' is not legal"),
        ({"avg_backward_compute_time": "long"}, "avg_backward_compute_time: 'long' is not legal"),
        (
            {"rebuilt_per_bucket_param_indices": None, "rebuilt_bucket_sizes": "81796, 82812"},
            "bucket 0: 81796 bytes fits nowhere",
        ),
    ],
)
def test_the_first_difference_from_the_model_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as error:
        read(log_of(**changes), model=model())
    assert says in str(error.value)


def test_the_constructors_buckets_where_nothing_was_rebuilt() -> None:
    """A2.2, A2.3: with find_unused_parameters buckets stay those of parameter order, last first."""
    buckets = tuple(map(tuple, initial_buckets(model(), [40_000])))
    text = log_of(
        rebuilt_bucket_sizes=None,
        rebuilt_per_bucket_param_indices=None,
        bucket_sizes=", ".join(map(str, bucket_bytes(model(), buckets))),
        find_unused_parameters=1,
    )
    (layout,) = read(text, model=model()).details["layouts"]
    assert len(buckets) == 3
    assert [sorted(bucket) for bucket in layout["assignment"]["bucket_indices"]] == list(map(list, buckets))
    assert layout["find_unused_parameters"] is True


def test_the_job_of_a_log_has_the_switches_that_it_tells() -> None:
    text = log_of(find_unused_parameters=1, broadcast_buffers=0, comm_hook="fp16_compress_hook")
    workload = read(text, model=model()).workload
    assert workload is not None
    assert workload.switches == {
        "broadcast_buffers": False,
        "comm_hook": "fp16_compress",
        "find_unused_parameters": True,
    }
    assert sim.assign(workload).ddp_kwargs["find_unused_parameters"] is True


def test_what_is_no_log() -> None:
    for text in ("", "hello\n", "{}", "[]", '{"a": 1}', '{"records": [{"b": 1}]}'):
        with pytest.raises(InputError, match=r"job\.log: no log of DistributedDataParallel"):
            read(text)
    with pytest.raises(InputError, match=r"bucket_sizes: missing"):
        read('{"prev_iteration_grad_ready_order_indices": "1, 0"}')
    with pytest.raises(InputError, match="no files"):
        read_ddp_log([], ImportOptions())


FUZZED = [
    json.loads(log_of(rank=rank, world_size=2, avg_backward_comm_time=9, dtypes="float")) for rank in (0, 1)
]


@settings(max_examples=tries(120), deadline=None)
@given(mutated({"records": FUZZED}), st.booleans())
def test_a_damaged_log_is_read_or_refused(text: str, aided: bool) -> None:
    """No error but our own."""
    with suppress(SimError):
        assert read(text, model=model() if aided else None).format == "ddp-log"
