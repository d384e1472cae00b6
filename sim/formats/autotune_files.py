"""Where a job that tunes its own buckets tells what it is doing, for a live view."""

import os
from pathlib import Path

from sim.errors import InputError
from sim.formats.documents import load
from sim.nouns.autotune import AutotuneProgress

FILE_NAME = "autotune.json"


def find_autotunes(directory: str | os.PathLike[str]) -> dict[str, AutotuneProgress]:
    """What is told in ``directory`` and the directories in it, by their names; what cannot be read is not."""
    found: dict[str, AutotuneProgress] = {}
    place = Path(directory)
    for path in (place / FILE_NAME, *sorted(place.glob(f"*/{FILE_NAME}"))):
        try:
            found[path.parent.name] = load(path, AutotuneProgress)
        except InputError:
            continue  # not there, or not ours
    return found
