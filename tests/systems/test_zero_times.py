"""How long a step under ZeRO takes: cases worked out by hand, and what holds for any."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.clock import play, simpy_clock
from sim.clock.program import AROUND, COPY_BACK, OPTIMIZER, Item, Program
from sim.clock.timeline import Outcome
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.systems import zero
from sim.systems.registry import assign, write
from tests.effort import tries
from tests.handmade import handmade
from tests.strategies import TINY, hardwares, workloads

FLAT = (CurvePoint(num_bytes=0, duration_ns=25),)
HARDWARE = Hardware(name="h", world_size=2, all_reduce=FLAT)
COPYING = replace(HARDWARE, copy_in_bytes_per_s=1e10, copy_out_bytes_per_s=2e10)  # 40 bytes: 4 ns, 2 ns
OVERLAP = {"reduce_bucket_size": 10, "overlap_comm": True}


def gradients(count: int = 3, **more: Any) -> Workload:
    """Gradients of ten fp32 elements, ready 10 ns apart from the last to the first, and a tail of 10 ns."""
    ready = [10 * (count - index) for index in range(count)]
    return handmade(ready, 40, forward_ns=7, backward_ns=10 * count + 10, optimizer_ns=1000, **more)


def programs(
    workload: Workload, hardware: Hardware, policy: str = "zero2", **options: Any
) -> tuple[Program, ...]:
    """One step's programs."""
    assignment = assign(workload, policy, **options)
    return write(workload, hardware, assignment, "steady")


def played(
    workload: Workload, hardware: Hardware = HARDWARE, policy: str = "zero2", **options: Any
) -> Outcome:
    """The only micro-batch of a step, on which both engines agree."""
    (program,) = programs(workload, hardware, policy, **options)
    outcome = simpy_clock.play(program)
    assert outcome == play.play(program)
    return outcome.in_backward()


def work(program: Program, kind: int) -> int:
    return sum(item.duration_ns for item in program.lane if item.kind == kind)


def following(program: Program) -> tuple[int, int]:
    """What comes after synchronisation: besides the optimizer, and that."""
    outcome, optimizer_ns = play.play(program), work(program, OPTIMIZER)
    return outcome.lane_end_ns - outcome.sync_end_ns - optimizer_ns, optimizer_ns


def test_under_overlap_comm_one_reduction_is_under_way_at_most() -> None:
    """A5.6: compute and reduction k both go on at max(flush k, end of reduction k-1)."""
    outcome = played(gradients(), **OVERLAP)
    assert outcome.ready_ns == (10, 20, 45)  # the second flush holds the lane from 30 on
    assert outcome.launch_ns == outcome.start_ns == (20, 45, 70)
    assert outcome.end_ns == (45, 70, 95)
    assert (outcome.backward_end_ns, outcome.sync_end_ns) == (55, 95)


@pytest.mark.parametrize(
    "options",
    [
        {"reduce_bucket_size": 10},
        {"reduce_bucket_size": 10, "accelerator": "cpu"},
        OVERLAP | {"accelerator": "cpu"},  # collectives block the host: nothing is hidden
        OVERLAP | {"cpu_offload": True, "accelerator": "cpu"},  # the host tests for overflow
    ],
)
def test_without_a_reduction_stream_every_flush_holds_the_lane(options: dict[str, Any]) -> None:
    outcome = played(gradients(), **options)
    assert outcome.launch_ns == (20, 55, 90)
    assert (outcome.backward_end_ns, outcome.sync_end_ns) == (90, 115)


def test_stage_1_without_overlap_reduces_after_backward_in_parameter_order() -> None:
    """A5.9."""
    outcome = played(gradients(), policy="zero1", reduce_bucket_size=10)
    assert (outcome.backward_end_ns, outcome.launch_ns) == (40, (40, 65, 90))
    assert [collective.gradient for collective in outcome.program.collectives] == [None] * 3
    assert assign(gradients(), "zero1", reduce_bucket_size=10).bucket_indices == ((0,), (1,), (2,))


