"""How long steps of the textbook systems, ZeRO, Megatron-Core and FSDP2 take, to the nanosecond: examples by
hand, and what holds of any."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.clock import play, simpy_clock
from sim.clock.program import AROUND, BACKWARD_BEGIN, COPY_BACK, OPTIMIZER, Item, Program
from sim.clock.timeline import Outcome
from sim.errors import InputError
from sim.nouns.collective import EarlyLaunch, LateGradient
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import Iteration, Timeline
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.systems import zero
from sim.systems.registry import assign, write
from sim.tuner.others import best_of, unit_choices
from tests.effort import tries
from tests.handmade import handmade, points, wired
from tests.strategies import SCALES, TINY, hardwares, workloads
from tests.systems.cases import HARDWARE, both, four_gradients, simulate, three

# The textbook systems.


@pytest.mark.parametrize(
    ("policy", "launches", "available", "backward_end", "sync_end"),
    [
        ("per-parameter-sync", [35, 80, 130], [80, 130, 185], 35, 185),
        ("per-parameter-async", [30, 20, 10], [135, 100, 65], 35, 135),
        ("after-backward", [65, 150], [120, 205], 35, 205),
        ("arrival-counted", [40, 90], [110, 145], 95, 145),
        ("flat-views", [10, 30], [65, 105], 35, 105),
        ("last-hook", [40, 90], [110, 145], 95, 145),
        ("last-hook-safe", [40, 90], [110, 145], 95, 145),
    ],
)
def test_three_gradients_from_the_last_to_the_first(
    policy: str, launches: list[int], available: list[int], backward_end: int, sync_end: int
) -> None:
    """A7.1 to A7.4, A6.1: one channel, 40 ns a message, copies that take as long as their bytes."""
    timeline = simulate(policy, three(30, 20, 10))
    assert [bucket.launch_ns for bucket in timeline.buckets] == launches
    assert [bucket.available_ns for bucket in timeline.buckets] == available
    assert (timeline.backward_end_ns, timeline.sync_end_ns) == (backward_end, sync_end)


def test_a_bucket_does_not_wait_for_those_before_it() -> None:
    """A7.3: bucket 1 is complete first, is sent first and waited for first; DDP would hold it back (A3.5)."""
    timeline = simulate("flat-views", three(10, 20, 30))
    told = [(bucket.launch_ns, bucket.start_ns, bucket.available_ns) for bucket in timeline.buckets]
    assert told == [(30, 60, 115), (20, 20, 75)]


def test_each_gradient_is_copied_when_it_comes_or_all_when_the_bucket_is_sent() -> None:
    """A7.3, A6.1: the same copies, at other places."""
    spans = {}
    for policy in ("arrival-counted", "last-hook-safe"):
        copies = [span for span in simulate(policy, three(30, 20, 10)).compute if span.kind == "copy_in"]
        spans[policy] = [(span.gradient, span.bucket, span.start_ns, span.end_ns) for span in copies]
    assert spans["arrival-counted"] == [(2, None, 10, 40), (1, None, 50, 70), (0, None, 80, 90)]
    assert spans["last-hook-safe"] == [(None, 0, 10, 40), (None, 1, 60, 90)]


@settings(max_examples=tries(100), deadline=None)
@given(st.data())
def test_where_copying_in_is_free_the_counted_systems_are_one(data: st.DataObject) -> None:
    """They differ in when and whether they copy into a bucket, and in nothing else."""
    scale = data.draw(SCALES)
    workload = data.draw(workloads(scale, sparse=False))
    hardware = replace(data.draw(hardwares(scale)), copy_in_bytes_per_s=None)
    cap = data.draw(st.integers(0, 3 * scale.num_bytes)) / 2**20
    counted = [
        simulate(policy, workload, hardware, bucket_cap_mb=cap)
        for policy in ("arrival-counted", "flat-views", "last-hook-safe")
    ]
    assert counted[0].buckets == counted[1].buckets == counted[2].buckets


def changed(workload: Workload, *places: int, **fields: Any) -> Workload:
    """The workload with other ``fields`` of some gradients, or of all."""
    gradients = [
        replace(one, **fields) if not places or one.index in places else one for one in workload.gradients
    ]
    return replace(workload, gradients=tuple(gradients))


def test_a_bucket_that_closes_on_the_weight_of_a_norm_is_invalid() -> None:
    """T12: LayerNorm's bias is ready after its weight (A6.5), and declared after it."""
    workload = three(20, 32, 10)
    for place, name in enumerate(("norm.weight", "norm.bias", "head.weight")):
        workload = changed(workload, place, name=name)
    timeline = simulate("last-hook", workload)
    late = LateGradient(index=1, name="norm.bias", late_ns=12)
    early = EarlyLaunch(bucket=1, hooked=0, hooked_name="norm.weight", late=(late,))
    assert timeline.early_launches == (early,)
    (note,) = timeline.notes
    assert "bucket 1 when norm.weight is ready, without norm.bias" in note


