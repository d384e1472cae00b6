"""Some rounds of ``make chaos``: what is hurt ends, says so and leaves nothing."""

import pytest

from tests.chaos.rounds import play

pytestmark = pytest.mark.dist


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
def test_what_is_hurt_ends_and_leaves_nothing(number: int) -> None:
    print(play(f"test {number}"))
