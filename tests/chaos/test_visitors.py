"""A few minutes of ``visitors`` and ``light_visitors``: pages say what is right, and the memory stays."""

import pytest

from tests.app.browser import harness
from tests.chaos import light_visitors, visitors
from tests.chaos.visitors import MIB, Told

pytestmark = pytest.mark.browser


@pytest.mark.slow
def test_visitors_that_drag_and_upload_are_told_what_the_command_line_says() -> None:
    harness.require()
    told = visitors.soak(minutes=2, count=4, seed=1)
    print(told)
    assert told.did["drags"] > 4


@pytest.mark.slow
def test_the_memory_that_many_visitors_take_is_flat() -> None:
    told = light_visitors.soak(minutes=4, count=8, seed=1)
    print(told)
    assert told.did["uploads"] > 8
    assert told.is_flat, told


@pytest.mark.parametrize(
    ("held", "is_flat"),
    [
        ((70, 336, 343, 355, 360, 376, 385), False),
        ((70, 320, 325, 330, 331, 333, 332), True),
    ],
    ids=["twelve a sixth", "within what moments differ by"],
)
def test_flat_is_told_from_growing(held: tuple[int, ...], is_flat: bool) -> None:
    told = Told(memory=[(5.0 * sixth, mib * MIB) for sixth, mib in enumerate(held)])
    assert told.is_flat is is_flat
