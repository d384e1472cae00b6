"""DDP's switches: what holds of any legal combination, and each one's times by hand (A2-A8)."""

import itertools
import math
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.clock import play
from sim.clock.program import COPY_IN, OPTIMIZER
from sim.nouns.collective import Event
from sim.nouns.hardware import SLOWDOWNS
from sim.nouns.timeline import Iteration, Timeline
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.systems.registry import SYSTEMS, write
from sim.units import transfer_ns
from tests.effort import tries
from tests.handmade import handmade, wired
from tests.systems.cases import ITERATIONS, MIB, Job, both, jobs, mlp

# The dtype on the wire of each hook that sends a bucket as it is, once; "": the bucket's own.
SENT_AS = {"allreduce": "", "fp16_compress": "float16", "bf16_compress": "bfloat16"}
EACH = {"accumulation_steps": 3, "no_sync": False}

# Properties of any legal combination

iterations = st.sampled_from(ITERATIONS)


@settings(max_examples=tries(400))
@given(jobs(), iterations)
def test_both_engines_agree_under_any_switches(job: Job, iteration: Iteration) -> None:
    timeline = both(job.workload, job.hardware, job.assign(iteration), iteration=iteration)
    other = replace(job.simulate(iteration), engine="simpy")
    assert replace(sim.summarize(other), engine="simpy") == sim.summarize(timeline)


@settings(max_examples=tries(400))
@given(jobs(), iterations)
def test_what_is_sent_from_where(job: Job, iteration: Iteration) -> None:
    """A3.3, A3.5: in bucket order, each by the hook that completes the last of all buckets up to it; unused
    parameters wait for the first hook. A3.9: the map follows the last bucket; in a static graph's first
    iteration it leads, and all comes after backward (A3.15). A3.14: only buckets of nothing but unused
    parameters are skipped, not in that iteration. A3.17: all elements travel, in the hook's dtype."""
    timeline, gradients = job.simulate(iteration), job.workload.gradients
    is_first_static = bool(job.has("static_graph")) and iteration == 1
    buckets = timeline.assignment.bucket_indices
    order, hook = job.workload.order(), job.has("comm_hook")
    place = {index: number for number, index in enumerate(order)} | dict.fromkeys(job.unused, 0)
    skips = job.has("skip_all_reduce_unused_params") and not is_first_static
    expected, latest, trigger = [], 0, None
    for number, bucket in enumerate(buckets):
        latest = max(latest, *(place[index] for index in bucket))
        trigger = None if is_first_static else order[latest]
        dtype = (SENT_AS.get(hook) or gradients[bucket[0]].dtype) if hook else gradients[bucket[0]].dtype
        elements = sum(math.prod(gradients[index].shape) for index in bucket)
        if hook != "noop" and not (skips and job.unused.issuperset(bucket)):
            expected.append((number, trigger, elements, dtype))
    if job.searches or is_first_static:
        expected.insert(0 if is_first_static else len(expected), (None, trigger, len(gradients), "int32"))
    sent = [played.collective for played in timeline.collectives]
    assert [(one.bucket, one.gradient, one.elements, one.dtype) for one in sent] == expected
    assert all(one.num_bytes == one.elements * DTYPE_BYTES[one.dtype] for one in sent)
    assert {one.phase for one in sent} <= {"end of backward" if is_first_static else "backward"}
    launches = [played.launch_ns for played in timeline.collectives]
    assert launches == sorted(launches)
    for played in timeline.collectives:
        if played.collective.bucket is not None:
            assert played.launch_ns >= timeline.buckets[played.collective.bucket].ready_ns
    for number in set(range(len(buckets))) - {one.bucket for one in sent}:
        row = timeline.buckets[number]
        assert row.num_bytes == row.service_ns == 0
        assert row.launch_ns == row.start_ns == row.end_ns == row.ready_ns


