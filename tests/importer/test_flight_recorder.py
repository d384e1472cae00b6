"""Flight recorder dumps: clusters whose truth is known, real gloo ranks, and what hangs."""

import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.errors import InputError, NotModelledError, SimError
from sim.importer.flight_recorder.dumps import read_flight_recorder
from sim.importer.flight_recorder.repeating import Repeat, find_repeat
from sim.nouns.imported import Imported, ImportOptions
from sim.nouns.workload import Workload
from tests.effort import tries
from tests.handmade import handmade
from tests.importer.ddp_run import BUCKETS, SIZES, files, model
from tests.importer.mutations import mutated
from tests.importer.recorder_dumps import MS, Cluster, dump, dumps, entry, write


def read(documents: list[Any], **options: Any) -> Imported:
    with tempfile.TemporaryDirectory() as folder:
        return read_flight_recorder(write(documents, Path(folder)), ImportOptions(**options))


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    buckets = draw(st.lists(st.integers(2, 10**7), min_size=1, max_size=5, unique=True))
    ranks, steps = draw(st.integers(2, 5)), draw(st.integers(2, 6))
    late = st.lists(st.integers(0, 1_500_000), min_size=ranks, max_size=ranks, unique=True)
    return Cluster(
        elements=buckets,
        transfer_ns=draw(
            st.lists(st.integers(1000, 1_900_000), min_size=len(buckets), max_size=len(buckets))
        ),
        late_ns=draw(st.lists(late, min_size=steps, max_size=steps)),
        clock_ns=[0, *draw(st.lists(st.integers(-(10**12), 10**12), min_size=ranks - 1, max_size=ranks - 1))],
        timed=draw(st.booleans()),
    )


@settings(max_examples=tries(120), deadline=None)
@given(clusters())
def test_the_truth_of_a_cluster_comes_back(cluster: Cluster) -> None:
    """Fact 1 of clusters: a duration holds the wait; the least over ranks is the transfer."""
    imported = read(dumps(cluster))
    ranks, steps = len(cluster.clock_ns), len(cluster.late_ns)
    assert imported.details["steps"] == steps
    assert [row["num_bytes"] for row in imported.details["buckets"]] == [4 * n for n in cluster.elements]
    assert imported.details["world_size"] == ranks
    assert imported.details["step_ns"] == pytest.approx(cluster.step_ns, abs=1_500_000)
    if cluster.timed:
        curve = {point.num_bytes: point.duration_ns for point in imported.hardware[0].all_reduce}
        for elements, transfer_ns in zip(cluster.elements, cluster.transfer_ns, strict=True):
            assert curve[4 * elements] == pytest.approx(transfer_ns, abs=1)
    else:
        assert imported.hardware == ()
        assert any("TORCH_NCCL_ENABLE_TIMING" in sentence for sentence in imported.missing)
    last = [max(range(ranks), key=lambda rank, late=late: late[rank]) for late in cluster.late_ns]
    for rank, row in enumerate(imported.ranks):
        assert row.clock_offset_ns == cluster.clock_ns[rank]
        assert row.clock_scatter_ns == 0
        assert row.collectives == steps * len(cluster.elements)
        assert row.came_last == last.count(rank) * len(cluster.elements)


@settings(max_examples=tries(40), deadline=None)
@given(clusters(), st.data())
def test_a_ring_buffer_that_begins_in_mid_step_finds_the_same_buckets(
    cluster: Cluster, data: st.DataObject
) -> None:
    """The recorder keeps the newest entries: the pause of a forward tells where steps begin."""
    cut = data.draw(st.integers(0, len(cluster.elements) - 1))
    documents = dumps(Cluster(**{**cluster.__dict__, "late_ns": [*cluster.late_ns, *cluster.late_ns]}))
    for document in documents:
        document["entries"] = document["entries"][cut:]
    imported = read(documents)
    assert [row["num_bytes"] for row in imported.details["buckets"]] == [4 * n for n in cluster.elements]
    assert any("longest pause" in sentence for sentence in imported.assumed)


