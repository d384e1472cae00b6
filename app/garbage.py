"""Python looks for garbage among all objects once a page is drawn, not while somebody waits for it.

Each such look takes 40 to 80 ms where timelines of 2,000 gradients are kept, and was due in the middle of
every fourth answer.
"""

import gc

_DUE, _AT_ONCE = 10, 100  # looks at younger objects since then: Python's own number, and that of a busy page


def begin() -> None:
    """What is there now stays, and is never looked at again; all else is once ``_AT_ONCE`` is reached."""
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], _AT_ONCE)


def collect() -> None:
    """Look for garbage if that is due; to be called once all is told, as it holds up all visitors."""
    if gc.get_count()[2] > _DUE:
        gc.collect()