@settings(max_examples=tries(400))
@given(jobs(), iterations)
def test_what_is_copied(job: Job, iteration: Iteration) -> None:
    """A3.4: views are never copied back, nor at all where they are kept under a hook, but for an unused one's
    zeros; batched copies are one a bucket at most, none for a gradient, and end where the bucket is ready."""
    timeline = job.simulate(iteration)
    copies = [span for span in timeline.compute if span.kind == "copy_in"]
    if job.has("gradient_as_bucket_view"):
        assert all(bucket.available_ns == bucket.copy_out_start_ns for bucket in timeline.buckets)
    if job.has("batched_grad_copy"):
        assert len({span.bucket for span in copies}) == len(copies)
        for span in copies:
            assert span.gradient is None
            assert span.bucket is not None
            assert timeline.buckets[span.bucket].ready_ns == span.end_ns
    elif (
        job.has("gradient_as_bucket_view")
        and not job.options.get("set_to_none", True)
        and job.has("comm_hook")
    ):
        assert {span.gradient for span in copies} <= job.unused


@settings(max_examples=tries(300))
@given(jobs(), iterations)
def test_micro_batches_before_the_last_send_nothing(job: Job, iteration: Iteration) -> None:
    """A3.12: nothing is copied or launched in their backward; the first takes as long as a plain one, the
    others add to its gradients. A3.16: buffers are broadcast in the forward that follows a synchronised one.
    """
    workload = job.workload
    programs = write(workload, job.hardware, job.assign(iteration), iteration)
    steps = job.options.get("accumulation_steps", 1)
    assert len(programs) == steps
    for program in programs[:-1]:
        assert program.collectives == program.before
        assert program.carriers == ()
        assert OPTIMIZER not in [item.kind for item in program.lane]
    sent = [[c for c in program.before if c.purpose == "buffers"] for program in programs]
    syncs = job.options.get("broadcast_buffers", True) and workload.buffers
    assert [len(one) for one in sent] == [int(bool(syncs))] + [0] * (steps - 1)
    plain = workload.forward_ns + workload.loss_ns + workload.backward_ns
    ahead = sum(sum(play.play(program).before_forward.values()) for program in programs[:-1])
    adding = max(0, steps - 2) * sum(additions(job))
    assert job.simulate(iteration).accumulation_ns == (steps - 1) * plain + ahead + adding


def additions(job: Job) -> list[int]:
    """What adding each gradient to an earlier one takes, in ns; to zeroed ones it is in recorded times."""
    rate = job.hardware.accumulate_bytes_per_s
    return [
        transfer_ns(gradient.num_bytes, rate)
        for gradient in job.workload.gradients
        if gradient.ready_ns is not None and not gradient.sparse and job.options.get("set_to_none", True)
    ]


@settings(max_examples=tries(200))
@given(jobs(**EACH))
def test_micro_batches_that_each_reduce_send_what_the_last_one_sends(job: Job) -> None:
    """A3.12; on a machine that nothing stretches all that a synchronised one does comes on top."""
    programs = write(job.workload, job.hardware, job.assign("steady"))
    sent = [[(c.kind, c.elements, c.dtype, c.purpose) for c in program.collectives] for program in programs]
    assert len(sent) == 3
    assert sent[0] == sent[1] == sent[2]
    optimized = [[one.duration_ns for one in program.lane if one.kind == OPTIMIZER] for program in programs]
    assert [sum(one) for one in optimized] == [0, 0, job.workload.optimizer_ns]
    job = replace(job, hardware=replace(job.hardware, **dict.fromkeys(SLOWDOWNS, 1.0)))
    kept = job.has("gradient_as_bucket_view") or not job.options.get("set_to_none", True)
    if not kept and not job.has("static_graph"):  # which torch refuses under no_sync
        under = replace(job, options=job.options | {"no_sync": True})
        assert job.simulate("steady").accumulation_ns >= under.simulate("steady").accumulation_ns


