"""DDP's switches: what is refused, what holds of any legal combination, each one's times by hand (A2-A8)."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.clock import play
from sim.clock.program import OPTIMIZER
from sim.errors import AssignmentError, InputError, NotModelledError
from sim.nouns.assignment import Assignment
from sim.nouns.ddp_switches import ARGUMENTS, HOOKS, read_switches
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.timeline import Iteration, Timeline
from sim.nouns.workload import DTYPE_BYTES, Buffer, Gradient, Workload
from sim.systems.registry import write
from sim.units import transfer_ns
from tests.effort import tries
from tests.systems.ddp_jobs import ITERATIONS, MIB, Job, jobs, mlp

# Properties of any legal combination

iterations = st.sampled_from(ITERATIONS)


@settings(max_examples=tries(400))
@given(jobs(), iterations)
def test_both_engines_agree_under_any_switches(job: Job, iteration: Iteration) -> None:
    one, two = job.simulate(iteration, "simpy"), job.simulate(iteration, "analytic")
    assert replace(two, engine="simpy") == one
    assert replace(sim.summarize(two), engine="simpy") == sim.summarize(one)


def first_of_each_bucket(timeline: Timeline) -> list[Any]:
    seen = {}
    for played in timeline.collectives:
        if played.collective.bucket is not None:
            seen.setdefault(played.collective.bucket, played)
    return list(seen.values())


@settings(max_examples=tries(300))
@given(jobs(), iterations)
def test_launches_are_in_bucket_order_and_the_map_is_last(job: Job, iteration: Iteration) -> None:
    """A3.5, A3.9: the map follows the last bucket; in a static graph's first iteration it leads (A3.15)."""
    timeline = job.simulate(iteration)
    launched = first_of_each_bucket(timeline)
    buckets = [played.collective.bucket for played in launched]
    assert buckets == sorted(buckets)
    for before, after in itertools.pairwise(launched):
        assert before.launch_ns <= after.launch_ns
    for played in launched:
        assert played.launch_ns >= timeline.buckets[played.collective.bucket].ready_ns
    maps = [played for played in timeline.collectives if played.collective.bucket is None]
    is_first_static = bool(job.has("static_graph")) and iteration == 1
    assert len(maps) == (job.searches or is_first_static)
    for played in maps:
        assert played.collective.elements == len(job.workload.gradients)
        assert played.collective.dtype == "int32"
        others = [other.launch_ns for other in launched]
        assert all(
            played.launch_ns <= time if is_first_static else played.launch_ns >= time for time in others
        )


@settings(max_examples=tries(200))
@given(jobs(), iterations)
def test_every_bucket_is_sent_once_unless_skipped_or_by_noop(job: Job, iteration: Iteration) -> None:
    """A3.14: only buckets of nothing but unused parameters are skipped; not in a static graph's first."""
    timeline = job.simulate(iteration)
    sent = [played.collective.bucket for played in first_of_each_bucket(timeline)]
    skips = job.has("skip_all_reduce_unused_params") and not (job.has("static_graph") and iteration == 1)
    expected = [
        number
        for number, bucket in enumerate(timeline.assignment.bucket_indices)
        if not (skips and job.unused.issuperset(bucket))
    ]
    assert sent == ([] if job.has("comm_hook") == "noop" else expected)
    for number in set(range(len(timeline.buckets))) - set(sent):
        row = timeline.buckets[number]
        assert row.num_bytes == row.service_ns == 0
        assert row.launch_ns == row.start_ns == row.end_ns == row.ready_ns


@settings(max_examples=tries(200))
@given(jobs(static_graph=True, accumulation_steps=1))
def test_nothing_overlaps_in_a_static_graphs_first_iteration(job: Job) -> None:
    """A3.15: backward ends first, undisturbed; then everything is copied and launched."""
    timeline = job.simulate(1)
    assert timeline.backward_end_ns == job.workload.backward_ns
    assert all(played.launch_ns >= timeline.backward_end_ns for played in timeline.collectives)
    assert all(bucket.ready_ns >= timeline.backward_end_ns for bucket in timeline.buckets)


