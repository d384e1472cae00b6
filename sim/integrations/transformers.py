"""``sim.autotune`` and ``sim.record`` in transformers' Trainer."""

import os
from contextlib import ExitStack
from typing import Any

from transformers import TrainerCallback

import sim
from sim.autotuner.modes import unwrapped
from sim.autotuner.progress import Autotuned


class BucketAutotuneCallback(TrainerCallback):  # type: ignore[misc]
    """Tunes DDP's buckets during training: ``trainer.add_callback(BucketAutotuneCallback(trainer))``.

    What came of it is in ``result``, None before it has ended. Where the Trainer does not wrap its model in
    DistributedDataParallel, that is ``refused``.

    Args:
        trainer: the one that trains; it knows the wrapped model.
        options: arguments of ``sim.autotune``.
    """

    def __init__(self, trainer: Any, **options: Any) -> None:
        self._trainer = trainer
        self._options = options
        self._tuner: Any = None

    @property
    def result(self) -> Autotuned | None:
        """How it ended; None while it is under way."""
        result: Autotuned | None = None if self._tuner is None else self._tuner.result
        return result

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """The model has been wrapped."""
        self._tuner = sim.autotune(self._trainer.model_wrapped, **self._options)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The optimizer has stepped."""
        self._tuner.step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Nothing is left on the model."""
        self._tuner.stop()


class BucketRecordingCallback(TrainerCallback):  # type: ignore[misc]
    """Records the training: ``trainer.add_callback(BucketRecordingCallback(trainer, "recording"))``.

    ``bucketsim import recording`` makes a workload of what it writes. The Trainer tells its callbacks of no
    exception: after one the files hold the steps before it.

    Args:
        trainer: the one that trains; it knows the wrapped model.
        directory: where the files of all ranks go.
        options: arguments of ``sim.record``, such as ``max_steps``.
    """

    def __init__(self, trainer: Any, directory: str | os.PathLike[str], **options: Any) -> None:
        self._trainer = trainer
        self._directory = directory
        self._options = options
        self._open = ExitStack()
        self._recording: Any = None

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """The model has been wrapped.

        Raises:
            InputError, NotModelledError: a model that cannot be recorded, or without DDP's buckets.
        """
        ddp = unwrapped(self._trainer.model_wrapped)
        self._recording = self._open.enter_context(sim.record(ddp, self._directory, **self._options))

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The optimizer has stepped, or skipped its step."""
        self._recording.step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """The files are complete, and nothing but the communication hook is left on the model."""
        self._open.close()
