"""What the tuner says that each knob and rule reaches, replayed for real."""

from pathlib import Path

import pytest

from sim.formats.record_files import load_record, start_record
from sim.nouns.workload import Workload
from sim.validator.hosts.launch import Place
from sim.validator.replay import replay
from tests.dist.evidence.families import families
from tests.handmade import wired

pytestmark = pytest.mark.dist

MS = 1_000_000
TWO = wired({0: MS, 1 << 20: 3 * MS}, name="two")


@pytest.mark.slow
def test_every_knob_is_replayed_with_its_own_buckets(small_workload: Workload, tmp_path: Path) -> None:
    candidates = families(small_workload, TWO)
    expected = {one.name: one.assignment for one in candidates}
    assert {"bucket_cap_mb", "DDP_SET_LAST_BUCKET_CAP", "DDP default", "recommended"} <= set(expected)
    start_record(tmp_path, small_workload, TWO)
    replay(small_workload, candidates, Place(), tmp_path, rounds=1)
    measured = load_record(tmp_path).candidates
    assert {one.name for one in measured} == set(expected)
    for candidate in measured:
        asked = expected[candidate.name]
        assert asked is not None
        assert candidate.observed is not None
        assert [set(bucket) for bucket in candidate.observed] == [set(b) for b in asked.bucket_indices]
