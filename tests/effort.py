"""How many examples a property is tried on: a third of them in `make test`, all in `make test-all`."""

import os

FEWEST = 30
IS_WHOLE = os.environ.get("BUCKETSIM_TESTS") == "all"


def tries(most: int) -> int:
    """``most``, or a third of it where time is short, but never less than ``FEWEST``."""
    return most if IS_WHOLE or most <= FEWEST else max(FEWEST, most // 3)
