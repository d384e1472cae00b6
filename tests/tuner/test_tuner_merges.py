"""Of whole buckets a search knows merges only, and every place where it answers says so."""

from dataclasses import replace

import pytest

import sim
from tests.handmade import handmade, wired

MS = 1_000_000
# 1.67 GiB in two blocks; the second is ready as backward ends, and all of it is exposed.
BLOCKS = handmade(
    [100 * MS, 40 * MS],
    [992_000_000, 800_000_000],
    name="blocks",
    names=("bucket 1", "bucket 0"),
    forward_ns=50 * MS,
    optimizer_ns=5 * MS,
    whole_buckets=True,
)
WIRE = wired({1 << power: 10_000 + (1 << power) // 44 for power in (20, 31)}, world_size=8)


@pytest.mark.parametrize("by_name", [False, True])
def test_the_proof_over_whole_buckets_is_one_over_merges(by_name: bool) -> None:
    answer = sim.tune(replace(BLOCKS, whole_buckets=None if by_name else True), WIRE)
    assert answer.proved_optimal
    assert answer.report.exposed_comm_ns > 20 * MS
    for sentence in (answer.proof, answer.gain.sentence):
        assert "over merges of the 2 buckets as recorded only" in sentence
    (note,) = answer.notes
    exposed = f"{answer.report.exposed_comm_ns / 1e6:.2f} ms that stay exposed"
    assert all(words in note for words in (exposed, "never divided", "record_shapes=True", "--model"))


def test_a_search_over_gradients_says_nothing_of_merges() -> None:
    named = tuple(replace(gradient, name=f"w{gradient.index}") for gradient in BLOCKS.gradients)
    for workload in (
        replace(BLOCKS, gradients=named, whole_buckets=None),
        replace(BLOCKS, whole_buckets=False),
    ):
        answer = sim.tune(workload, WIRE)
        assert answer.notes == ()
        assert "merge" not in answer.proof + answer.gain.sentence