def test_a_bucket_whose_hooked_parameter_is_unused_is_never_sent() -> None:
    """A6.4: it costs nothing, and is said to be wrong."""
    timeline = simulate("last-hook", changed(three(30, 20, 10), 0, ready_ns=None))
    assert [played.collective.bucket for played in timeline.collectives] == [0]
    assert timeline.early_launches == (EarlyLaunch(bucket=1, hooked=0, hooked_name="p0", is_sent=False),)
    assert "1 of 2 buckets are never sent" in timeline.notes[0]
    assert (timeline.buckets[1].num_bytes, timeline.buckets[1].available_ns) == (0, timeline.sync_end_ns)
    assert timeline.sync_end_ns == 95  # backward ends at 65, bucket 0 at 80, its copies take 15


@settings(max_examples=tries(200), deadline=None)
@given(st.data())
def test_flags_are_the_buckets_whose_last_parameter_is_not_the_last(data: st.DataObject) -> None:
    """A6.2, on any workload; where there is none, the pattern is the one that counts."""
    scale = data.draw(SCALES)
    workload = data.draw(workloads(scale, sparse=False, dtypes=("float32",), devices=(None,)))
    hardware = data.draw(hardwares(scale))
    cap = data.draw(st.integers(0, 3 * scale.num_bytes)) / 2**20
    timeline = simulate("last-hook", workload, hardware, bucket_cap_mb=cap)
    order = workload.order()
    expected = {}
    for number, bucket in enumerate(timeline.assignment.bucket_indices):
        after = order[order.index(bucket[-1]) + 1 :]
        hooked = workload.gradients[bucket[-1]].ready_ns
        late = [(i, (workload.gradients[i].ready_ns or 0) - (hooked or 0)) for i in bucket if i in after]
        if late:
            expected[number] = late
    flagged = {
        early.bucket: [(late.index, late.late_ns) for late in early.late] for early in timeline.early_launches
    }
    assert flagged == expected
    if not flagged:
        safe = simulate("last-hook-safe", workload, hardware, bucket_cap_mb=cap)
        assert (safe.buckets, safe.compute) == (timeline.buckets, timeline.compute)


# ZeRO.

ZERO = wired({0: 25})
COPYING = replace(ZERO, copy_in_bytes_per_s=1e10, copy_out_bytes_per_s=2e10)  # 40 bytes: 4 ns, 2 ns
TENS = {"reduce_bucket_size": 10}
BESIDE = {**TENS, "overlap_comm": True}
HELD = {"launch_ns": (20, 55, 90), "backward_end_ns": 90, "sync_end_ns": 115}


def gradients(count: int = 3, **more: Any) -> Workload:
    """Gradients of ten fp32 elements, ready 10 ns apart from the last to the first, and a tail of 10 ns."""
    ready = [10 * (count - index) for index in range(count)]
    return handmade(ready, 40, forward_ns=7, backward_ns=10 * count + 10, optimizer_ns=1000, **more)


def programs(
    workload: Workload, hardware: Hardware, policy: str = "zero2", **options: Any
) -> tuple[Program, ...]:
    """One step's programs."""
    return write(workload, hardware, assign(workload, policy, **options))