@settings(max_examples=tries(200))
@given(jobs(gradient_as_bucket_view=True), iterations)
def test_views_are_never_copied_back(job: Job, iteration: Iteration) -> None:
    timeline = job.simulate(iteration)
    assert all(bucket.available_ns == bucket.copy_out_start_ns for bucket in timeline.buckets)


@settings(max_examples=tries(200))
@given(jobs(batched_grad_copy=True), iterations)
def test_batched_copies_are_made_when_a_bucket_is_complete(job: Job, iteration: Iteration) -> None:
    """A3.4: one copy a bucket at most, none for a gradient, and it ends where the bucket is ready."""
    timeline = job.simulate(iteration)
    copies = [span for span in timeline.compute if span.kind == "copy_in"]
    assert all(span.gradient is None for span in copies)
    assert len({span.bucket for span in copies}) == len(copies)
    for span in copies:
        assert span.bucket is not None
        assert timeline.buckets[span.bucket].ready_ns == span.end_ns


@settings(max_examples=tries(200))
@given(jobs(gradient_as_bucket_view=True, set_to_none=False, comm_hook="allreduce"), iterations)
def test_kept_views_under_a_hook_are_not_copied_at_all(job: Job, iteration: Iteration) -> None:
    """A3.4, the cells that say nothing: only an unused gradient's slice is filled."""
    timeline = job.simulate(iteration)
    copied = {span.gradient for span in timeline.compute if span.kind == "copy_in"}
    assert copied <= job.unused


@settings(max_examples=tries(200))
@given(jobs(), iterations)
def test_micro_batches_before_the_last_send_nothing(job: Job, iteration: Iteration) -> None:
    """A3.12: nothing is copied or launched in their backward; the first takes as long as a plain one, the
    others add to its gradients.
    """
    assignment, workload = job.assign(iteration), job.workload
    programs = write(workload, job.hardware, assignment, iteration)
    steps = job.options.get("accumulation_steps", 1)
    assert len(programs) == steps
    for program in programs[:-1]:
        assert program.collectives == program.before
        assert program.carriers == ()
        assert OPTIMIZER not in [item.kind for item in program.lane]
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
@given(jobs(), iterations)
def test_buffers_are_broadcast_in_the_first_micro_batch_alone(job: Job, iteration: Iteration) -> None:
    """A3.16, A3.12: in the forward that follows a synchronised one."""
    programs = write(job.workload, job.hardware, job.assign(iteration), iteration)
    sent = [[c for c in program.before if c.purpose == "buffers"] for program in programs]
    syncs = job.options.get("broadcast_buffers", True) and job.workload.buffers
    assert [len(one) for one in sent] == [int(bool(syncs))] + [0] * (len(programs) - 1)


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


@settings(max_examples=tries(200))
@given(jobs(), iterations)
def test_triggers_are_the_hooks_that_complete_the_next_bucket(job: Job, iteration: Iteration) -> None:
    """A3.3, A3.5: the launching gradient is the last of all that buckets up to this one wait for; unused
    parameters wait for the first hook."""
    timeline = job.simulate(iteration)
    order = job.workload.order()
    place = {index: number for number, index in enumerate(order)} | dict.fromkeys(job.unused, 0)
    latest = 0
    triggers = []
    for bucket in timeline.assignment.bucket_indices:
        latest = max(latest, *(place[index] for index in bucket))
        triggers.append(order[latest])
    for played in timeline.collectives:
        collective = played.collective
        if job.has("static_graph") and iteration == 1:
            assert (collective.phase, collective.gradient) == ("end of backward", None)
        elif collective.bucket is not None:
            assert (collective.phase, collective.gradient) == ("backward", triggers[collective.bucket])
        else:
            assert (collective.phase, collective.gradient) == ("backward", triggers[-1])


# The dtype on the wire of each hook that sends a bucket as it is, once; "": the bucket's own.
SENT_AS = {"allreduce": "", "fp16_compress": "float16", "bf16_compress": "bfloat16"}


def test_what_a_hook_sends_is_tested() -> None:
    assert {*SENT_AS, "noop"} == set(HOOKS)


