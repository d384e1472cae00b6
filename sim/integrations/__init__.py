"""``sim.autotune`` and ``sim.record`` in training loops that others wrote: what all callbacks share."""

import os
from contextlib import ExitStack
from typing import Any

import sim
from sim.autotuner.loop import Autotuned
from sim.autotuner.switch import unwrapped


class Tuning:
    """A tuning of the model that ``begin`` is given; one without DistributedDataParallel is ``refused``.

    Args:
        options: arguments of ``sim.autotune``.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._tuner: Any = None

    @property
    def result(self) -> Autotuned | None:
        """How it ended; None while it is under way."""
        result: Autotuned | None = None if self._tuner is None else self._tuner.result
        return result

    def begin(self, model: Any) -> None:
        """The model has been wrapped."""
        self._tuner = sim.autotune(model, **self._options)

    def stepped(self) -> None:
        """The optimizer has stepped; gradients that were accumulated do not count."""
        self._tuner.step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Nothing is left on the model."""
        self._tuner.stop()


class Recording:
    """A recording of the model that ``begin`` is given, of which ``bucketsim import`` makes a workload.

    Args:
        directory: where the files of all ranks go.
        options: arguments of ``sim.record``, such as ``max_steps``.
    """

    def __init__(self, directory: str | os.PathLike[str], **options: Any) -> None:
        self._directory, self._options = directory, options
        self._open = ExitStack()
        self._recording: Any = None

    def begin(self, model: Any) -> None:
        """The model has been wrapped.

        Raises:
            InputError, NotModelledError: a model that cannot be recorded, or without DDP's buckets.
        """
        recording = sim.record(unwrapped(model), self._directory, **self._options)
        self._recording = self._open.enter_context(recording)

    def stepped(self) -> None:
        """The optimizer has stepped, or skipped its step."""
        self._recording.step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """The files are complete, and nothing but the communication hook is left on the model."""
        self._open.close()
