"""Results kept between two moves of a knob, by key, up to what they weigh."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Remembered(Generic[Value]):
    """The results that were asked for last, for all visitors of this process.

    Unlike ``st.cache_data`` it hands out the very object, unpickled: keep what is frozen. And it is bounded
    by weight: a timeline of 20,000 gradients takes 20 MB, of 20 it takes 0.03.
    """

    def __init__(self, most: int) -> None:
        """Keep results of ``most`` weight together; the last one is kept whatever it weighs."""
        self._most = most
        self._kept: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(
        self, key: Hashable, make: Callable[[], Value], weight: int | Callable[[Value], int] = 1
    ) -> Value:
        """What is kept under ``key``; else what ``make`` makes, which is kept unless it raises.

        ``weight`` is what that weighs, or tells it of what was made.
        """
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
        value = make()  # two visitors may make the same at once; either is right
        weighs = weight(value) if callable(weight) else weight
        with self._lock:
            self._kept[key] = (value, weighs)
            self._kept.move_to_end(key)
            while len(self._kept) > 1 and sum(each for _, each in self._kept.values()) > self._most:
                self._kept.popitem(last=False)
        return value

    def find(self, key: Hashable) -> Value | None:
        """What is kept under ``key``, or None."""
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]
