"""``sim.autotune`` and ``sim.record`` in training loops that others wrote: what all callbacks share."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import sim
from sim.autotuner.switch import unwrapped


class Hung:
    """What hangs on the model that a trainer has wrapped, a tuning or a recording, while it trains.

    It is made of the model by what ``make`` makes of the callback's arguments; it steps with the optimizer,
    and is left when training ends.
    """

    make: Callable[..., Callable[[Any], Any]]

    def __init__(self, *given: Any, **options: Any) -> None:
        self._hang, self._open, self._held = self.make(*given, **options), ExitStack(), None

    def begin(self, model: Any) -> None:
        """The model has been wrapped.

        Raises:
            InputError, NotModelledError: a model that cannot be recorded, or without DDP's buckets.
        """
        self._held = self._open.enter_context(self._hang(model))

    def stepped(self) -> None:
        """The optimizer has stepped, or skipped its step."""
        held: Any = self._held
        held.step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Nothing is left on the model but a recording's communication hook, and its files are complete."""
        self._open.close()

    @property
    def result(self) -> Any:
        """Of a tuning how it ended, an ``Autotuned``; None while it is under way."""
        return getattr(self._held, "result", None)


def tuning(**options: Any) -> Callable[[Any], Any]:
    """Of arguments of ``sim.autotune`` what makes a tuning; a model without DDP's buckets is ``refused``."""
    return lambda model: sim.autotune(model, **options)


def recording(directory: Any, **options: Any) -> Callable[[Any], Any]:
    """Of arguments of ``sim.record`` what makes a recording."""
    return lambda model: sim.record(unwrapped(model), directory, **options)
