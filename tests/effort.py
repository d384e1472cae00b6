"""How many examples a property is tried on, a twelfth of them in `make test`; and how long a test waits."""

import os

FEWEST = 8
PATIENCE_S = 600.0  # for what comes sooner or later: only a hang takes as long, on however slow a machine
IS_WHOLE = os.environ.get("BUCKETSIM_TESTS") == "all"


def tries(most: int, few: int | None = None) -> int:
    """``most``; where time is short ``few``, or else a twelfth of it, but never less than ``FEWEST``."""
    return most if IS_WHOLE else min(most, few or max(FEWEST, most // 12))