def work(program: Program, kind: int) -> int:
    return sum(item.duration_ns for item in program.lane if item.kind == kind)


def following(program: Program) -> tuple[int, int]:
    """What comes after synchronisation: besides the optimizer, and that."""
    outcome, optimizer_ns = play.play(program), work(program, OPTIMIZER)
    return outcome.lane_end_ns - outcome.sync_end_ns - optimizer_ns, optimizer_ns


def elements(program: Program) -> list[int]:
    return [collective.elements for collective in program.collectives[program.of_backward]]


@pytest.mark.parametrize(
    ("policy", "count", "hardware", "options", "times"),
    [
        # A5.6: compute and reduction k both go on at max(flush k, end of reduction k-1); the second flush
        # holds the lane from 30 on.
        ("zero2", 3, ZERO, BESIDE, {"ready_ns": (10, 20, 45), "launch_ns": (20, 45, 70)}),
        ("zero2", 3, ZERO, BESIDE, {"end_ns": (45, 70, 95), "backward_end_ns": 55, "sync_end_ns": 95}),
        # Without a reduction stream every flush holds the lane: so where collectives block the host, or it
        # tests for overflow.
        ("zero2", 3, ZERO, TENS, HELD),
        ("zero2", 3, ZERO, TENS | {"accelerator": "cpu"}, HELD),
        ("zero2", 3, ZERO, BESIDE | {"accelerator": "cpu"}, HELD),
        ("zero2", 3, ZERO, BESIDE | {"cpu_offload": True, "accelerator": "cpu"}, HELD),
        # A5.9: stage 1 without overlap reduces after backward, in parameter order.
        ("zero1", 3, ZERO, TENS, {"backward_end_ns": 40, "launch_ns": (40, 65, 90)}),
        # A5.5, A5.8. Two partitions of 16: the second gradient straddles them, 6 and 4. Flush 0 and 2:
        # division and the partition's buffer, 80 B, 4 ns. Flush 1: the same, and flattening two slices (40 B)
        # and copying back the larger (24 B), 3 ns.
        ("zero2", 3, COPYING, BESIDE, {"ready_ns": (14, 28, 57), "launch_ns": (24, 53, 85)}),
        ("zero2", 3, COPYING, BESIDE, {"end_ns": (49, 78, 110), "usable_ns": (53, 85, 114)}),
        ("zero2", 3, COPYING, BESIDE, {"backward_end_ns": 67, "sync_end_ns": 114}),
        # A5.2: a full bucket is flushed when the next gradient comes, not when it fills.
        (
            "zero2",
            3,
            ZERO,
            BESIDE | {"reduce_bucket_size": 20},
            {"ready_ns": (20, 30), "launch_ns": (30, 55)},
        ),
        # A5.4: a gradient larger than the bucket is not copied.
        ("zero2", 1, COPYING, {"reduce_bucket_size": 5}, {"ready_ns": (10,)}),
        # A5.8, A8.8: no copies in; flattening two gradients, dividing, copying back: 240 B, 12 ns. One
        # gradient alone is only divided, 40 B.
        (
            "zero2",
            3,
            COPYING,
            {"reduce_bucket_size": 20, "contiguous_gradients": False},
            {"ready_ns": (20, 67), "launch_ns": (30, 77), "available_ns": (67, 104)},
        ),
    ],
)
def test_when_zero_reduces(
    policy: str, count: int, hardware: Hardware, options: dict[str, Any], times: dict[str, Any]
) -> None:
    (program,) = programs(gradients(count), hardware, policy, **options)
    outcome = simpy_clock.play(program)
    assert outcome == play.play(program)
    backward = outcome.in_backward()
    ready, _, available = zip(*backward.lives_ns(), strict=True)
    lives = {"ready_ns": ready, "available_ns": available}
    assert {name: lives.get(name) or getattr(backward, name) for name in times} == times


