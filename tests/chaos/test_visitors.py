"""A few minutes of ``python -m tests.chaos.visitors``: pages say what the command line says, memory stays."""

import pytest

from tests.app.browser import harness
from tests.chaos.visitors import MIB, soak

pytestmark = pytest.mark.browser


@pytest.mark.slow
def test_visitors_that_drag_and_upload_are_told_what_the_command_line_says() -> None:
    harness.require()
    told = soak(minutes=4, count=4, seed=1)
    print(told)
    assert told.did["drags"] > 4
    assert told.at(1) - told.at(0.5) < 100 * MIB
