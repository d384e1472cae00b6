"""How many examples a property is tried on, an eighth of them in `make test`; and how long a test waits."""

import os

FEWEST = 12
PATIENCE_S = 600.0  # for what comes sooner or later: only a hang takes as long, on however slow a machine
IS_WHOLE = os.environ.get("BUCKETSIM_TESTS") == "all"


def tries(most: int) -> int:
    """``most``, or an eighth of it where time is short, but never less than ``FEWEST``."""
    return most if IS_WHOLE or most <= FEWEST else max(FEWEST, most // 8)