@settings(max_examples=tries(100), deadline=None)
@given(
    st.lists(st.integers(0, 3), max_size=8),
    st.lists(st.integers(0, 3), min_size=1, max_size=6),
    st.integers(2, 4),
    st.integers(0, 5),
    st.lists(st.integers(0, 3), max_size=4),
)
def test_the_longest_repeat_is_found(
    head: list[int], pattern: list[int], times: int, cut: int, end: list[int]
) -> None:
    """Whatever stands around it, with its last repeat cut off: no less is covered than was built."""
    tail = pattern * times + pattern[: min(cut, len(pattern) - 1)]
    sequence = head + tail + end
    found = find_repeat(sequence)
    assert found is not None
    part = sequence[found.start : found.stop]
    assert len(part) >= max(2 * found.period, len(tail))
    assert part[found.period :] == part[: -found.period]
    assert all(part[shorter:] != part[:-shorter] for shorter in range(1, found.period))


def test_nothing_repeats() -> None:
    assert find_repeat([]) is None
    assert find_repeat([1, 2, 3]) is None
    assert find_repeat([9, 1, 2, 1, 2]) == Repeat(start=1, stop=5, period=2)
    assert find_repeat([1, 2, 1, 2, 9, 3, 4, 3, 4]) == Repeat(start=5, stop=9, period=2)


def test_real_gloo_ranks() -> None:
    """T1's buckets: one in iteration 1, then the rebuild's broadcasts, then 20448 and 20704 elements."""
    imported = read_flight_recorder(files("recorder"), ImportOptions(model=model(), backward_ns=20_000))
    assert [row["num_bytes"] for row in imported.details["buckets"]] == list(SIZES)
    assert imported.details["steps"] == 5
    assert imported.details["assignment"]["bucket_indices"] == [list(bucket) for bucket in BUCKETS]
    assert imported.workload is not None
    assert imported.workload.backward_ns == 20_000
    assert imported.hardware == ()
    assert [row.collectives for row in imported.ranks] == [10, 10]
    assert sum(row.came_last or 0 for row in imported.ranks) == 10
    assert any("the clocks of all ranks agree" in sentence for sentence in imported.assumed)


def flat(sizes: list[int]) -> Workload:
    return handmade(range(len(sizes), 0, -1), shapes=[(size,) for size in sizes], name="flat")


