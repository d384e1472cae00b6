"""Traces as they are read, with the figures of each step and bucket that tests hold against a known truth."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sim.importer.imported import KINDS, Imported, ImportOptions
from sim.importer.kineto.trace_import import Job, import_of, see


@dataclass(frozen=True)
class Traced:
    """An import of traces; its sentences by kind, and what it was made of."""

    imported: Imported
    seen: Job

    def __getattr__(self, name: str) -> Any:
        return self.imported.said(name) if name in KINDS else getattr(self.imported, name)

    @property
    def steps(self) -> list[dict[str, int]]:
        """A row a step, in ns."""
        return [
            {
                "number": step.number,
                "step_ns": step.end_ns - step.start_ns,
                "forward_ns": step.backward_start_ns - step.start_ns,
                "backward_ns": step.backward_ns,
                "sync_end_ns": step.sync_end_ns - step.backward_start_ns,
                "copy_in_ns": step.copy_in_ns,
                "copy_out_ns": step.copy_out_ns,
            }
            for step in self.seen.steps
        ]

    @property
    def buckets(self) -> list[dict[str, Any]]:
        """A row a bucket; what it took and what was waited in it in ns, by step."""
        clocks = self.seen.clocks
        return [
            {
                "num_elements": one.num_elements,
                "dtype": one.dtype,
                "num_bytes": one.num_bytes,
                "transfer_ns": clocks.transfers[:, place].tolist(),
                "waited_for_last_ns": np.ptp(clocks.starts[:, :, place], axis=1).tolist(),
            }
            for place, one in enumerate(self.seen.steps[0].reductions)
        ]

    @property
    def overlaps(self) -> dict[int, float | None]:
        """By rank, of computation and all communication."""
        return {one.trace.rank or 0: one.overlap for one in self.seen.ranks}


def read_kineto(paths: Sequence[Path], options: ImportOptions) -> Traced:
    """As the reader of that name."""
    seen = see(paths, options)
    return Traced(import_of(seen), seen)
