"""Memory of buckets: the peak by counting instants, and each system by hand."""

from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.errors import InputError
from sim.formats.documents import parse_body
from sim.metrics.step import buffer_memory, peak_bytes
from sim.nouns.memory import Holding, Memory
from sim.nouns.workload import Workload
from tests.handmade import handmade, wired
from tests.strategies import Case, cases

SIZES = (100, 200, 300, 400)  # ready from the last to the first, 100 ns apart
HARDWARE = wired({0: 300}, copy_in_bytes_per_s=10e9, copy_out_bytes_per_s=10e9)


def workload(*, sparse: tuple[int, ...] = (), unused: tuple[int, ...] = ()) -> Workload:
    ready = [None if index in unused else 100 * (len(SIZES) - index) for index in range(len(SIZES))]
    return handmade(ready, SIZES, sparse=sparse, backward_ns=100 * len(SIZES))


def memory(policy: str = "ddp", made: Workload | None = None, **options: Any) -> Memory:
    """Under a cap of 450 bytes, where the system has one: buckets [3, 2] and [1, 0]."""
    made = made or workload()
    caps = {} if policy.startswith(("per-parameter", "zero")) else {"bucket_cap_mb": 450 / 2**20}
    assignment = sim.assign(made, policy, **caps, **options)
    timeline = sim.simulate(made, HARDWARE, assignment)
    assert sim.simulate(made, HARDWARE, assignment, "analytic").holdings == timeline.holdings
    assert sim.summarize(timeline).memory == buffer_memory(timeline)
    return buffer_memory(timeline)


def held(made: Memory) -> tuple[int, int]:
    return (made.buffers_bytes, made.transient_peak_bytes)


holdings = st.builds(
    lambda start, length, size: Holding(what="any", num_bytes=size, start_ns=start, end_ns=start + length),
    st.integers(0, 20),
    st.integers(1, 10),
    st.integers(0, 99),
)


@given(st.lists(holdings, max_size=8))
def test_the_peak_is_the_worst_instant(made: list[Holding]) -> None:
    by_instant = [
        sum(one.num_bytes for one in made if one.start_ns <= now < one.end_ns)  # type: ignore[operator]
        for now in range(40)
    ]
    assert peak_bytes(made) == max(by_instant)


def test_what_takes_no_time_is_there_one_after_the_other() -> None:
    around = Holding(what="around", num_bytes=10, start_ns=0, end_ns=6)
    beside = [Holding(what="gone", num_bytes=9, start_ns=start, end_ns=start + 5) for start in (0, 5)]
    instants = [Holding(what="now", num_bytes=size, start_ns=5, end_ns=5) for size in (3, 10)]
    assert peak_bytes([around, *beside]) == 19
    assert peak_bytes([around, *beside, *instants]) == 20
    assert peak_bytes([Holding(what="for good", num_bytes=7)]) == 0


@given(cases())
def test_ddp_holds_all_dense_gradients_once_more_whatever_the_buckets_are(case: Case) -> None:
    """A3.4, A3.18; views hold none of them, and no more than one at a time on its way in."""
    dense = [gradient.num_bytes for gradient in case.workload.gradients if not gradient.sparse]
    made = buffer_memory(sim.simulate(case.workload, case.hardware, case.assignment, "analytic"))
    if case.assignment.ddp_kwargs:
        assert held(made) == (0, max(dense, default=0))
    else:
        assert held(made) == (sum(dense), 0)


def test_ddp_views() -> None:
    """A3.4: what is copied at once waits for its bucket; kept views are never copied."""
    assert held(memory(gradient_as_bucket_view=True)) == (0, 400)
    assert held(memory(gradient_as_bucket_view=True, batched_grad_copy=True)) == (0, 700)
    assert held(memory(gradient_as_bucket_view=True, set_to_none=False)) == (0, 0)
    assert held(memory(gradient_as_bucket_view=True, accumulation_steps=3)) == (0, 1000)
    assert held(memory(batched_grad_copy=True)) == (1000, 0)


def test_views_have_room_for_what_is_never_ready() -> None:
    made = workload(unused=(1,))
    options = {"find_unused_parameters": True, "gradient_as_bucket_view": True}
    assert held(memory(made=made, **options)) == (200, 400)


def test_a_sparse_gradient_has_no_buffer() -> None:
    """A3.18."""
    assert held(memory(made=workload(sparse=(0,)))) == (900, 0)


def test_narrow_copies_are_held_until_they_are_cast_back() -> None:
    """A3.17: both buckets are under way together, 350 and 150 bytes; the division alone needs nothing."""
    assert held(memory(comm_hook="fp16_compress")) == (1000, 500)
    assert held(memory(comm_hook="allreduce")) == (1000, 0)
    assert held(memory(comm_hook="noop")) == (1000, 0)


def test_mixed_precision_buffers_have_the_dtype_of_parameters() -> None:
    """A2.9: half the bytes, and gradients are cast out of them, so that views save nothing."""
    options = {"mixed_precision": {"param_dtype": "bfloat16"}, "gradient_as_bucket_view": True}
    assert held(memory(**options)) == (500, 0)
    wide = {"mixed_precision": {"param_dtype": "bfloat16", "reduce_dtype": "float32"}}
    assert held(memory(**wide)) == (500, 1000)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("per-parameter-sync", (0, 0)),
        ("per-parameter-async", (0, 0)),
        ("flat-views", (0, 0)),
        ("arrival-counted", (1000, 0)),
        ("after-backward", (0, 700)),
        ("last-hook", (0, 1000)),
        ("last-hook-safe", (0, 1000)),
    ],
)
def test_textbook_systems(policy: str, expected: tuple[int, int]) -> None:
    """A6, A7: in place, views, storage, or flattened one after the other or all at once."""
    assert held(memory(policy)) == expected
    assert memory(policy).largest_bucket_bytes == (400 if policy.startswith("per-parameter") else 700)


def test_a_bucket_of_one_gradient_is_not_flattened() -> None:
    assignment = sim.assign(workload(), "last-hook", bucket_cap_mb=0)
    assert held(buffer_memory(sim.simulate(workload(), HARDWARE, assignment))) == (0, 0)


def test_the_largest_bucket_and_the_peak() -> None:
    made = memory(comm_hook="fp16_compress")
    assert (made.largest_bucket_bytes, made.peak_bytes) == (700, 1500)


@given(
    st.builds(
        Memory,
        buffers_bytes=st.integers(0, 2**62),
        transient_peak_bytes=st.integers(0, 2**62),
        largest_bucket_bytes=st.integers(0, 2**62),
    )
)
def test_a_noun_comes_back_from_json(noun: Memory) -> None:
    assert parse_body(asdict(noun), Memory, "a file") == noun


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(InputError, match=r"buffers_bytes: -1 is not legal"):
        Memory(buffers_bytes=-1, transient_peak_bytes=0, largest_bucket_bytes=0)