def test_a_model_tells_where_a_step_begins_and_is_held_against_the_buckets() -> None:
    """The pause misleads here: most of the step lies between buckets 0 and 1."""
    entries = [
        entry(number, [30, 20, 10][number % 3], 10**15 + number // 3 * 90 * MS + [0, 80, 81][number % 3] * MS)
        for number in range(12)
    ]
    document = dump(entries, 1)
    unaided = read([document])
    assert [row["num_bytes"] for row in unaided.details["buckets"]] == [80, 40, 120]
    aided = read([document], model=flat([10, 20, 30]))
    assert [row["num_bytes"] for row in aided.details["buckets"]] == [120, 80, 40]
    assert aided.details["assignment"]["bucket_indices"] == [[2], [1], [0]]
    with pytest.raises(InputError, match=r"rank_0.json: bucket 0: 80 bytes fits nowhere"):
        read([document], model=flat([10, 20, 31]))


def test_one_rank_gives_an_upper_bound_and_says_so() -> None:
    cluster = Cluster(
        elements=[100], transfer_ns=[500_000], late_ns=[[0, 900_000], [0, 400_000]], clock_ns=[0, 0]
    )
    imported = read(dumps(cluster)[:1])
    assert imported.hardware[0].all_reduce[0].duration_ns == 900_000  # 500 us of transfer, 400 us of waiting
    assert imported.hardware[0].world_size == 2
    assert imported.hardware[0].spread == {}
    assert any("upper bounds" in sentence for sentence in imported.assumed)
    assert imported.ranks[0].came_last is None


def test_ends_that_were_seen_late_do_not_move_the_clocks() -> None:
    """The watchdog looks ten times a second: an offset below the scatter of the ends is none."""
    late = [[0, 300_000], [0, 200_000], [500_000, 0], [0, 100_000]]
    documents = dumps(
        Cluster(elements=[100], transfer_ns=[500_000], late_ns=late, clock_ns=[0, 0], timed=False)
    )
    for number, seen in enumerate(documents[1]["entries"]):
        seen["time_discovered_completed_ns"] += [90, 10, 40, 5][number] * MS
    rows = read(documents).ranks
    assert rows[1].clock_offset_ns == 25 * MS
    assert (rows[1].clock_scatter_ns or 0) > 25 * MS
    assert [row.came_last for row in rows] == [1, 3]


def test_what_hangs_is_named() -> None:
    """The usual reason for a dump: rank 1 never came to the third collective."""
    documents = [
        dump([entry(number, 100, 10**15 + number * MS) for number in range(count)], 2) for count in (3, 2)
    ]
    documents[0]["entries"][2].update(state="started", retired=False, time_discovered_completed_ns=0)
    found = read(documents).found
    assert "rank 0: all_reduce 3 of 400 bytes: started, not done" in found
    assert "rank 1 is behind: its last collective is 2 of 3" in found
    documents[1]["entries"][1]["input_sizes"] = [[7]]
    assert "ranks disagree on what collective 2 is (1 such)" in read(documents).found


def test_beside_the_buckets() -> None:
    """DDP's int32 map of used parameters and a loss of one element are no buckets; sizes may be text."""
    entries = []
    for step in range(3):
        for number, (elements, dtype) in enumerate([(50, "Float"), (4, "Int"), (1, "Float")]):
            created = 10**15 + step * 100 * MS + number * MS
            sized = {"input_sizes": f"[[{elements}]]", "input_dtypes": f'["{dtype}"]'}
            entries.append(entry(3 * step + number, elements, created, **sized))
    imported = read([dump(entries, 2)])
    assert [row["num_bytes"] for row in imported.details["buckets"]] == [200]
    assert imported.dropped == ("2 all_reduce a step that reduce no gradients (buffers, metrics, DDP's own)",)
    assert "the dumps of 1 of 2 ranks" in imported.missing


def test_refusals() -> None:
    sharded = [entry(n, 100, 10**15 + n, profiling_name="nccl:_reduce_scatter_base") for n in range(4)] + [
        entry(4, 10, 10**15 + 9)
    ]
    with pytest.raises(NotModelledError, match=r"1600 bytes reduce-scattered against 40 all-reduced.*FSDP"):
        read([dump(sharded, 2)])
    sends = [entry(n, 100, 10**15 + n, profiling_name="nccl:send 0->1", is_p2p=True) for n in range(4)]
    with pytest.raises(NotModelledError, match="a pipeline"):
        read([dump(sends, 2)])
    with pytest.raises(InputError, match="entries: none; the recorder was off"):
        read([dump([], 2)])
    with pytest.raises(InputError, match="no all_reduce of gradients"):
        read([dump([entry(0, 10, 1, profiling_name="nccl:broadcast")], 2)])
    with pytest.raises(InputError, match="no flight recorder dump"):
        read([[]])
    with pytest.raises(InputError, match=r"entries\.1: time_created_ns: None is not legal"):
        read([dump([entry(0, 10, 1), {**entry(1, 10, 1), "time_created_ns": None}], 2)])
    with pytest.raises(InputError, match="no files"):
        read_flight_recorder([], ImportOptions())


def test_files_without_ranks_in_their_names_keep_their_order(tmp_path: Path) -> None:
    cluster = Cluster(elements=[9], transfer_ns=[5], late_ns=[[0, 7], [0, 7]], clock_ns=[0, 0])
    paths = []
    for place, document in zip("ba", dumps(cluster), strict=True):
        paths.append(tmp_path / f"{place}_1.json")
        paths[-1].write_text(json.dumps(document))
    imported = read_flight_recorder(paths, ImportOptions())
    assert [(row.rank, row.came_last) for row in imported.ranks] == [(0, 0), (1, 2)]
    assert any("in the order of the files" in sentence for sentence in imported.assumed)


FUZZED = dumps(Cluster(elements=[5, 9], transfer_ns=[9, 9], late_ns=[[0, 3], [4, 0]], clock_ns=[0, 50]))


@settings(max_examples=tries(120), deadline=None)
@given(mutated(FUZZED[1]), st.booleans())
def test_a_damaged_dump_is_read_or_refused(text: str, second: bool) -> None:
    """No error but our own."""
    with suppress(SimError):
        assert read([FUZZED[0], text] if second else [text]).format == "flight-recorder"