def test_what_one_flush_sends() -> None:
    """A5.7: split where partitions meet. A5.9: stage 1 waits for no gradient's hook."""
    (program,) = programs(gradients(1), ZERO, reduce_bucket_size=5)
    assert elements(program) == [6, 4]
    (program,) = programs(gradients(), ZERO, "zero1", **TENS)
    assert [collective.gradient for collective in program.collectives[program.of_backward]] == [None] * 3
    assert assign(gradients(), "zero1", **TENS).bucket_indices == ((0,), (1,), (2,))


def test_a_cast_to_the_wire_and_back_is_paid_where_it_is_made() -> None:
    """A5.8, A8.8: ten elements, 40 B, travel as 20; partitions hold 6 and 4 of them.

    Cast there and back (60 B each), two slices flattened (40 B), 6 elements copied back (18 B): 118 B, 6 ns;
    division and the partition's buffer: 4 ns.
    """
    hardware = replace(COPYING, all_reduce=points({20: 20, 40: 40}))
    (program,) = programs(gradients(1), hardware, communication_data_type="fp16")
    (sent,) = program.collectives[program.of_backward]
    assert (sent.num_bytes, sent.dtype, sent.service_ns) == (20, "float16", 20)
    assert Item(COPY_BACK, 10, bucket=0) in program.lane


GATHERING = replace(ZERO, all_gather=points({128: 77}))
NO_NORM = {"compute_grad_norm": False, "gradient_clipping": 0}
HALVES = changed(gradients(), dtype="bfloat16", num_bytes=20)
GROUPED = replace(gradients(), gradients=tuple(replace(g, group=g.index % 2) for g in gradients().gradients))
PARAMETERS = (32, "float32", "parameters")


@pytest.mark.parametrize(
    ("workload", "options", "sent"),
    [
        (gradients(), {}, [(1, "float32", "norm"), PARAMETERS]),
        (GROUPED, {}, [(1, "float32", "norm")] * 2 + [(20, *PARAMETERS[1:]), (12, *PARAMETERS[1:])]),
        (gradients(), NO_NORM, [PARAMETERS]),
        # Half precision checks for overflow.
        (HALVES, {}, [(1, "uint8", "overflow"), (1, "float32", "norm"), (32, "bfloat16", "parameters")]),
        (HALVES, {"check_grad_overflow": False}, [(1, "float32", "norm"), (32, "bfloat16", "parameters")]),
    ],
)
def test_what_step_sends(workload: Workload, options: dict[str, Any], sent: list[Any]) -> None:
    """A5.11, A8.8: 30 elements are padded to 32, so that a rank optimises 16 of 30."""
    (program,) = programs(workload, GATHERING, **options)
    assert [(one.elements, one.dtype, one.purpose) for one in program.after] == sent


@pytest.mark.parametrize(
    ("dtype", "options", "bytes_each"),
    [
        ("float32", {}, 4 + 16 + 8 + 8 + 8),  # norm in fp64, flattened, clipped, copied into the parameters
        ("float32", NO_NORM, 8 + 8),
        ("bfloat16", {}, 4 + 2 + 16 + 4 + 6 + 8 + 6),  # overflow, norm, flattened, cast, clipped, copied
        ("bfloat16", {"check_grad_overflow": False}, 2 + 16 + 4 + 6 + 8 + 6),
        ("float16", {"gradient_clipping": 0}, 4 + 2 + 16 + 4 + 6 + 8 + 6),  # the loss scale is undone
    ],
)
def test_step_passes_over_its_partitions(dtype: str, options: dict[str, Any], bytes_each: int) -> None:
    """A5.12: 16 of 32 elements, at 1 byte copied a ns, which moves 2."""
    workload = changed(gradients(), dtype=dtype, num_bytes=10 * DTYPE_BYTES[dtype])
    (program,) = programs(workload, replace(ZERO, copy_out_bytes_per_s=1e9), **options)
    assert work(program, AROUND) == 16 * bytes_each // 2


def test_an_all_gather_without_a_curve_is_said_not_guessed() -> None:
    assert following(programs(gradients(), GATHERING)[0]) == (25 + 77, 533)
    (program,) = programs(gradients(), ZERO)
    assert following(program) == (25, 533)
    assert "1 all-gather(s) of parameters are not counted" in program.notes[0]