@settings(max_examples=tries(300))
@given(jobs(), iterations)
def test_bytes_on_the_wire(job: Job, iteration: Iteration) -> None:
    """A3.17: all elements, in the dtype of the hook."""
    timeline = job.simulate(iteration)
    hook = job.has("comm_hook")
    for bucket, row in zip(timeline.assignment.bucket_indices, timeline.buckets, strict=True):
        sent = [p.collective for p in timeline.collectives if p.collective.bucket == row.index]
        if not sent:
            continue
        (collective,) = sent
        members = [job.workload.gradients[index] for index in bucket]
        elements = sum(math.prod(gradient.shape) for gradient in members)
        dtype = members[0].dtype
        if hook:
            dtype = SENT_AS[hook] or dtype
        assert collective.dtype == dtype
        assert collective.elements == elements
        assert collective.num_bytes == elements * DTYPE_BYTES[dtype]


# Refusals


def gradient(index: int, ready_ns: int | None, **changes: Any) -> Gradient:
    shape = changes.pop("shape", (250 * (index + 1),))
    return Gradient(
        index=index,
        name=f"p{index}",
        shape=shape,
        dtype="float32",
        num_bytes=4 * math.prod(shape),
        ready_ns=ready_ns,
        **changes,
    )


def workload(*ready: int | None, **changes: Any) -> Workload:
    """Gradients of 1000, 2000, ... bytes, ready at these times in ns; backward 35 us, forward 7, loss 0.5."""
    fields: dict[str, Any] = {"forward_ns": 7_000, "backward_ns": 35_000, "optimizer_ns": 900, "loss_ns": 500}
    gradients = tuple(gradient(index, time) for index, time in enumerate(ready))
    return Workload(name="by hand", **{"gradients": gradients, **fields, **changes})


THREE = workload(30_000, 20_000, 10_000)
ONE_UNUSED = workload(30_000, None, 10_000)
HARDWARE = Hardware(  # copies in: 1 ns a byte, out: 2; an all-reduce: 4 us and 1 ns a byte
    name="by hand",
    world_size=2,
    all_reduce=(
        CurvePoint(num_bytes=0, duration_ns=4_000),
        CurvePoint(num_bytes=10_000, duration_ns=14_000),
    ),
    copy_in_bytes_per_s=1e9,
    copy_out_bytes_per_s=5e8,
)
SWITCHES = [
    *ARGUMENTS,
    "set_to_none",
]


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("value", [None, 0, 1, "yes", "True", [], 1.0])
def test_a_switch_is_true_or_false(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"ddp: {name}=.* is not legal; give true or false"):
        sim.assign(THREE, **{name: value})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"accumulation_steps": 0}, "accumulation_steps=0 is not legal; give an integer 1 to"),
        ({"accumulation_steps": True}, "accumulation_steps=True is not legal"),
        ({"accumulation_steps": 1.5}, "accumulation_steps=1.5 is not legal"),
        ({"accumulation_steps": 10**9}, "accumulation_steps=1000000000 is not legal"),
        ({"no_sync": 0}, "no_sync=0 is not legal; give true or false"),
        ({"comm_hook": "zip"}, "comm_hook='zip' is not legal; give one of fp16_compress"),
        ({"comm_hook": 3}, "comm_hook=3 is not legal"),
        ({"comm_hook": {"name": "noop"}}, "comm_hook={'name': 'noop'} is not legal; give one of"),
        ({"init_sync": "no"}, "init_sync='no' is not legal; give true or false"),
    ],
)
def test_illegal_values_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        sim.assign(THREE, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"sync_module_states": True},
            "sync_module_states=True is not modelled; modelled settings: gradient_",
        ),
        ({"check_reduction": True}, "check_reduction=True is not modelled"),
        ({"delay_all_reduce_named_params": [["p0", 0]]}, "delay_all_reduce_named_params=.* is not modelled"),
        ({"comm_hook": "powerSGD"}, "comm_hook='powerSGD' is not modelled: .*; give one of fp16_compress"),
        ({"mixed_precision": {"param_dtype": "float16"}}, "mixed_precision=.* is not modelled"),
        ({"join_inputs": [2, 4]}, r"join_inputs=\[2, 4\] is not modelled; modelled settings: "),
        ({"static_graph": True, "accumulation_steps": 2}, "static_graph and accumulation_steps: torch stops"),
    ],
)
def test_what_is_not_modelled_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(NotModelledError, match=words):
        sim.assign(THREE, **options)


