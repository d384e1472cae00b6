"""The environment in which a training script that nobody edits tunes its own buckets."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OPTIONS = "BUCKETSIM_AUTOTUNE"
_AT_START = Path(__file__).parent / "at_start"


def tuned_environment(environment: Mapping[str, str], **options: Any) -> dict[str, str]:
    """``environment`` with what makes each Python in it call ``sim.autotune(ddp, **options)``."""
    places = [str(_AT_START), environment.get("PYTHONPATH", "")]
    return {
        **environment,
        "PYTHONPATH": os.pathsep.join(place for place in places if place),
        OPTIONS: json.dumps(options),
    }