def test_accumulation_reduces_in_every_micro_batch_of_stage_2_and_in_the_last_of_stage_1() -> None:
    """A5.9."""
    for policy, sent in (("zero2", (3, 3)), ("zero1", (0, 3))):
        step = programs(gradients(), ZERO, policy, gradient_accumulation_steps=2, **TENS)
        assert tuple(len(elements(program)) for program in step) == sent
        assert [bool(program.after) for program in step] == [False, True]
        assert [work(program, OPTIMIZER) for program in step] == [0, 533]
    assert simpy_clock.play(step[0]).in_backward().sync_end_ns == 40


def test_offloading_copies_to_the_host_at_each_flush_and_back_in_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A8.8: 40 B to the host for each flush, and 16 elements, 64 B, back; at 1 byte a ns."""
    monkeypatch.setattr(zero, "_HOST_LINK_BYTES_PER_S", 1e9)
    (program,) = programs(gradients(), ZERO, cpu_offload=True, **TENS)
    assert work(program, AROUND) == 64
    outcome = simpy_clock.play(program).in_backward()
    available = [life[-1] for life in outcome.lives_ns()]
    assert available == [85, 144, 219]  # the second straddles: its busier owner has 6, 24 B


def test_an_unused_gradient_is_never_sent_but_has_its_place() -> None:
    """A8.8: it fills no bucket, and stays in the flat group that is gathered."""
    workload = changed(gradients(), 1, ready_ns=None)
    assert assign(workload, "zero2").bucket_indices == ((2, 0), (1,))
    (program,) = programs(workload, ZERO)
    assert (elements(program), program.carriers) == ([20], ((0,), ()))
    assert program.after[-1].elements == 32


zero_workloads = workloads(TINY, dtypes=("float32",), devices=(None,), sparse=False).map(
    lambda workload: replace(
        workload,
        gradients=tuple(
            replace(g, num_bytes=4 * (g.num_bytes + 1), wire_bytes=None) for g in workload.gradients
        ),
    )
)
zero_options = st.fixed_dictionaries(
    {"reduce_bucket_size": st.integers(1, 30)},
    optional={
        "overlap_comm": st.booleans(),
        "contiguous_gradients": st.booleans(),
        "reduce_scatter": st.booleans(),
        "gradient_accumulation_steps": st.integers(1, 3),
        "communication_data_type": st.sampled_from(["fp32", "bf16"]),
    },
)


@given(zero_workloads, hardwares(TINY, stretches=False), zero_options)
@settings(max_examples=tries(50))
def test_a_reduction_stream_never_makes_a_step_longer(
    workload: Workload, hardware: Hardware, options: dict[str, Any]
) -> None:
    """A5.6; and on the CPU overlap_comm changes nothing in stage 2."""
    ends = []
    for overlap, accelerator in ((True, "cuda"), (False, "cuda"), (True, "cpu")):
        how = options | {"overlap_comm": overlap, "accelerator": accelerator}
        ends.append(simpy_clock.play(programs(workload, hardware, "zero2", **how)[-1]).sync_end_ns)
    assert ends[0] <= ends[1] == ends[2]


# Megatron-Core: the example of RULES A9.

MEGATRON = four_gradients("m0", "m1", "m2", "m3")
HOOKS = {"overlap_grad_reduce": True, "bucket_size": 60}
SHARDED = HOOKS | {"use_distributed_optimizer": True}


def megatron(iteration: Iteration = "steady", workload: Workload = MEGATRON, **settings: Any) -> Timeline:
    assignment = sim.assign(workload, "megatron", **settings)
    return sim.simulate(workload, HARDWARE, assignment, iteration=iteration)


@pytest.mark.parametrize(
    ("iteration", "options", "times"),
    [
        ("steady", HOOKS, {"pre_forward_ns": 10, "backward_end_ns": 90, "sync_end_ns": 105}),
        (1, HOOKS, {"backward_end_ns": 70, "sync_end_ns": 140}),
        # 192 of 200 elements are this rank's, padding included.
        ("steady", SHARDED, {"post_sync_ns": 50, "optimizer_ns": 960}),
        # Gathers hide behind forward; zeroing takes 19.
        (
            "steady",
            SHARDED | {"overlap_param_gather": True},
            {"pre_forward_ns": 384 // 2 // 10 + 30, "post_sync_ns": 0},
        ),
        # Backward with its additions takes 70, forward 40; the last micro-batch reduces.
        (
            "steady",
            HOOKS | {"num_microbatches": 3},
            {"accumulation_ns": 2 * (70 + 40) + 10, "pre_forward_ns": 0, "sync_end_ns": 105},
        ),
    ],
)
def test_the_example_of_megatron(iteration: Any, options: dict[str, Any], times: dict[str, int]) -> None:
    timeline = megatron(iteration, **options)
    assert {name: getattr(timeline, name) for name in times} == times


def test_what_megatron_sends_when() -> None:
    """The first iteration after backward; sharded with padding; half precision as fp32. Bucket 1, which is
    complete first, does not wait for bucket 0."""
    timeline = megatron(**HOOKS)
    assert timeline.assignment.bucket_indices == ((3, 2), (1, 0))
    assert [(bucket.launch_ns, bucket.end_ns) for bucket in timeline.buckets] == [(34, 59), (80, 105)]
    first = megatron(iteration=1, **HOOKS)
    assert [(bucket.launch_ns, bucket.end_ns) for bucket in first.buckets] == [(77, 102), (115, 140)]
    sent = [(one.collective.kind, one.collective.elements) for one in megatron(**SHARDED).collectives]
    assert sent == [("reduce_scatter", 128), ("reduce_scatter", 256)]
    halves = tuple(replace(g, dtype="bfloat16", num_bytes=g.num_bytes // 2) for g in MEGATRON.gradients)
    half = megatron(workload=replace(MEGATRON, gradients=halves), **HOOKS, grad_reduce_in_fp32=True)
    assert [one.collective.num_bytes for one in half.collectives] == [280, 520]
    late = tuple(replace(g, ready_ns={0: 10, 1: 20, 2: 40, 3: 30}[g.index]) for g in MEGATRON.gradients)
    timeline = megatron(workload=replace(MEGATRON, gradients=late), **HOOKS)
    assert [one.collective.bucket for one in timeline.collectives] == [1, 0]


# FSDP2: the examples of RULES A10.

FSDP2 = four_gradients("tokens", "h.0", "h.1", "head")


def fsdp2(hardware: Hardware = HARDWARE, **settings: Any) -> Timeline:
    return both(FSDP2, hardware, sim.assign(FSDP2, "fully_shard", **settings))


def spans(timeline: Timeline) -> list[tuple[str, int, int]]:
    return [(one.collective.kind, one.start_ns, one.end_ns) for one in timeline.collectives]


def test_the_example_of_fsdp2() -> None:
    timeline = fsdp2()
    assert timeline.assignment.bucket_indices == ((2,), (1,), (0, 3))
    assert spans(timeline) == [
        ("all_gather", 0, 25),
        ("all_gather", 30, 55),
        ("reduce_scatter", 55, 80),
        ("reduce_scatter", 83, 108),
        ("reduce_scatter", 120, 145),
    ]
    assert (timeline.pre_forward_ns, timeline.backward_end_ns, timeline.sync_end_ns) == (60, 103, 145)
    assert timeline.optimizer_ns == 500


def test_the_example_of_fsdp2_on_replicas() -> None:
    """A10.7: each unit's all-reduce behind its reduce-scatter, on the one channel."""
    timeline = fsdp2(replace(HARDWARE, world_size=4), replicas=2)
    reduced = [one for one in spans(timeline) if one[0] != "all_gather"]
    assert reduced == [
        (kind, 55 + 25 * place, 80 + 25 * place)
        for place, kind in enumerate(("reduce_scatter", "all_reduce") * 3)
    ]
    carried = [one.collective.elements for one in timeline.collectives if one.collective.bucket is not None]
    assert carried == [50, 25, 30, 15, 120, 60]
    assert (timeline.pre_forward_ns, timeline.backward_end_ns, timeline.sync_end_ns) == (60, 103, 205)
    assert timeline.optimizer_ns == 500
    assert sum("HSDP" in note for note in timeline.notes) == 2