def test_an_assignments_settings_are_checked_as_well() -> None:
    proposed = Assignment(bucket_indices=((0, 1, 2),), settings={"colour": "red"})
    with pytest.raises(NotModelledError, match="ddp: colour='red' is not modelled; modelled settings"):
        sim.simulate(THREE, HARDWARE, proposed)
    with pytest.raises(NotModelledError, match="settings: static_graph=True is not modelled; it is set"):
        sim.simulate(THREE, HARDWARE, replace(proposed, settings={"static_graph": True}))
    with pytest.raises(NotModelledError, match="ddp: process_group='x' is not modelled"):
        sim.simulate(THREE, HARDWARE, replace(proposed, settings={}, ddp_kwargs={"process_group": "x"}))


def test_off_is_legal_for_what_is_not_modelled() -> None:
    off = sim.assign(THREE, check_reduction=False, delay_all_reduce_named_params=None, init_sync=False)
    assert off.bucket_indices == sim.assign(THREE).bucket_indices


def test_forward_sync_buffers_goes_first() -> None:
    """torch 2.13's name wins over the older one."""
    for given_value in (True, False):
        made = sim.assign(THREE, forward_sync_buffers=given_value, broadcast_buffers=not given_value)
        assert read_switches(made).syncs_buffers is given_value


def test_unused_parameters_need_a_switch() -> None:
    """A3.21: DDP raises on them at the next forward."""
    for options in ({}, {"gradient_as_bucket_view": True}, {"accumulation_steps": 2}):
        with pytest.raises(
            NotModelledError, match=r"gradient 1 \(p1\) is never ready; DDP without find_unus"
        ):
            sim.assign(ONE_UNUSED, **options)
    sim.assign(ONE_UNUSED, find_unused_parameters=True)
    sim.assign(ONE_UNUSED, static_graph=True)


def test_a_hook_that_fires_twice_needs_a_static_graph() -> None:
    """A8.5."""
    twice = replace(THREE, gradients=(*THREE.gradients[:2], gradient(2, 10_000, uses=2)))
    for options in ({}, {"find_unused_parameters": True}):
        with pytest.raises(
            NotModelledError, match=r"gradient 2 \(p2\) becomes ready 2 times .*marked ready tw"
        ):
            sim.assign(twice, **options)
    assert sim.assign(twice, static_graph=True)


def test_a_backward_needs_a_gradient() -> None:
    with pytest.raises(InputError, match="no gradient ever becomes ready"):
        sim.assign(workload(None, None), find_unused_parameters=True)


@pytest.mark.parametrize(
    "options", [{"find_unused_parameters": True}, {"static_graph": True}], ids=["searched", "static"]
)
def test_where_sparse_gradients_stop_ddp(options: dict[str, Any]) -> None:
    sparse = gradient(1, None, sparse=True)
    job = replace(THREE, gradients=(THREE.gradients[0], sparse, THREE.gradients[2]))
    with pytest.raises(NotModelledError, match="sparse and never ready; DDP stops"):
        sim.assign(job, **options)


@pytest.mark.parametrize(
    ("buckets", "words"),
    [
        (((0, 1),), "index 2 .* is in no bucket"),
        (((0, 1), (2, 3)), "index 3 is not legal"),
    ],
)
def test_buckets_that_do_not_fit_are_refused_under_any_switch(buckets: Any, words: str) -> None:
    """A8.3; duplicates and empty buckets are no Assignment at all."""
    for kwargs in ({}, {"static_graph": True}, {"gradient_as_bucket_view": True}):
        with pytest.raises(AssignmentError, match=words):
            sim.simulate(THREE, HARDWARE, Assignment(bucket_indices=buckets, ddp_kwargs=kwargs))


# Times by hand: buckets [2] of 3000 bytes and [1, 0] of 3000