@settings(max_examples=tries(300))
@given(jobs())
def test_iterations_follow_from_each_other(job: Job) -> None:
    """A2.2 to A2.6: who rebuilds when, from what, in which order."""
    one, two, three, steady = (job.assign(iteration).bucket_indices for iteration in ITERATIONS)
    gradients = job.workload.gradients
    if job.searches:
        assert one == two == three == steady
    elif job.has("static_graph"):
        assert one == two
        assert three == steady
    else:
        assert two == three == steady
    assert [list(bucket) for bucket in one] == sorted(map(sorted, one), key=min, reverse=True)
    if not job.searches and "bucket_cap_mb_list" not in job.options:
        keys = {gradient.key for gradient in gradients if not gradient.sparse}
        assert len(one) == len(keys) + sum(gradient.sparse for gradient in gradients)
    if not job.searches:
        walked = (*job.workload.order(), *sorted(job.unused))  # A8.1
        for bucket in steady:
            assert list(bucket) == [index for index in walked if index in bucket]
        if len({gradient.key for gradient in gradients}) == 1 and not any(g.sparse for g in gradients):
            assert tuple(itertools.chain(*steady)) == walked


# Times by hand: buckets [2] and [1, 0] of 3000 bytes each. Copies in take 1 ns a byte, out 2; an all-reduce
# 4 us and 1 ns a byte.
STEP = {"forward_ns": 7_000, "backward_ns": 35_000, "optimizer_ns": 900, "loss_ns": 500}
THREE = handmade([30_000, 20_000, 10_000], [1000, 2000, 3000], **STEP)
ONE_UNUSED = handmade([30_000, None, 10_000], [1000, 2000, 3000], **STEP)
HARDWARE = wired({0: 4_000, 10_000: 14_000}, copy_in_bytes_per_s=1e9, copy_out_bytes_per_s=5e8)


def by_hand(made_of: Workload, iteration: Iteration = "steady", **options: Any) -> Timeline:
    if "bucket_cap_mb" not in options:
        options.setdefault("bucket_cap_mb_list", [3000 / MIB])
    assignment = sim.assign(made_of, iteration=iteration, **options)
    return both(made_of, HARDWARE, assignment, iteration=iteration)


VIEW = {"gradient_as_bucket_view": True}
KEPT = {**VIEW, "set_to_none": False}
BATCHED = {"batched_grad_copy": True}
HOOK = {"comm_hook": "allreduce"}


@pytest.mark.parametrize(
    ("options", "buckets", "backward_end_us"),
    [
        # copies of 3, 2 and 1 us; 6 back for each bucket
        ({}, [(13, 13, 20, 47), (36, 36, 43, 53)], 41),
        ({"set_to_none": False}, [(13, 13, 20, 47), (36, 36, 43, 53)], 41),
        # and the division of 3 us before each launch
        (HOOK, [(13, 16, 23, 53), (39, 42, 49, 59)], 47),
        (VIEW, [(13, 13, 20, 41), (36, 36, 43, 43)], 41),
        (VIEW | HOOK, [(13, 16, 23, 47), (39, 42, 49, 49)], 47),
        (KEPT, [(13, 13, 20, 41), (36, 36, 43, 43)], 41),
        (KEPT | HOOK, [(10, 13, 20, 41), (33, 36, 43, 43)], 41),  # no copy at all
        # copy and division of 6 us when a bucket is complete
        (BATCHED, [(16, 16, 23, 53), (42, 42, 49, 59)], 47),
        (BATCHED | HOOK, [(13, 16, 23, 53), (39, 42, 49, 59)], 47),
        (BATCHED | VIEW, [(16, 16, 23, 47), (42, 42, 49, 49)], 47),
        (BATCHED | KEPT, [(13, 13, 20, 41), (36, 36, 43, 43)], 41),  # the division alone
        (BATCHED | KEPT | HOOK, [(10, 13, 20, 41), (33, 36, 43, 43)], 41),
    ],
    ids=str,
)
def test_copies_by_hand(options: dict[str, Any], buckets: list[Any], backward_end_us: int) -> None:
    """A3.4, all five rows, with and without a hook: ready, launch, end, available."""
    timeline = by_hand(THREE, **options)
    assert timeline.assignment.bucket_indices == ((2,), (1, 0))
    rows = [(row.ready_ns, row.launch_ns, row.end_ns, row.available_ns) for row in timeline.buckets]
    assert rows == [tuple(1000 * time for time in bucket) for bucket in buckets]
    assert (timeline.backward_end_ns, timeline.sync_end_ns) == (1000 * backward_end_us, rows[-1][-1])