def test_explicit_prefetch_gathers_further_ahead() -> None:
    assert spans(fsdp2(backward_prefetch=2))[:2] == [("all_gather", 0, 25), ("all_gather", 25, 50)]


def test_a_gather_behind_another_takes_less() -> None:
    """A10.8, 10 of 25 ns. Forward: the root's to 25, that of `h.0` to 35; that of `h.1` waits for the root's
    copy out and is alone, 37 to 62. `tokens` to 47, `h.0` copied out and computed to 60, `h.1` to 77, `head`
    to 87. In backward the second of two that are launched together."""
    hardware = replace(HARDWARE, queued_gather_factor=0.4)
    gathers: dict[int, list[int]] = {}
    for ahead in (0, 2):
        (program,) = write(FSDP2, hardware, sim.assign(FSDP2, "fully_shard", backward_prefetch=ahead))
        again = [one for one in program.collectives if (one.kind, one.phase) == ("all_gather", "backward")]
        gathers[ahead] = [one.service_ns for one in again]
    assert gathers == {0: [25, 25], 2: [25, 10]}
    outcome: Outcome = play.play(program)
    assert outcome == simpy_clock.play(program)
    times = zip(program.before, outcome.start_ns, outcome.end_ns, strict=False)
    assert [end - start for _, start, end in times] == [25, 10, 25]
    assert outcome.ended_ns[program.place(BACKWARD_BEGIN, -1)] == 87
    with pytest.raises(InputError, match="queued_gather_factor: 0 is not legal; give a number above 0"):
        replace(HARDWARE, queued_gather_factor=0)