def by_hand(made_of: Workload, iteration: Iteration = "steady", **options: Any) -> Timeline:
    if "bucket_cap_mb" not in options:
        options.setdefault("bucket_cap_mb_list", [3000 / MIB])
    assignment = sim.assign(made_of, iteration=iteration, **options)
    one = sim.simulate(made_of, HARDWARE, assignment, "simpy", iteration=iteration)
    two = sim.simulate(made_of, HARDWARE, assignment, "analytic", iteration=iteration)
    assert one == replace(two, engine="simpy")
    return one


VIEW = {"gradient_as_bucket_view": True}
KEPT = {**VIEW, "set_to_none": False}
BATCHED = {"batched_grad_copy": True}
HOOK = {"comm_hook": "allreduce"}
Times = list[tuple[int, int, int, int]]


@pytest.mark.parametrize(
    ("options", "buckets", "backward_end_ns", "sync_end_ns"),
    [
        # copies of 3000, 2000 and 1000 ns; 6000 back for each bucket
        ({}, [(13_000, 13_000, 20_000, 47_000), (36_000, 36_000, 43_000, 53_000)], 41_000, 53_000),
        (
            {"set_to_none": False},
            [(13_000, 13_000, 20_000, 47_000), (36_000, 36_000, 43_000, 53_000)],
            41_000,
            53_000,
        ),
        # and the division of 3000 ns before each launch
        (HOOK, [(13_000, 16_000, 23_000, 53_000), (39_000, 42_000, 49_000, 59_000)], 47_000, 59_000),
        (VIEW, [(13_000, 13_000, 20_000, 41_000), (36_000, 36_000, 43_000, 43_000)], 41_000, 43_000),
        (VIEW | HOOK, [(13_000, 16_000, 23_000, 47_000), (39_000, 42_000, 49_000, 49_000)], 47_000, 49_000),
        (KEPT, [(13_000, 13_000, 20_000, 41_000), (36_000, 36_000, 43_000, 43_000)], 41_000, 43_000),
        # no copy at all
        (KEPT | HOOK, [(10_000, 13_000, 20_000, 41_000), (33_000, 36_000, 43_000, 43_000)], 41_000, 43_000),
        # copy and division of 6000 ns when a bucket is complete
        (BATCHED, [(16_000, 16_000, 23_000, 53_000), (42_000, 42_000, 49_000, 59_000)], 47_000, 59_000),
        (
            BATCHED | HOOK,
            [(13_000, 16_000, 23_000, 53_000), (39_000, 42_000, 49_000, 59_000)],
            47_000,
            59_000,
        ),
        (
            BATCHED | VIEW,
            [(16_000, 16_000, 23_000, 47_000), (42_000, 42_000, 49_000, 49_000)],
            47_000,
            49_000,
        ),
        # the division alone
        (
            BATCHED | KEPT,
            [(13_000, 13_000, 20_000, 41_000), (36_000, 36_000, 43_000, 43_000)],
            41_000,
            43_000,
        ),
        (
            BATCHED | KEPT | HOOK,
            [(10_000, 13_000, 20_000, 41_000), (33_000, 36_000, 43_000, 43_000)],
            41_000,
            43_000,
        ),
    ],
    ids=str,
)
def test_copies_by_hand(
    options: dict[str, Any], buckets: Times, backward_end_ns: int, sync_end_ns: int
) -> None:
    """A3.4, all five rows, with and without a hook: ready, launch, end, available."""
    timeline = by_hand(THREE, **options)
    assert timeline.assignment.bucket_indices == ((2,), (1, 0))
    rows = [(row.ready_ns, row.launch_ns, row.end_ns, row.available_ns) for row in timeline.buckets]
    assert rows == buckets
    assert (timeline.backward_end_ns, timeline.sync_end_ns) == (backward_end_ns, sync_end_ns)


def test_fp16_by_hand() -> None:
    """A3.17: cast and division of 3750 ns, half the bytes, a cast back of 4500 ns beside the lane."""
    timeline = by_hand(THREE, comm_hook="fp16_compress")
    rows = [(c.launch_ns, c.end_ns, c.usable_ns) for c in timeline.collectives]
    assert rows == [(16_750, 22_250, 26_750), (43_500, 49_000, 53_500)]
    assert [c.collective.num_bytes for c in timeline.collectives] == [1500, 1500]
    assert timeline.backward_end_ns == 48_500
    assert [row.available_ns for row in timeline.buckets] == [54_500, 60_500]


