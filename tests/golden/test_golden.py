"""What bucketsim says of what is bundled is what it said; ``make golden`` keeps it anew."""

from pathlib import Path

import pytest

from tests.golden.answers import SLOW, SUBJECTS
from tests.golden.kept import HERE, differences, kept, make

MOST_BYTES = 3_000_000
SHOWN = 40


@pytest.mark.parametrize(
    "subject", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in SUBJECTS]
)
def test_what_is_said_is_what_was_said(subject: str, tmp_path: Path) -> None:
    changed = list(differences(kept(subject), make(subject, tmp_path)))
    assert not changed, f"{len(changed)} values changed:\n" + "\n".join(changed[:SHOWN])


def test_the_net_is_small() -> None:
    assert sum(path.stat().st_size for path in HERE.glob("*.json")) <= MOST_BYTES