def test_copies_in_hold_the_lane_and_copies_of_what_is_owned_the_reduction_stream() -> None:
    """A5.5, A5.8. Two partitions of 16: the second gradient straddles them, 6 and 4.

    Flush 0 and 2: division and the partition's buffer, 80 B, 4 ns. Flush 1: the same, and flattening two
    slices (40 B) and copying back the larger (24 B), 3 ns.
    """
    outcome = played(gradients(), COPYING, **OVERLAP)
    assert outcome.ready_ns == (14, 28, 57)
    assert outcome.launch_ns == (24, 53, 85)
    assert outcome.end_ns == (49, 78, 110)
    assert outcome.usable_ns == (53, 85, 114)
    assert (outcome.backward_end_ns, outcome.sync_end_ns) == (67, 114)


def test_a_full_bucket_waits_for_the_gradient_that_does_not_fit() -> None:
    """A5.2: flushed when the next one comes, not when it fills."""
    outcome = played(gradients(), reduce_bucket_size=20, overlap_comm=True)
    assert outcome.ready_ns[0] == 20
    assert outcome.launch_ns == (30, 55)


def test_a_gradient_larger_than_the_bucket_is_not_copied() -> None:
    """A5.4: it is reduced when the next one arrives, and split where partitions meet (A5.7)."""
    outcome = played(gradients(1), COPYING, reduce_bucket_size=5)
    assert outcome.ready_ns == (10,)
    (program,) = programs(gradients(1), HARDWARE, reduce_bucket_size=5)
    assert [collective.elements for collective in program.collectives[program.of_backward]] == [6, 4]


def test_without_contiguous_gradients_the_bucket_is_flattened_when_it_is_flushed() -> None:
    """A5.8, A8.8: no copies in; flattening two gradients, dividing, copying back: 240 B, 12 ns.

    One gradient alone is only divided, 40 B.
    """
    outcome = played(gradients(), COPYING, reduce_bucket_size=20, contiguous_gradients=False)
    assert outcome.ready_ns == (20, 67)
    assert outcome.launch_ns == (30, 77)
    assert outcome.available_ns == (67, 104)


def test_a_cast_to_the_wire_and_back_is_paid_where_it_is_made() -> None:
    """A5.8, A8.8: ten elements, 40 B, travel as 20; partitions hold 6 and 4 of them.

    Cast there and back (60 B each), two slices flattened (40 B), 6 elements copied back (18 B): 118 B, 6 ns;
    division and the partition's buffer: 4 ns.
    """
    curve = (CurvePoint(num_bytes=20, duration_ns=20), CurvePoint(num_bytes=40, duration_ns=40))
    (program,) = programs(gradients(1), replace(COPYING, all_reduce=curve), communication_data_type="fp16")
    (sent,) = program.collectives[program.of_backward]
    assert (sent.num_bytes, sent.dtype, sent.service_ns) == (20, "float16", 20)
    assert Item(COPY_BACK, 10, bucket=0) in program.lane


def test_step_sends_norms_and_parameters_and_works_on_its_share() -> None:
    """A5.11, A8.8: 30 elements are padded to 32, so that a rank optimises 16 of 30."""
    gathering = replace(HARDWARE, all_gather=(CurvePoint(num_bytes=128, duration_ns=77),))
    (program,) = programs(gradients(), gathering)
    assert [(c.kind, c.elements, c.purpose) for c in program.after] == [
        ("all_reduce", 1, "norm"),
        ("all_gather", 32, "parameters"),
    ]
    assert following(program) == (25 + 77, 533)
    grouped = replace(
        gradients(), gradients=tuple(replace(g, group=g.index % 2) for g in gradients().gradients)
    )
    (program,) = programs(grouped, gathering)
    assert [c.elements for c in program.after] == [1, 1, 20, 12]
    (program,) = programs(gradients(), gathering, compute_grad_norm=False, gradient_clipping=0)
    assert [c.elements for c in program.after] == [32]