def test_noop_by_hand() -> None:
    """A3.17: copies in and back, and nothing sent: the compute-only baseline."""
    timeline = by_hand(THREE, comm_hook="noop")
    assert timeline.collectives == ()
    assert [row.ready_ns for row in timeline.buckets] == [13_000, 36_000]
    assert (timeline.backward_end_ns, timeline.sync_end_ns) == (41_000, 53_000)


FIND = {"find_unused_parameters": True, "bucket_cap_mb_list": [0]}  # buckets [2], [1], [0]


def test_find_unused_by_hand() -> None:
    """A3.3, A3.9, A3.13: the unused gradient in the first hook, marks in each, the map last; its bucket waits
    for the map before it is copied back, which it is not."""
    hardware = replace(HARDWARE, mark_used_ns=100, search_unused_ns=10)
    timeline = sim.simulate(ONE_UNUSED, hardware, sim.assign(ONE_UNUSED, **FIND))
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


def test_skipped_bucket_by_hand() -> None:
    """A3.14: nothing is sent for the bucket, the others and the map are as they were."""
    timeline = by_hand(ONE_UNUSED, **FIND, skip_all_reduce_unused_params=True)
    assert [c.collective.bucket for c in timeline.collectives] == [0, 2, None]
    assert [c.launch_ns for c in timeline.collectives] == [14_000, 35_000, 35_000]
    skipped = timeline.buckets[1]
    assert (skipped.num_bytes, skipped.launch_ns, skipped.end_ns) == (0, 11_000, 11_000)


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


def test_unused_parameters_are_rebuilt_last() -> None:
    """A8.1, as it was seen: six parameters in pairs, the fourth of them never ready."""
    six = Workload(
        name="six",
        gradients=tuple(gradient(k, None if k == 3 else 60 - 10 * k, shape=(250,)) for k in range(6)),
        forward_ns=0,
        backward_ns=60,
        optimizer_ns=0,
    )
    made = sim.assign(six, static_graph=True, bucket_cap_mb=2000 / MIB)
    assert made.bucket_indices == ((5, 4), (2, 1), (0, 3))


def test_accumulation_by_hand() -> None:
    """A3.12: two plain micro-batches of 42.5 us, buffers ahead of the first; one synchronised as ever."""
    buffered = replace(THREE, buffers=(Buffer(dtype="float32", num_bytes=96),))
    hardware = replace(HARDWARE, broadcast=(CurvePoint(num_bytes=0, duration_ns=300),))
    options: dict[str, Any] = {"bucket_cap_mb_list": [3000 / MIB]}
    alone = sim.simulate(buffered, hardware, sim.assign(buffered, **options))
    three = sim.simulate(buffered, hardware, sim.assign(buffered, accumulation_steps=3, **options))
    assert (alone.pre_forward_ns, alone.accumulation_ns) == (300, 0)
    assert (three.pre_forward_ns, three.accumulation_ns) == (0, 300 + 2 * 42_500)
    assert (three.buckets, three.sync_end_ns) == (alone.buckets, alone.sync_end_ns)
    assert sim.summarize(three).step_ns == sim.summarize(alone).step_ns + 2 * 42_500


def test_rebuilt_buckets_are_not_those_of_iteration_1() -> None:
    """A2.2, A2.6: an assignment of the steady state, by keywords, is refused before DDP has it."""
    workload = mlp()
    steady = sim.assign(workload, bucket_cap_mb=0.05)
    hardware = Hardware(name="h", world_size=2, all_reduce=(CurvePoint(num_bytes=0, duration_ns=5),))
    with pytest.raises(AssignmentError, match=r"iteration 1 DDP still has the 1 bucket\(s\)"):
        sim.simulate(workload, hardware, steady, iteration=1)
    injected = replace(steady, policy="explicit", ddp_kwargs={})
    assert len(sim.simulate(workload, hardware, injected, iteration=1).buckets) == 2
