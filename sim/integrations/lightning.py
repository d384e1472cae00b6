"""``sim.autotune`` and ``sim.record`` in Lightning's Trainer."""

import os
from contextlib import ExitStack
from typing import Any

from lightning.pytorch.callbacks import Callback

import sim
from sim.autotuner.modes import unwrapped
from sim.autotuner.progress import Autotuned


class BucketAutotune(Callback):  # type: ignore[misc]
    """Tunes DDP's buckets during training: ``Trainer(strategy="ddp", callbacks=[BucketAutotune()])``.

    What came of it is in ``result``, None before it has ended. A strategy without DistributedDataParallel is
    ``refused``.

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

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """The strategy has wrapped the model."""
        self._tuner = sim.autotune(trainer.strategy.model, **self._options)

    def on_train_batch_end(self, *_: Any) -> None:
        """The optimizer has stepped, or gradients were accumulated, which does not count."""
        self._tuner.step()

    def on_train_end(self, *_: Any) -> None:
        """Nothing is left on the model."""
        self._tuner.stop()


class BucketRecording(Callback):  # type: ignore[misc]
    """Records the training: ``Trainer(strategy="ddp", callbacks=[BucketRecording("recording")])``.

    ``bucketsim import recording`` makes a workload of what it writes.

    Args:
        directory: where the files of all ranks go.
        options: arguments of ``sim.record``, such as ``max_steps``.
    """

    def __init__(self, directory: str | os.PathLike[str], **options: Any) -> None:
        self._directory = directory
        self._options = options
        self._open = ExitStack()
        self._recording: Any = None
        self._steps = 0

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """The strategy has wrapped the model.

        Raises:
            InputError, NotModelledError: a model that cannot be recorded, or without DDP's buckets.
        """
        ddp = unwrapped(trainer.strategy.model)
        self._steps = trainer.global_step
        self._recording = self._open.enter_context(sim.record(ddp, self._directory, **self._options))

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """The optimizer has stepped, unless gradients are being accumulated."""
        if trainer.global_step != self._steps:
            self._steps = trainer.global_step
            self._recording.step()

    def on_train_end(self, *_: Any) -> None:
        """The files are complete, and nothing but the communication hook is left on the model."""
        self._open.close()

    def on_exception(self, trainer: Any, module: Any, error: BaseException) -> None:
        """The files say that training failed."""
        self._open.pop_all().__exit__(type(error), error, error.__traceback__)