@pytest.mark.parametrize(
    ("dtype", "options", "bytes_each"),
    [
        ("float32", {}, 4 + 16 + 8 + 8 + 8),  # norm in fp64, flattened, clipped, copied into the parameters
        ("float32", {"compute_grad_norm": False, "gradient_clipping": 0}, 8 + 8),
        ("bfloat16", {}, 4 + 2 + 16 + 4 + 6 + 8 + 6),  # overflow, norm, flattened, cast, clipped, copied
        ("bfloat16", {"check_grad_overflow": False}, 2 + 16 + 4 + 6 + 8 + 6),
        ("float16", {"gradient_clipping": 0}, 4 + 2 + 16 + 4 + 6 + 8 + 6),  # the loss scale is undone
    ],
)
def test_step_passes_over_its_partitions(dtype: str, options: dict[str, Any], bytes_each: int) -> None:
    """A5.12: 16 of 32 elements, at 1 byte copied a ns, which moves 2."""
    workload = gradients()
    size = 10 * DTYPE_BYTES[dtype]
    members = tuple(replace(g, dtype=dtype, num_bytes=size) for g in workload.gradients)
    hardware = replace(HARDWARE, copy_out_bytes_per_s=1e9)
    (program,) = programs(replace(workload, gradients=members), hardware, **options)
    assert work(program, AROUND) == 16 * bytes_each // 2


def test_half_precision_checks_for_overflow() -> None:
    members = tuple(replace(g, dtype="bfloat16", num_bytes=20) for g in gradients().gradients)
    halves = replace(gradients(), gradients=members)
    (program,) = programs(halves, HARDWARE)
    sent = [(1, "uint8"), (1, "float32"), (32, "bfloat16")]
    assert [(c.elements, c.dtype) for c in program.after] == sent
    (program,) = programs(halves, HARDWARE, check_grad_overflow=False)
    assert [(c.elements, c.dtype) for c in program.after] == sent[1:]


def test_an_all_gather_without_a_curve_is_said_not_guessed() -> None:
    (program,) = programs(gradients(), HARDWARE)
    assert following(program) == (25, 533)
    assert "1 all-gather(s) of parameters are not counted" in program.notes[0]


def test_accumulation_reduces_in_every_micro_batch_of_stage_2_and_in_the_last_of_stage_1() -> None:
    """A5.9."""
    for policy, sent in (("zero2", (3, 3)), ("zero1", (0, 3))):
        step = programs(gradients(), HARDWARE, policy, reduce_bucket_size=10, gradient_accumulation_steps=2)
        assert tuple(len(program.collectives[program.of_backward]) for program in step) == sent
        assert [bool(program.after) for program in step] == [False, True]
        assert [work(program, OPTIMIZER) for program in step] == [0, 533]
    first = programs(gradients(), HARDWARE, "zero1", gradient_accumulation_steps=2)[0]
    assert simpy_clock.play(first).in_backward().sync_end_ns == 40


def test_offloading_copies_to_the_host_at_each_flush_and_back_in_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A8.8: 40 B to the host for each flush, and 16 elements, 64 B, back; at 1 byte a ns."""
    options = {"reduce_bucket_size": 10, "cpu_offload": True}
    monkeypatch.setattr(zero, "_HOST_LINK_BYTES_PER_S", 1e9)
    (program,) = programs(gradients(), HARDWARE, **options)
    assert work(program, AROUND) == 64
    outcome = simpy_clock.play(program).in_backward()
    assert outcome.available_ns == (85, 144, 219)  # the second straddles: its busier owner has 6, 24 B


def test_an_unused_gradient_is_never_sent_but_has_its_place() -> None:
    """A8.8: it fills no bucket, and stays in the flat group that is gathered."""
    first, second, third = gradients().gradients
    workload = replace(gradients(), gradients=(first, replace(second, ready_ns=None), third))
    assert assign(workload, "zero2").bucket_indices == ((2, 0), (1,))
    (program,) = programs(workload, HARDWARE)
    assert [collective.elements for collective in program.collectives[program.of_backward]] == [20]
    assert program.carriers == ((0,), ())
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
policies = st.sampled_from(["zero1", "zero2"])


@given(zero_workloads, hardwares(TINY, stretches=False), zero_options)
@settings(max_examples=tries(50))
def test_a_reduction_stream_never_makes_a_step_longer(
    workload: Workload, hardware: Hardware, options: dict[str, Any]
) -> None:
    """A5.6; and on the CPU overlap_comm changes nothing in stage 2."""
    ends = {}
    for name, overlap, accelerator in (
        ("stream", True, "cuda"),
        ("serial", False, "cuda"),
        ("cpu", True, "cpu"),
    ):
        options |= {"overlap_comm": overlap, "accelerator": accelerator}
        (*_, program) = programs(workload, hardware, "zero2", **options)
        ends[name] = simpy_clock.play(program).sync_end_ns
    assert ends["stream"] <= ends["serial"] == ends["cpu"]