def test_forward_is_slowed_down_beside_gathers() -> None:
    """Twice as long: the root's copy out 25 to 49, `h.0`'s gather beside it to 50; `tokens` to 69 beside that
    of `h.1`, 50 to 75; `h.0` copied out to 75 and computed to 85, `h.1` copied out to 90; to 100 and 110."""
    assert fsdp2(replace(HARDWARE, compute_slowdown=2.0)).pre_forward_ns == 110 - FSDP2.forward_ns


def test_only_the_last_micro_batch_of_fsdp2_reduces() -> None:
    step = write(FSDP2, HARDWARE, sim.assign(FSDP2, "fully_shard", accumulation_steps=3))
    assert [len(program.before) for program in step] == [3, 3, 3]
    assert [len(program.collectives) for program in step] == [5, 5, 8]
    assert fsdp2(accumulation_steps=3).accumulation_ns > 0


@pytest.mark.parametrize(
    ("units", "indices"),
    [
        ("", ((0, 1, 2, 3),)),
        ("blocks", ((2,), (1,), (0, 3))),
        ("h.*", ((2,), (1,), (0, 3))),
        ("h", ((1, 2), (0, 3))),
        ("h.0+h.1", ((1, 2), (0, 3))),
        ("blocks, head", ((3,), (2,), (1,), (0,))),
    ],
)
def test_units_are_named_by_module(units: str, indices: tuple[tuple[int, ...], ...]) -> None:
    assert sim.assign(FSDP2, "fully_shard", units=units).bucket_indices == indices


def test_the_best_units_are_the_best_of_those_tried() -> None:
    assert unit_choices(FSDP2) == ["", "tokens,h.0,h.1,head", "h.0,h.1", "h.0+h.1"]
    found = best_of(FSDP2, HARDWARE, "fully_shard")
    tried = [sim.assign(FSDP2, "fully_shard", units=units) for units in unit_choices(FSDP2)]
    assert found.step_ns == min(sim.simulate(FSDP2, HARDWARE, one).step_ns for one in tried)