def test_fp16_by_hand() -> None:
    """A3.17: cast and division of 3750 ns, half the bytes, a cast back of 4500 ns beside the lane."""
    timeline = by_hand(THREE, comm_hook="fp16_compress")
    rows = [(c.launch_ns, c.end_ns, c.usable_ns) for c in timeline.collectives]
    assert rows == [(16_750, 22_250, 26_750), (43_500, 49_000, 53_500)]
    assert [c.collective.num_bytes for c in timeline.collectives] == [1500, 1500]
    assert timeline.backward_end_ns == 48_500
    assert [row.available_ns for row in timeline.buckets] == [54_500, 60_500]


FIND = {"find_unused_parameters": True, "bucket_cap_mb_list": [0]}  # buckets [2], [1], [0]


def test_find_unused_by_hand() -> None:
    """A3.3, A3.9, A3.13: the unused gradient in the first hook, marks in each, the map last; its bucket waits
    for the map before it is copied back, which it is not."""
    hardware = replace(HARDWARE, mark_used_ns=100, search_unused_ns=10)
    timeline = both(ONE_UNUSED, hardware, sim.assign(ONE_UNUSED, **FIND))
    spans = [(s.kind, s.start_ns, s.end_ns, s.gradient) for s in timeline.compute]
    assert spans == [
        ("backward", 0, 10_000, 2),
        ("hook", 10_000, 10_100, 2),
        ("copy_in", 10_100, 11_100, 1),  # zeros are written, not read
        ("copy_in", 11_100, 14_100, 2),
        ("backward", 14_100, 34_100, 0),
        ("hook", 34_100, 34_200, 0),
        ("copy_in", 34_200, 35_200, 0),
        ("backward", 35_200, 40_200, None),
    ]
    rows = [(c.collective.bucket, c.launch_ns, c.start_ns, c.end_ns) for c in timeline.collectives]
    assert rows == [
        (0, 14_100, 14_100, 21_100),
        (1, 14_100, 21_100, 27_100),
        (2, 35_200, 35_200, 40_200),
        (None, 35_200, 40_200, 44_212),
    ]
    assert [row.ready_ns for row in timeline.buckets] == [14_100, 11_100, 35_200]
    assert [row.available_ns for row in timeline.buckets] == [46_200, 46_200, 48_200]
    assert timeline.pre_forward_ns == 30


def test_a_bucket_with_an_unused_gradient_waits_for_the_map() -> None:
    """A3.13: one bucket, sent at 35 us for 10 us; the map ends at 49.012, and 4000 bytes go back then."""
    timeline = by_hand(ONE_UNUSED, find_unused_parameters=True, bucket_cap_mb_list=[1])
    assert [c.end_ns for c in timeline.collectives] == [45_000, 49_012]
    (row,) = timeline.buckets
    assert (row.end_ns, row.copy_out_start_ns, row.available_ns) == (45_000, 49_012, 57_012)


def test_a_used_model_waits_for_the_map_last() -> None:
    """A3.10: where nothing is unused here, the map is waited for behind all copies."""
    views = by_hand(THREE, **FIND | VIEW)
    used_map = views.collectives[-1]
    assert used_map.collective.purpose == "used parameters"
    assert [row.available_ns for row in views.buckets][-1] < views.sync_end_ns == used_map.end_ns


def test_static_graph_by_hand() -> None:
    """A3.15: map, copies in index order, the buckets, all after backward; A8.1: unused last when rebuilt."""
    first = by_hand(ONE_UNUSED, 1, static_graph=True, bucket_cap_mb=0)
    assert first.assignment.bucket_indices == ((0, 1, 2),)
    assert first.backward_end_ns == 35_000
    copies = [(s.gradient, s.start_ns, s.end_ns) for s in first.compute if s.kind == "copy_in"]
    assert copies == [(0, 35_000, 36_000), (1, 36_000, 37_000), (2, 37_000, 40_000)]
    rows = [(c.collective.purpose, c.launch_ns, c.start_ns, c.end_ns) for c in first.collectives]
    expected = [("used parameters", 35_000, 35_000, 39_012), ("gradients", 40_000, 40_000, 50_000)]
    assert rows == expected
    assert first.sync_end_ns == 58_000
    second = by_hand(ONE_UNUSED, 2, static_graph=True, bucket_cap_mb=0)
    assert [c.launch_ns for c in second.collectives] == [35_000]  # with the last gradient; no map
    third = sim.assign(ONE_UNUSED, iteration=3, static_graph=True, bucket_cap_mb=0)
    assert third.bucket_indices == ((2,), (0,), (1,))


