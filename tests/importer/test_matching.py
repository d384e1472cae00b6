"""Buckets told by their sizes, against DDP's rules (A1 to A2) on random models."""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.errors import InputError
from sim.importer.matching import match_buckets
from sim.nouns.assignment import bucket_bytes
from sim.nouns.workload import Gradient, Workload
from sim.systems.bucketing import initial_buckets, rebuilt_buckets
from tests.effort import tries
from tests.handmade import handmade

Buckets = tuple[tuple[int, ...], ...]


@st.composite
def models(
    draw: st.DrawFn,
    dtypes: tuple[str, ...],
    least_bytes: int = 1,
    most_bytes: int = 10**6,
    *,
    powers: bool = False,
) -> Workload:
    """A model whose gradients become ready in any order; some may stay unused.

    ``powers``: each size is a power of 2 of its own, so that no two sets of gradients have one sum.
    """
    count = draw(st.integers(1, 25))
    times = draw(st.permutations(range(count)))
    unused = draw(st.sets(st.integers(0, count - 1), max_size=2)) if count > 2 else set()
    exponents = draw(st.permutations(range(count)))
    sizes = st.integers(least_bytes, most_bytes)
    return handmade(
        [None if index in unused else times[index] for index in range(count)],
        [1 << exponents[index] if powers else draw(sizes) for index in range(count)],
        name="model",
        dtypes=[draw(st.sampled_from(dtypes)) for _ in range(count)],
        sparse=[index for index in range(count) if draw(st.integers(0, 9)) == 0],
        backward_ns=count,
    )


LIMITS = st.lists(st.integers(0, 3_000_000), min_size=1, max_size=4)


def as_tuples(buckets: list[list[int]]) -> Buckets:
    return tuple(map(tuple, buckets))


@settings(max_examples=tries(80), deadline=None)
@given(models(("float32",)), LIMITS)
def test_the_rebuilt_buckets_of_one_dtype_come_back(model: Workload, limits: list[int]) -> None:
    """A2.4, with sparse and unused gradients; every size is positive, so the answer is the only one."""
    buckets = as_tuples(rebuilt_buckets(model, limits))
    sizes = bucket_bytes(model, buckets)
    found = match_buckets(sizes, model, "log")
    assert bucket_bytes(model, found) == sizes
    if not any(gradient.sparse for gradient in model.gradients):
        assert found == buckets


@settings(max_examples=tries(80), deadline=None)
@given(
    models(("float32", "bfloat16", "float64"), powers=True),
    LIMITS,
    st.sampled_from(["ready", "last cap", "constructor"]),
)
def test_every_walk_of_ddp_comes_back(model: Workload, limits: list[int], walk: str) -> None:
    """A2.3 to A2.5 over several dtypes, where no two buckets can have one size."""
    if walk == "constructor":
        buckets = as_tuples(initial_buckets(model, limits))
    else:
        buckets = as_tuples(rebuilt_buckets(model, limits, set_last_bucket_cap=walk == "last cap"))
    found = match_buckets(bucket_bytes(model, buckets), model, "log")
    assert [sorted(bucket) for bucket in found] == [sorted(bucket) for bucket in buckets]


@settings(max_examples=tries(80), deadline=None)
@given(models(("float32", "bfloat16"), least_bytes=0, most_bytes=3), st.lists(st.integers(0, 6), min_size=1))
def test_where_sizes_leave_a_choice_the_answer_is_a_legal_one(model: Workload, limits: list[int]) -> None:
    """Empty tensors and equal sums: whatever comes back has these sizes, every index once, one dtype each."""
    sizes = bucket_bytes(model, as_tuples(rebuilt_buckets(model, limits)))
    found = match_buckets(sizes, model, "log")
    assert bucket_bytes(model, found) == sizes
    assert sorted(index for bucket in found for index in bucket) == list(range(len(model.gradients)))
    assert all(len({model.gradients[index].key for index in bucket}) == 1 for bucket in found)


@settings(max_examples=tries(100), deadline=None)
@given(models(("float32",)), LIMITS, st.data())
def test_a_wrong_size_is_named(model: Workload, limits: list[int], data: st.DataObject) -> None:
    """One bucket a byte larger fits nowhere, and the total tells."""
    sizes = list(bucket_bytes(model, as_tuples(rebuilt_buckets(model, limits))))
    wrong = data.draw(st.integers(0, len(sizes) - 1))
    sizes[wrong] += 1
    with pytest.raises(
        InputError, match=r"log: bucket \d+: \d+ bytes fits nowhere.*(the nearest is|all gradients are in)"
    ):
        match_buckets(sizes, model, "log")


def test_what_travels_matches_as_well() -> None:
    """Sparse gradients and compressed ones are seen with their wire sizes."""
    gradients = tuple(
        Gradient(
            index=i, name=f"p{i}", shape=(8,), dtype="float32", num_bytes=32, wire_bytes=16, ready_ns=9 - i
        )
        for i in range(5)
    )
    model = Workload(name="m", gradients=gradients, forward_ns=0, backward_ns=10, optimizer_ns=0)
    assert match_buckets([32, 48], model, "trace") == ((4, 3), (2, 1, 0))
    assert match_buckets([64, 96], model, "trace") == ((4, 3), (2, 1, 0))


def test_modules_that_are_wrapped_apart() -> None:
    """A bucket of one inside a bucket of another, as in DLRM: at full size and as half travels."""
    gradients = tuple(
        Gradient(
            index=i,
            name=f"p{i}",
            shape=(n,),
            dtype="float32",
            num_bytes=4 * n,
            wire_bytes=2 * n,
            ready_ns=9 - i,
        )
        for i, n in enumerate([7, 50, 112, 300, 20, 400])
    )
    model = Workload(name="m", gradients=gradients, forward_ns=0, backward_ns=10, optimizer_ns=0)
    expected = ((5, 4), (2,), (3, 1, 0))
    assert match_buckets([1680, 448, 1428], model, "trace") == expected
    assert match_buckets([840, 224, 714], model, "trace") == expected
    with pytest.raises(InputError, match="bucket 1: 448 bytes fits nowhere"):
        match_buckets([1680, 448, 1428], model, "trace", wrapped_apart=False)


def test_many_equal_gradients_of_many_dtypes_end_in_time() -> None:
    """The search branches at every bucket here; it gives up rather than hang."""
    dtypes = ("float32", "int32", "float64", "int64", "complex64", "float16", "bfloat16", "int8")
    order = list(range(160))
    random.Random(7).shuffle(order)
    model = handmade(order, dtypes=[dtypes[i % 8] for i in range(160)])
    start = time.process_time()
    with pytest.raises(InputError, match="fits nowhere"):
        match_buckets([16] * 79 + [15, 1], model, "t")
    assert time.process_time() - start < 10
