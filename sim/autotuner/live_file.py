"""What a tuning tells a directory while it is under way, for ``bucketsim dash --watch``."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from sim.errors import InputError
from sim.formats.documents import save
from sim.formats.recordings import AUTOTUNE
from sim.nouns.ab import AbTest
from sim.nouns.autotune import AutotuneProgress, Phase, TrialLook

_log = logging.getLogger(__name__)


class LiveFile:
    """The file in ``directory``, written anew at each change by the first rank; None: nothing is written.

    ``count`` says how many steps there were. A disk that is full ends the telling, never the training.
    """

    def __init__(
        self, directory: Path | None, ddp: DistributedDataParallel, count: Callable[[], int]
    ) -> None:
        is_first = ddp.process_group.rank() == 0
        self._path = directory / AUTOTUNE if directory is not None and is_first else None
        self._count = count
        self._told = AutotuneProgress(
            name=type(ddp.module).__name__,
            world_size=ddp.process_group.size(),
            provenance={"source": "sim.autotune"},
        )
        self.tell()

    @property
    def phase(self) -> Phase:
        """What is under way."""
        return self._told.phase

    def tell(self, **changes: Any) -> None:
        """Fields of ``AutotuneProgress`` that have changed."""
        self._told = replace(self._told, steps=self._count(), **changes)
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            save(self._path, self._told)
        except (InputError, OSError) as error:
            _log.warning("autotune: no longer telling %s: %s", self._path, error)
            self._path = None

    def look(self, steps: int, ab: AbTest) -> None:
        """What the trial says after so many steps of it."""
        said = TrialLook(
            steps=steps, gain=ab.gain_fraction, low=ab.gain_low_fraction, high=ab.gain_high_fraction
        )
        self.tell(looks=(*self._told.looks, said))
