"""``sim.autotune`` and ``sim.record`` in training loops that others wrote: what all callbacks share."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any


class Hung:
    """What hangs on the model that a trainer has wrapped, a tuning or a recording, while it trains.

    ``hang`` makes it of the model and of what the callback was given; it steps with the optimizer, and is
    left when training ends.
    """

    hang: Callable[..., Any]  # sim.autotune, or sim.record

    def __init__(self, *given: Any, **options: Any) -> None:
        self._given, self._options, self._open = given, options, ExitStack()
        self._held: Any = None

    def begin(self, model: Any) -> None:
        """The model has been wrapped; raises what ``hang`` raises of it, or of an option."""
        self._held = self._open.enter_context(self.hang(model, *self._given, **self._options))

    def stepped(self) -> None:
        """The optimizer has stepped, or skipped its step."""
        self._held.step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Nothing is left on the model but a recording's communication hook, and its files are complete."""
        self._open.close()

    @property
    def result(self) -> Any:
        """Of a tuning how it ended, an ``Autotuned``; None while it is under way."""
        return getattr(self._held, "result", None)
