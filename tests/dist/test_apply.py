"""``sim.apply`` on two gloo ranks: plain DDP's gradients in the buckets asked for, and what is refused."""

import json
from pathlib import Path

import pytest

from tests.ranks import run_together


@pytest.mark.dist
def test_ranks_find_nothing_wrong(tmp_path: Path) -> None:
    """All cases of ``apply_worker``, which check themselves."""
    ended = run_together("tests.dist.apply_worker", tmp_path)
    assert [code for code, _ in ended] == [0, 0], "".join(errors[-2000:] for _, errors in ended)
    failed = [json.loads((tmp_path / f"failed-{rank}.json").read_text()) for rank in (0, 1)]
    assert failed == [{}, {}], "\n".join(said for one in failed for said in one.values())
