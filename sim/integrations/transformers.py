"""``sim.autotune`` and ``sim.record`` in transformers' Trainer, which tells its callbacks of no exception."""

from typing import Any

from transformers import TrainerCallback

import sim
from sim.integrations import Hung


class _OfTrainer(Hung, TrainerCallback):  # type: ignore[misc]
    """``trainer`` is the one that trains, which knows the wrapped model."""

    def __init__(self, trainer: Any, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._trainer = trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """The model has been wrapped."""
        self.begin(self._trainer.model_wrapped)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The optimizer has stepped, or skipped its step."""
        self.stepped()


class BucketAutotuneCallback(_OfTrainer):
    """Tunes DDP's buckets during training: ``trainer.add_callback(BucketAutotuneCallback(trainer))``.

    Its options are arguments of ``sim.autotune``. What came of it is in ``result``.
    """

    hang = sim.autotune


class BucketRecordingCallback(_OfTrainer):
    """Records the training: ``trainer.add_callback(BucketRecordingCallback(trainer, "recording"))``."""

    hang = sim.record
