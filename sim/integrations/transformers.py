"""``sim.autotune`` and ``sim.record`` in transformers' Trainer."""

import os
from typing import Any

from transformers import TrainerCallback

from sim.integrations import Recording, Tuning


class BucketAutotuneCallback(Tuning, TrainerCallback):  # type: ignore[misc]
    """Tunes DDP's buckets during training: ``trainer.add_callback(BucketAutotuneCallback(trainer))``.

    What came of it is in ``result``, None before it has ended. Where the Trainer does not wrap its model in
    DistributedDataParallel, that is ``refused``.

    Args:
        trainer: the one that trains; it knows the wrapped model.
        options: arguments of ``sim.autotune``.
    """

    def __init__(self, trainer: Any, **options: Any) -> None:
        super().__init__(**options)
        self._trainer = trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """The model has been wrapped."""
        self.begin(self._trainer.model_wrapped)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The optimizer has stepped."""
        self._tuner.step()


class BucketRecordingCallback(Recording, TrainerCallback):  # type: ignore[misc]
    """Records the training: ``trainer.add_callback(BucketRecordingCallback(trainer, "recording"))``.

    ``bucketsim import recording`` makes a workload of what it writes. The Trainer tells its callbacks of no
    exception: after one the files hold the steps before it.

    Args:
        trainer: the one that trains; it knows the wrapped model.
        directory: where the files of all ranks go.
        options: arguments of ``sim.record``, such as ``max_steps``.
    """

    def __init__(self, trainer: Any, directory: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(directory, **options)
        self._trainer = trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """The model has been wrapped."""
        self.begin(self._trainer.model_wrapped)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The optimizer has stepped, or skipped its step."""
        self._recording.step()
