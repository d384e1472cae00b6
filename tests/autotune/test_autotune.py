"""``sim.autotune`` on two real ranks: both keep, revert and refuse alike, and nothing is left behind."""

from pathlib import Path

import pytest

from tests.checked import assert_nothing_fails


@pytest.mark.dist
def test_ranks_find_nothing_wrong(tmp_path: Path) -> None:
    """All cases of ``autotune_worker``, which check themselves."""
    assert_nothing_fails("tests.autotune.autotune_worker", tmp_path)