TWO = handmade([2000, 1000], 1000, name="two", forward_ns=500, optimizer_ns=70)
# 100 ns a gradient for each copy, and 200 ns for adding it up.
ADDING = wired({0: 300}, copy_in_bytes_per_s=1e10, copy_out_bytes_per_s=1e10, accumulate_bytes_per_s=5e9)


def test_micro_batches_by_hand() -> None:
    """The first: 1000, copy 100, 1000, copy 100, 300 for both, two copies back. Later ones add 2 x 200."""
    step: dict[str, Any] = {"bucket_cap_mb": 25}
    once = sim.simulate(TWO, ADDING, sim.assign(TWO, **step))
    assert once.sync_end_ns == 2000 + 2 * 100 + 300 + 2 * 100
    each = sim.simulate(TWO, ADDING, sim.assign(TWO, **step, **EACH))
    assert each.sync_end_ns == once.sync_end_ns + 400
    assert each.accumulation_ns == (500 + 2700) + (500 + 3100)
    assert sim.summarize(each).step_ns == each.accumulation_ns + 500 + 3100 + 70
    under = sim.simulate(TWO, ADDING, sim.assign(TWO, **step, accumulation_steps=3))
    assert under.accumulation_ns == (500 + 2000) + (500 + 2000 + 400)
    assert under.sync_end_ns == once.sync_end_ns + 400


def test_views_stay_from_one_micro_batch_to_the_next() -> None:
    """A3.4: with a hook nothing is copied into a bucket in which the gradient lies already."""
    options = {"bucket_cap_mb": 25, "gradient_as_bucket_view": True, "comm_hook": "allreduce"}
    programs = write(TWO, ADDING, sim.assign(TWO, **options, **EACH))
    copies = [sum(item.kind == COPY_IN for item in program.lane) for program in programs]
    assert copies == [2, 0, 0]


def test_an_event_says_all_of_itself() -> None:
    """Bytes, the bucket it carries, and the parameter whose hook launches it, by index and name."""
    told = sim.explain(mlp(), bucket_cap_mb=0.05).iterations[1].events
    assert told[-1] == Event(
        kind="all_reduce",
        elements=20704,
        dtype="float32",
        num_bytes=82816,
        phase="backward",
        purpose="gradients",
        micro_batch=1,
        gradient=0,
        name="layers.0.weight",
        bucket=1,
        root=None,
    )
    assert (told[0].kind, told[0].purpose, told[0].num_bytes) == ("broadcast", "rebuilt buckets", 44)


@pytest.mark.parametrize("policy", [policy for policy in SYSTEMS if not policy.startswith("zero")])
def test_every_system_can_be_explained(policy: str) -> None:
    """All gradients travel in every iteration, under whatever system."""
    for step in sim.explain(mlp(), policy).iterations:
        carried = [event.elements for event in step.events if event.purpose == "gradients"]
        assert sum(carried) == 41152
        assert sorted(index for bucket in step.bucket_indices for index in bucket) == list(range(10))


@settings(max_examples=tries(100))
@given(jobs())
def test_times_do_not_matter_but_for_order(job: Job) -> None:
    longer = job.workload.retimed(
        lambda times: tuple(None if time is None else time * 7 + 3 for time in times),
        backward_ns=job.workload.backward_ns * 7 + 3,
        forward_ns=1,
    )
    longer = replace(longer, provenance=job.workload.provenance, extensions=job.workload.extensions)
    assert asdict(sim.explain(longer, **job.options)) == asdict(sim.explain(job.workload, **job.options))
