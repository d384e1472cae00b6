"""Files of ranks, and the workloads that they name."""

import os
from dataclasses import replace
from pathlib import Path

from sim.errors import InputError
from sim.formats import documents
from sim.nouns.ranks import Ranks
from sim.nouns.workload import Workload


def load_ranks(path: str | os.PathLike[str]) -> Ranks:
    """A Ranks from its JSON file. Raises ``InputError`` naming file, field, value and what is legal."""
    return documents.load(path, Ranks)


def load_groups(path: str | os.PathLike[str], ranks: Ranks) -> dict[str, Workload]:
    """The workloads that the groups of ``ranks`` name, as files seen from the directory of its file ``path``.

    Raises ``InputError`` as any loading of a Workload, after the file of ranks and the field.
    """
    loaded: dict[str, Workload] = {}
    for number, group in enumerate(ranks.groups):
        if group.workload not in loaded:
            try:
                loaded[group.workload] = documents.load(Path(path).parent / group.workload, Workload)
            except InputError as error:
                raise InputError(f"{path}: groups.{number}.workload: {error}") from error
    return loaded


def moved(ranks: Ranks, path: str | os.PathLike[str], to: str | os.PathLike[str]) -> Ranks:
    """``ranks`` of the file ``path`` as the file ``to`` has to name its workloads."""
    there = Path(to).absolute().parent
    groups = tuple(
        replace(group, workload=os.path.relpath(Path(path).absolute().parent / group.workload, there))
        for group in ranks.groups
    )
    return replace(ranks, groups=groups)
