"""What a reader gathers for the summary while it reads."""

from dataclasses import dataclass, field
from typing import Any

from sim.nouns.imported import SENTENCES


@dataclass(slots=True, kw_only=True)
class Notes:
    """Sentences, as ``Imported`` has them."""

    found: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)

    def each(self) -> dict[str, Any]:
        """What ``Imported`` has of it, by the names of its fields; of equal sentences the first."""
        return {kind: tuple(dict.fromkeys(getattr(self, kind))) for kind in SENTENCES}
