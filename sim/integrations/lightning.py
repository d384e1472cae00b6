"""``sim.autotune`` and ``sim.record`` in Lightning's Trainer."""

from typing import Any

from lightning.pytorch.callbacks import Callback

import sim
from sim.integrations import Hung


class _OfTrainer(Hung, Callback):  # type: ignore[misc]
    """Steps with the trainer's optimizer: batches whose gradients are accumulated are no steps."""

    _steps = 0

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """The strategy has wrapped the model."""
        self._steps = trainer.global_step
        self.begin(trainer.strategy.model)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """The optimizer has stepped, unless gradients are being accumulated."""
        if trainer.global_step != self._steps:
            self._steps = trainer.global_step
            self.stepped()

    def on_exception(self, trainer: Any, module: Any, error: BaseException) -> None:
        """The files of a recording say that training failed."""
        self._open.pop_all().__exit__(type(error), error, error.__traceback__)


class BucketAutotune(_OfTrainer):
    """Tunes DDP's buckets during training: ``Trainer(strategy="ddp", callbacks=[BucketAutotune()])``.

    Its options are arguments of ``sim.autotune``. What came of it is in ``result``.
    """

    hang = sim.autotune


class BucketRecording(_OfTrainer):
    """Records the training: ``Trainer(strategy="ddp", callbacks=[BucketRecording("recording")])``."""

    hang = sim.record
