"""What real ranks tell each other goes over a group of ours, and a failure of one reaches all at once."""

from pathlib import Path

import pytest

from tests.checked import assert_nothing_fails


@pytest.mark.dist
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_find_nothing_wrong(world_size: int, tmp_path: Path) -> None:
    """All cases of ``unison_worker``, which check themselves."""
    worker = "tests.autotune.unison_worker"
    assert_nothing_fails(worker, tmp_path, str(world_size), world_size=world_size)
