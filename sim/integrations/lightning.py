"""``sim.autotune`` in Lightning's Trainer."""

from typing import Any

from lightning.pytorch.callbacks import Callback

import sim
from sim.nouns.autotune import Autotuned


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
