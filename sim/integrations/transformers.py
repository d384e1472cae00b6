"""``sim.autotune`` in transformers' Trainer."""

from typing import Any

from transformers import TrainerCallback

import sim
from sim.nouns.autotune import Autotuned


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
