"""``sim.autotune`` and ``sim.record`` in transformers' Trainer."""

import os
from typing import Any

from transformers import TrainerCallback

from sim.integrations import Recording, Tuning


class _OfTrainer(TrainerCallback):  # type: ignore[misc]
    """What the Trainer tells; ``trainer`` is the one that trains, which knows the wrapped model."""

    _trainer: Any

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """The model has been wrapped."""
        self.begin(self._trainer.model_wrapped)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The optimizer has stepped, or skipped its step."""
        self.stepped()


class BucketAutotuneCallback(Tuning, _OfTrainer):
    """Tunes DDP's buckets during training: ``trainer.add_callback(BucketAutotuneCallback(trainer))``.

    Its options are arguments of ``sim.autotune``. What came of it is in ``result``.
    """

    def __init__(self, trainer: Any, **options: Any) -> None:
        super().__init__(**options)
        self._trainer = trainer


class BucketRecordingCallback(Recording, _OfTrainer):
    """Records the training: ``trainer.add_callback(BucketRecordingCallback(trainer, "recording"))``.

    The Trainer tells its callbacks of no exception: after one the files hold the steps before it.
    """

    def __init__(self, trainer: Any, directory: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(directory, **options)
        self._trainer = trainer
