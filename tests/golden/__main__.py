"""``python -m tests.golden [SUBJECT ...]``: keeps what bucketsim says today, and tells what changed."""

import sys
import tempfile
import time
from pathlib import Path

from tests.golden.answers import SUBJECTS
from tests.golden.kept import differences, keep, kept, make

for subject in sys.argv[1:] or SUBJECTS:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        made = make(subject, Path(folder))
    old = kept(subject)
    changed = list(differences(old, made)) if old else []
    took = f"{time.monotonic() - began:.0f} s"
    print(f"{subject}: {len(made)} answers in {took}, {len(changed)} values changed")
    print("\n".join(changed[:200]))
    keep(subject, made)
