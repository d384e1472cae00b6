"""``sim.apply`` on two gloo ranks: plain DDP's gradients in the buckets asked for, and what is refused."""

from pathlib import Path

import pytest

from tests.checked import assert_nothing_fails


@pytest.mark.dist
def test_ranks_find_nothing_wrong(tmp_path: Path) -> None:
    """All cases of ``apply_worker``, which check themselves."""
    assert_nothing_fails("tests.dist.apply_worker", tmp_path)
